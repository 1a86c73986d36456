"""Two torch dumps of models whose modules are not the same: what an equal name may be taken for.

An engine packs, fuses and flattens what Hugging Face has apart, under names that it keeps. So a name counts
only where what was dumped does not say that the tensors are different things.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..base.reason import Reason
from ..dumps.base import Slot
from ..topology.tree import Node
from .dump_step import LayeredTree
from .evidence import all_equal
from .layers import Layer
from .match import WHOLE, Export, Match, ViewRule
from .shard_values import turns_neighbours

_Place = tuple[str, Slot]
_Role = tuple[str, str]
"""The role of a tensor, and its form."""

_SUMMED = frozenset({"embed", "o", "down", "routed", "shared.down", "mlp_residual"})
"""Roles of what row-parallel modules hand out: each rank may have a summand of it."""
_ONE_ROW = frozenset({"final_norm", "lm_head"})
"""Roles that one side may have of the last tokens only."""


class Meanings:
    """The roles of the tensors of both sides, by node and slot. `ranks` are their numbers that meet;
    there may be more that do so `rank_by_rank`."""

    def __init__(
        self, golden: LayeredTree, mine: LayeredTree, ranks: tuple[int, int], rank_by_rank: bool
    ) -> None:
        self.golden = golden
        self.mine = mine
        self.ranks = ranks
        self.rank_by_rank = rank_by_rank

    @functools.cached_property
    def unlike(self) -> bool:
        """Whether the modules are not the same."""
        alike = self.ranks[0] == self.ranks[1] and _inventory(self.golden) == _inventory(self.mine)
        shapes = [
            tree.shape(export.node, export.slot)
            for tree in (self.golden, self.mine)
            for export in model_exports(tree)
            if export.role == "embed" and export.slot.kind == "output"
        ]
        if len({len(shape) for shape in shapes if shape}) > 1:
            return True
        return not alike and (
            self._renamed() or self._differ() or self._packed_otherwise() or self._turned_otherwise()
        )

    @functools.cached_property
    def roles(self) -> tuple[dict[_Place, _Role], dict[_Place, _Role]]:
        """The roles of golden's tensors, and of those of mine."""
        return _roles(self.golden), _roles(self.mine)

    def _renamed(self) -> bool:
        """Whether most modules of mine are called as none of golden's: what is left of names is chance."""
        golden, mine = ({path for path, _ in _dumped(tree)} for tree in (self.golden, self.mine))
        return 2 * len(golden & mine) < min(len(golden), len(mine))

    def _differ(self) -> bool:
        """Whether tensors of equal names are different things."""
        golden, mine = self.roles
        dumped = _dumped(self.golden) & _dumped(self.mine)
        return any(golden.get(place) != mine.get(place) for place in dumped)

    def _packed_otherwise(self) -> bool:
        """Whether one side packs what the other has apart, or both do, over other numbers of ranks."""
        names = [{role for role, _ in roles.values()} for roles in self.roles]
        for pack, pieces in self.golden.tables.packs.items():
            has = [pack in side_roles for side_roles in names]
            if all(has) and self.ranks[0] != self.ranks[1]:
                return True
            for side, opposite in ((0, 1), (1, 0)):
                if has[side] and not has[opposite] and set(pieces) <= names[opposite]:
                    return True
        return False

    def _turned_otherwise(self) -> bool:
        """Whether one side alone holds queries that are turned."""
        turned = ["q_rope" in {role for role, _ in roles.values()} for roles in self.roles]
        return turned[0] != turned[1]

    def named(self, match: Match) -> Match | None:
        """A match of equal names as far as the tensors are one thing, `None` where nothing says so."""
        golden = self.roles[0].get((match.golden.node.path, match.golden.slot))
        mine = self.roles[1].get((match.mine.node.path, match.mine.slot))
        if golden != mine:
            return None
        if golden is None or mine is None:
            alike = self._arity(match.golden, 0) == self._arity(match.mine, 1)
            return match if alike and _of_one_code(match.golden.node, match.mine.node) else None
        role, form = mine
        return (
            replace(match, reason=Reason("equal names, both are `{}`", role))
            if self._may_meet(role, form)
            else None
        )

    def _may_meet(self, role: str, form: str) -> bool:
        packed = role in self.golden.tables.packs and self.ranks[0] != self.ranks[1]
        return form in ("plain", "table", "cache") and role not in _ONE_ROW and not packed

    def _arity(self, export: Export, side: int) -> int:
        tree = (self.golden, self.mine)[side]
        return sum(slot.kind == "output" for slot in tree.slots(export.node))

    def completed(self, match: Match) -> Match:
        """The match; with unequal numbers of ranks, each may have a summand of what row-parallel modules
        hand out. Either side may have a multiple of what the other has."""
        unlike = self.unlike or match.golden.node.op_type != match.mine.node.op_type
        if unlike and match.golden_view == match.mine_view == WHOLE:
            golden, mine = match.golden, match.mine
            golden = replace(golden, onward=onward_of(self.golden, golden, self.roles[0]))
            mine = replace(mine, onward=onward_of(self.mine, mine, self.roles[1]))
            match = self._in_slots(replace(match, golden=golden, mine=mine))
        golden_view, mine_view = match.golden_view, match.mine_view
        if self.unlike and golden_view.kind in ("whole", "cache") and mine_view == WHOLE:
            mine_view = self._in_heads(match.mine, 1)
            golden_view = self._in_heads(match.golden, 0) if golden_view == WHOLE else golden_view
        if self._may_be_summand(match.golden, 0) and golden_view == WHOLE:
            golden_view = ViewRule("row_parallel")
        if self._may_be_summand(match.mine, 1) and mine_view == WHOLE:
            mine_view = ViewRule("row_parallel")
        return replace(match, golden_view=golden_view, mine_view=mine_view)

    def _in_heads(self, export: Export, side: int) -> ViewRule:
        """The view of a query or key, turned or not, on a side that turns neighbours; else the whole."""
        role = self.roles[side].get((export.node.path, export.slot), ("", ""))[0]
        is_turned = f"{role.removesuffix('_rope')}_rope" in _TURNED
        return ViewRule("heads_of", size) if is_turned and (size := self._heads[side]) else WHOLE

    @functools.cached_property
    def _heads(self) -> tuple[int, ...]:
        """The size of heads in which golden turns neighbours, and mine; 0 where it turns halves."""
        sizes = []
        for tree, roles in zip((self.golden, self.mine), self.roles):
            first = {role: place for place, (role, _) in reversed(roles.items())}
            ends = [first[role] for role in ("q", "q_rope") if role in first]
            refs = [tree.side.slots(tree.side.tree.by_path[path])[slot] for path, slot in ends]
            sizes.append(turns_neighbours(*refs) if len(refs) == 2 else 0)
        return tuple(sizes)

    def _in_slots(self, match: Match) -> Match:
        """The match of what routers chose, or of its weights, with the tensors that order either."""
        chosen = [self._router_choice(match.golden, 0), self._router_choice(match.mine, 1)]
        if chosen[0] is None or chosen[1] is None:
            return match
        golden, mine = replace(match.golden, slots_by=chosen[0]), replace(match.mine, slots_by=chosen[1])
        return replace(match, golden=golden, mine=mine)

    def _router_choice(self, export: Export, side: int) -> Export | None:
        roles = self.roles[side]
        if roles.get((export.node.path, export.slot), ("", ""))[0] not in ("router_index", "router_weight"):
            return None
        tree = (self.golden, self.mine)[side]
        slots = [
            s
            for s in tree.slots(export.node)
            if roles.get((export.node.path, s), ("", ""))[0] == "router_index"
        ]
        return Export(export.node, slots[0], "router_index") if slots else None

    def _may_be_summand(self, export: Export, side: int) -> bool:
        differs = self.ranks[side] > 1 and self.ranks[side] != self.ranks[1 - side]
        if not (differs or self.rank_by_rank) or export.slot.kind != "output":
            return False
        role = self.roles[side].get((export.node.path, export.slot), ("", ""))[0]
        if not differs and not role:
            return False
        return not role or role in _SUMMED or role.endswith(".down")


def _of_one_code(golden: Node, mine: Node) -> bool:
    """Whether nodes of one name may be one thing: functions are, where the same code calls them."""
    if not (golden.op_type[:1].islower() or mine.op_type[:1].islower()):
        return True
    parents = golden.parent, mine.parent
    if golden.op_type != mine.op_type or parents[0] is None or parents[1] is None:
        return False
    calls = [[child.op_type for child in node.children] for node in parents if node is not None]
    return parents[0].op_type == parents[1].op_type and calls[0] == calls[1]


def _roles(tree: LayeredTree) -> dict[_Place, _Role]:
    """The role of every tensor that has one, by its place; of several the first."""
    roles: dict[_Place, _Role] = {}
    for export in _exports(tree):
        roles.setdefault((export.node.path, export.slot), (export.role, export.form))
    return roles


def _exports(tree: LayeredTree) -> Iterator[Export]:
    for layer in tree.layers:
        yield from layer_exports(tree, layer)
    yield from model_exports(tree)


def _inventory(tree: LayeredTree) -> list[tuple[object, ...]]:
    """The modules, by what they pass on. Whatever else they are given and give, masks and weights of
    attention, depends on how attention is computed."""
    nodes = list(tree.side.tree.walk())
    if all(node.op_type for node in nodes):
        return [(node.path, node.op_type, *_streams(tree, node)) for node in nodes]
    return [(node.path, node.op_type, *tree.slots(node)) for node in nodes]


def _streams(tree: LayeredTree, node: Node) -> Iterator[int]:
    """The number of inputs as large as the first one, and that of outputs: a class that has learnt to add and
    norm in one call gives two for one, under the name that it had."""
    slots = tree.slots(node)
    for kind in ("input", "output"):
        shapes = [tree.shape(node, slot) for slot in slots if slot.kind == kind]
        yield shapes.count(shapes[0]) if shapes else 0


def _dumped(tree: LayeredTree) -> set[_Place]:
    return {(node.path, slot) for node in tree.side.tree.walk() for slot in tree.slots(node)}


_FIRST = Slot("output", (0,))
Roles = Mapping[tuple[str, Slot], tuple[str, str]]
"""The role and the form of each tensor, by its path and slot."""


def onward_of(tree: LayeredTree, export: Export, roles: Roles) -> tuple[Export, ...]:
    """A tensor, the next one, and what else is added to that: the number by which the first is multiplied is
    that of the export, too. Empty where nothing multiplies it."""
    role = roles.get((export.node.path, export.slot), ("", ""))[0]
    if export.slot.kind != "output":
        return ()
    if role == "embed":
        return _stream(tree, export)
    if role in ("routed", "down"):
        return _mixture(tree, export.node, roles)
    if role == "router_weight" and export.node.parent is not None:
        experts = [
            n for n in export.node.parent.children if roles.get((n.path, _FIRST)) == ("routed", "plain")
        ]
        return _mixture(tree, experts[0], roles) if experts else ()
    return ()


def _stream(tree: LayeredTree, embedding: Export) -> tuple[Export, ...]:
    """With what the first layer is handed, where it is as large."""
    shape = tree.shape(embedding.node, embedding.slot)
    for layer in tree.layers[:1]:
        for node in (layer.node, *layer.node.walk()):
            for slot in tree.slots(node):
                if slot.kind == "input" and shape and tree.shape(node, slot) == shape:
                    return embedding, Export(node, slot, "stream")
    return ()


def _mixture(tree: LayeredTree, experts: Node, roles: Roles) -> tuple[Export, ...]:
    """With what the module around experts gives, and what shared experts in it give; empty for what is in no
    mixture."""
    around = experts.parent
    if (
        around is None
        or not tree.has(around, _FIRST)
        or roles.get((around.path, _FIRST)) != ("down", "plain")
    ):
        return ()
    shared = [
        node
        for node in around.children
        if roles.get((node.path, _FIRST)) == ("shared.down", "plain") and tree.has(node, _FIRST)
    ]
    return tuple(Export(node, _FIRST, "onward") for node in (experts, around, *shared))


# The roles of tensors of torch modules by their dumped tensors, where the other dump has other modules.
#
# Names tell the function of a module in a model of transformers. The dumped tensors tell more: the copies,
# the tensors that have yet to be turned, whether a linear packs two, and the tensors that the model
# returns.


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
        exports = [*exports, *filter(None, [tree.embedding()])]
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
