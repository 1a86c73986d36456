"""The roles of tensors of torch modules by their dumped tensors, where the other dump has other modules.

Names tell the function of a module in a model of transformers. The dumped tensors tell more: the copies, the
tensors that have yet to be turned, whether a linear packs two, and the tensors that the model returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..dumps.base import Slot
from ..tensors.ref import readable
from .evidence import all_equal
from .layered_tree import LayeredTree
from .layers import Layer
from .roles.export import Export

_TURNED = {"q_rope": ("q_norm", "q"), "k_rope": ("k_norm", "k", "kv_a")}
"""Turned tensors, and their sources: the norm of heads where there is one. Of a latent, the last columns are
turned."""
_TABLES = "position_embeddings"
"""The name in models of transformers of the tables that they hand to a layer."""


def layer_exports(tree: LayeredTree, layer: Layer) -> list[Export]:
    """The exports of a layer by its dumped tensors: a tensor no wider than the input of the down projection
    packs nothing."""
    exports = tree.layer_exports(layer)
    widths = {e.role: _width(tree, e) for e in exports if e.role.endswith("gated")}
    plain = {
        pack: width
        for pack, gated in (("mlp_in", "gated"), ("shared.mlp_in", "shared.gated"))
        if (width := widths.get(gated))
    }
    return [
        replace(e, role=f"{e.role}.plain") if plain.get(e.role) == _width(tree, e) else e for e in exports
    ]


def _width(tree: LayeredTree, export: Export) -> int:
    shape = tree.shape(export.node, export.slot)
    return shape[-1] if shape else -1


def model_exports(tree: LayeredTree) -> list[Export]:
    """The exports outside of layers by the dumped tensors: where the model changes its logits before it
    returns them, the returned ones count."""
    exports = tree.model_exports()
    if not any(export.role == "embed" for export in exports):
        exports = [*exports, *_embedding(tree)]
    last = [e for e in exports if e.role == "lm_head" and e.slot.kind == "output"]
    computed, returned = ([e for e in last if e.form == form] for form in ("plain", "repeated"))
    if len(computed) != 1 or len(returned) != 1:
        return exports
    refs = [tree.side.slots(e.node)[e.slot] for e in (computed[0], returned[0])]
    shapes = [tree.shape(e.node, e.slot) for e in (computed[0], returned[0])]
    if shapes[0] != shapes[1] or all_equal(refs):
        return exports
    renamed = {
        computed[0]: replace(computed[0], role="logits_before"),
        returned[0]: replace(returned[0], form="plain"),
    }
    return [renamed.get(export, export) for export in exports]


def _embedding(tree: LayeredTree) -> Iterator[Export]:
    """The first module outside of layers that is handed whole numbers and gives a row for each of them."""
    first = Slot("output", (0,))
    for node in tree.outside():
        ids = readable(tree.side.slots(node).get(Slot("input", (0,))))
        rows = tree.shape(node, first)
        is_integer = ids is not None and ids.dtype.name.startswith(("int", "uint"))
        if node.is_leaf and is_integer and ids is not None and rows is not None and rows[:-1] == ids.shape:
            yield Export(node, first, "embed")
            return


def shares_rotary(tree: LayeredTree) -> bool:
    """Whether layers share one rotary module: it is listed in one layer, and holds the tensors of the
    last."""
    rotary_layers = [
        layer
        for layer in tree.layers
        if any("rotary" in node.path.rpartition(".")[2] for node in layer.node.walk())
    ]
    return 0 < len(rotary_layers) < len(tree.layers)


def without_copies(exports: list[Export], shared_rotary: bool) -> list[Export]:
    """Exports without inputs of a role that an output has, too. Of tensors that a rotary module turned the
    inputs of attention stay: all layers may share that module."""
    output_roles = {e.role for e in exports if e.slot.kind == "output" and e.form != "repeated"}
    turned_inputs = {e.role for e in exports if e.slot.kind == "input"} & _TURNED.keys()
    selected = []
    for export in exports:
        of_rotary = export.role in _TURNED and export.form == "plain"
        if export.slot.kind == "input":
            keep = export.role not in output_roles or export.role in turned_inputs
        else:
            keep = not of_rotary or not (export.role in turned_inputs or shared_rotary)
        if keep:
            selected.append(export)
    return selected


def largest(exports: Sequence[Export]) -> Iterator[Export]:
    """The choice of a router of which nothing but the logits was dumped."""
    roles = {export.role for export in exports}
    routers = [e for e in exports if e.role == "router" and e.slot.kind == "output"]
    if routers and "router_index" not in roles:
        yield Export(routers[0].node, routers[0].slot, "router_index", "largest")


def choice(exports: Sequence[Export]) -> tuple[Export | None, Export | None]:
    """The export that tells the experts of each token (the choice itself, or the logits whose largest are
    chosen), and the logits."""
    candidates = [*exports, *largest(exports)]
    chosen = [e for e in candidates if e.role == "router_index" and e.slot.kind == "output"]
    logits = [e for e in candidates if e.role == "router" and e.slot.kind == "output"]
    return next(iter(chosen), None), next(iter(logits), None)


def turned(
    exports: Sequence[Export], outside: Sequence[Export], layer_tables: Sequence[Export]
) -> Iterator[Export]:
    """Query and key that position tables have yet to turn, as the code that turns them gets them. The tables
    are `layer_tables`, which the layer was handed, else they are in the layer, or `outside`."""
    table_exports = layer_tables or [e for e in (*outside, *exports) if e.form == "table"]
    tables = {export.role: export for export in table_exports}
    outputs = {e.role: e for e in exports if e.slot.kind == "output" and e.form == "plain"}
    if "cos" in tables and "sin" in tables:
        for role, sources in _TURNED.items():
            source = next((outputs[name] for name in sources if name in outputs), None)
            if source is not None and role not in outputs:
                cos_and_sin = tables["cos"], tables["sin"]
                yield Export(source.node, source.slot, role, "turned", companions=cos_and_sin)


def position_tables(tree: LayeredTree, layer: Layer) -> list[Export]:
    """The tables of positions that a module of the layer was handed by name: models may have several."""
    for node in layer.node.walk():
        slots = [slot for slot in tree.slots(node) if slot.kind == "input" and slot.index[0] == _TABLES]
        if slots:
            cos_and_sin = slots[0], slots[1] if len(slots) > 1 else slots[0]
            return [Export(node, slot, role, "table") for slot, role in zip(cos_and_sin, ("cos", "sin"))]
    return []
