"""The roles of tensors of torch modules by what was dumped of them, where the other dump has other modules.

Names say what a module does in a model of transformers. What was dumped says more: which copies there are,
what has yet to be turned, whether a linear packs two, and what the model returns.
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
"""What is turned, and what that is made of: the norm of heads where there is one. Of a latent, the last
columns are turned."""
_TABLES = "position_embeddings"
"""What models of transformers call the tables that they hand to a layer."""


def layer_exports(tree: LayeredTree, layer: Layer) -> list[Export]:
    """The exports of a layer by what was dumped: what is no wider than what the down projection takes packs
    nothing."""
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
    """The exports outside of layers by what was dumped: where the model changes its logits before it returns
    them, those are meant."""
    exports = tree.model_exports()
    if not any(export.role == "embed" for export in exports):
        exports = [*exports, *_embedding(tree)]
    last = [e for e in exports if e.role == "lm_head" and e.slot.kind == "output"]
    made, returned = ([e for e in last if e.form == form] for form in ("plain", "repeated"))
    if len(made) != 1 or len(returned) != 1:
        return exports
    refs = [tree.side.slots(e.node)[e.slot] for e in (made[0], returned[0])]
    if tree.shape(made[0].node, made[0].slot) != tree.shape(returned[0].node, returned[0].slot) or all_equal(
        refs
    ):
        return exports
    renamed = {
        made[0]: replace(made[0], role="logits_before"),
        returned[0]: replace(returned[0], form="plain"),
    }
    return [renamed.get(export, export) for export in exports]


def _embedding(tree: LayeredTree) -> Iterator[Export]:
    """The first module outside of layers that is handed whole numbers and gives a row for each of them."""
    first = Slot("output", (0,))
    for node in tree.outside():
        given = readable(tree.side.slots(node).get(Slot("input", (0,))))
        made = tree.shape(node, first)
        whole = given is not None and given.dtype.name.startswith(("int", "uint"))
        if node.is_leaf and whole and given is not None and made is not None and made[:-1] == given.shape:
            yield Export(node, first, "embed")
            return


def shares_rotary(tree: LayeredTree) -> bool:
    """Whether layers share one rotary module: it is listed in one, and holds what the last one saw."""
    own = [
        layer
        for layer in tree.layers
        if any("rotary" in node.path.rpartition(".")[2] for node in layer.node.walk())
    ]
    return 0 < len(own) < len(tree.layers)


def without_copies(exports: list[Export], shared_rotary: bool) -> list[Export]:
    """Exports but for inputs of a role that an output has, too. Of what a rotary module turned the inputs of
    attention stay: all layers may share that module."""
    made = {export.role for export in exports if export.slot.kind == "output" and export.form != "repeated"}
    given = {export.role for export in exports if export.slot.kind == "input"} & _TURNED.keys()
    kept = []
    for export in exports:
        of_rotary = export.role in _TURNED and export.form == "plain"
        if export.slot.kind == "input":
            keep = export.role not in made or export.role in given
        else:
            keep = not of_rotary or not (export.role in given or shared_rotary)
        if keep:
            kept.append(export)
    return kept


def largest(exports: Sequence[Export]) -> Iterator[Export]:
    """The choice of a router of which nothing but the logits was dumped."""
    known = {export.role for export in exports}
    routers = [e for e in exports if e.role == "router" and e.slot.kind == "output"]
    if routers and "router_index" not in known:
        yield Export(routers[0].node, routers[0].slot, "router_index", "largest")


def choice(exports: Sequence[Export]) -> tuple[Export | None, Export | None]:
    """What tells the experts of each token: the choice itself, or the logits whose largest are chosen; and
    the logits."""
    known = [*exports, *largest(exports)]
    chosen = [e for e in known if e.role == "router_index" and e.slot.kind == "output"]
    logits = [e for e in known if e.role == "router" and e.slot.kind == "output"]
    return next(iter(chosen), None), next(iter(logits), None)


def turned(
    exports: Sequence[Export], outside: Sequence[Export], handed: Sequence[Export]
) -> Iterator[Export]:
    """What tables of positions have yet to turn: query and key as they are handed to the code that does. The
    tables are those that the layer was `handed`, else they are in the layer, or `outside`."""
    known = handed or [e for e in (*outside, *exports) if e.form == "table"]
    tables = {export.role: export for export in known}
    made = {e.role: e for e in exports if e.slot.kind == "output" and e.form == "plain"}
    if "cos" in tables and "sin" in tables:
        for role, sources in _TURNED.items():
            source = next((made[name] for name in sources if name in made), None)
            if source is not None and role not in made:
                both = tables["cos"], tables["sin"]
                yield Export(source.node, source.slot, role, "turned", companions=both)


def position_tables(tree: LayeredTree, layer: Layer) -> list[Export]:
    """The tables of positions that a module of the layer was handed by name: models may have several."""
    for node in layer.node.walk():
        named = [slot for slot in tree.slots(node) if slot.kind == "input" and slot.index[0] == _TABLES]
        if named:
            both = named[0], named[1] if len(named) > 1 else named[0]
            return [Export(node, slot, role, "table") for slot, role in zip(both, ("cos", "sin"))]
    return []
