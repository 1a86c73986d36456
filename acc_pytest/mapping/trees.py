"""Match two trees: layers with layers, then every policy in its order. No files beyond headers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..dumps.base import Slot
from ..errors import AccError
from ..topology.tree import Node
from . import policies, same_names
from .evidence import Evidence, Side
from .layers import Layer, align_layers, find_layers
from .match import Look, Match
from .op_mapping_file import TypeRule, type_rules
from .policies import Scope
from .roles import atb as atb_roles
from .roles import torch as torch_roles
from .roles.atb_graph import Graph, graph_of
from .roles.dataflow import Value
from .roles.export import Export
from .roles.join import RoleJoin
from .tables import Tables

_PROBED_LAYERS = 3
"""How many layers of one make are looked at before a rule is dropped because shapes disagree."""


@dataclass(slots=True, eq=False)
class Half:
    """One side's tree with what the policies need of it."""

    side: Side
    tables: Tables
    layers: list[Layer] = field(init=False)
    graph: Graph | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.layers = find_layers(self.side.tree, self.tables)
        if self.side.dump.kind == "atb":
            self.graph = graph_of(self.side.tree, self.tables, self._is_bias)

    def slots(self, node: Node) -> Iterable[Slot]:
        return self.side.slots(node)

    def has(self, node: Node, slot: Slot) -> bool:
        return slot in self.side.slots(node)

    def layer_exports(self, layer: Layer) -> list[Export]:
        """Exports of one layer whose tensors were dumped."""
        if self.graph is not None:
            found = atb_roles.layer_exports(layer.node, self.graph)
        else:
            found = torch_roles.layer_exports(layer, self.tables, self.slots)
        return [export for export in found if self.has(export.node, export.slot)]

    def model_exports(self) -> list[Export]:
        """Exports outside the layers whose tensors were dumped."""
        if self.graph is not None:
            nodes = [layer.node for layer in self.layers]
            found = atb_roles.model_exports(self.side.tree, nodes, self.graph)
        else:
            found = torch_roles.model_exports(self.side.tree, self.layers, self.tables, self.slots)
        return [export for export in found if self.has(export.node, export.slot)]

    def outside(self) -> list[Node]:
        """Nodes in no layer, in execution order."""
        inside = {node for layer in self.layers for node in layer.node.walk()}
        nodes = [node for node in self.side.tree.walk() if node not in inside]
        return sorted(nodes, key=lambda node: node.order)

    def bias_of(self, node: Node) -> Node:
        """The add that completes a linear without bias, the node itself for all others."""
        if self.graph is None or self.graph.kinds.get(node) != "linear":
            return node
        readers = [reader for value in self.graph.flow.outputs[node] for reader, _ in value.read_by]
        added = [
            r for r in readers if self.graph.kinds[r] in ("add", "elewise") and self.graph.is_bias_add(r)
        ]
        return added[0] if added else node

    def _is_bias(self, leaf: Node, operand: Value) -> bool:
        """An operand as wide as the output and without rows of its own; by its name if not dumped."""
        named = "weight" in operand.name.lower() or "bias" in operand.name.lower()
        slots = self.side.slots(leaf)
        operand_ref, result = slots.get(Slot("input", (1,))), slots.get(Slot("output", (0,)))
        if operand_ref is None or result is None:
            return named
        try:
            shape, whole = operand_ref.header().shape, result.header().shape
        except AccError:
            return named
        if not shape or not whole:
            return False
        wide = math.prod(shape) == whole[-1]
        return wide and (len(shape) == 1 or named or math.prod(whole) > whole[-1])


class TreeMatcher:
    """All matches of two trees, with what had to be left out in words."""

    def __init__(self, evidence: Evidence, tables: Tables, user_rules: Sequence[TypeRule]) -> None:
        self._evidence = evidence
        self._tables = tables
        self._user_rules = user_rules
        self.golden = Half(evidence.golden, tables)
        self.mine = Half(evidence.mine, tables)
        self.layer_pairs, note = align_layers(self.golden.layers, self.mine.layers)
        self.notes = [note] if note else []
        self._same_kind = evidence.golden.dump.kind == evidence.mine.dump.kind

    def matches(self) -> list[Match]:
        """Every match, layers first; a slot of mine has one plain match at most."""
        found: list[Match] = []
        if self._same_kind:
            found.extend(self._same_names())
        taken = {("mine", m.mine.node, m.mine.slot) for m in found}
        taken |= {("golden", m.golden.node, m.golden.slot) for m in found}
        for group in self._groups():
            found.extend(self._layer_matches(group, taken))
        found.extend(self._model_matches(taken))
        return found

    def _same_names(self) -> Iterator[Match]:
        golden, mine = self.golden, self.mine
        named = list(same_names.by_name(golden.side.tree, mine.side.tree, golden.slots, mine.slots))
        yield from named
        if golden.side.dump.kind == "atb":
            ends = {("mine", m.mine.node) for m in named} | {("golden", m.golden.node) for m in named}
            by_type = same_names.by_type(
                golden.side.tree, mine.side.tree, golden.slots, mine.slots, self._tables
            )
            for match in by_type:
                if ("mine", match.mine.node) not in ends and ("golden", match.golden.node) not in ends:
                    yield match
        elif golden.side.dump.kind == "tensor" and not named:
            yield from _only_file(golden, mine)

    def _groups(self) -> list[list[tuple[Layer, Layer]]]:
        """Layer pairs of one make: same nodes, types and dumped slots on both sides."""
        groups: dict[object, list[tuple[Layer, Layer]]] = {}
        for golden, mine in self.layer_pairs:
            make = (_make(self.golden, golden), _make(self.mine, mine))
            groups.setdefault(make, []).append((golden, mine))
        return list(groups.values())

    def _layer_matches(
        self, group: list[tuple[Layer, Layer]], taken: set[tuple[str, Node, Slot]]
    ) -> Iterator[Match]:
        """Match the first layer of a make, then say the same of the others."""
        transfers = [Transfer(group[0], pair) for pair in group]
        probed = [transfers[0], *transfers[1:-1][: _PROBED_LAYERS - 2], *transfers[1:][-1:]]

        def fits(match: Match) -> bool:
            return any(not self._evidence.refusal(transfer(match)) for transfer in probed)

        golden, mine = group[0]
        scope = self._scope(list(golden.node.walk()), list(mine.node.walk()), fits, True, taken)
        exports = self.golden.layer_exports(golden), self.mine.layer_exports(mine)
        if not any(export.form == "table" for export in exports[0]):
            exports[0].extend(export for export in self.golden.model_exports() if export.form == "table")
        join = self._join(_unmatched(*exports, taken), fits, mine.node)
        for match in self._by_policy(scope, join):
            for transfer in transfers:
                yield transfer(match)

    def _model_matches(self, taken: set[tuple[str, Node, Slot]]) -> Iterator[Match]:
        def fits(match: Match) -> bool:
            return not self._evidence.refusal(match)

        scope = self._scope(self.golden.outside(), self.mine.outside(), fits, False, taken)
        exports = self.golden.model_exports(), self.mine.model_exports()
        yield from self._by_policy(scope, self._join(_unmatched(*exports, taken), fits, None))

    def _join(
        self, exports: tuple[list[Export], list[Export]], fits: Callable[[Match], bool], layer: Node | None
    ) -> RoleJoin:
        ranks = self._evidence.rank_groups()[0]
        sharded = len(ranks[1]) > len(ranks[0])
        return RoleJoin(*exports, self._tables, fits, layer, sharded=sharded)

    def _scope(
        self,
        golden: list[Node],
        mine: list[Node],
        fits: Callable[[Match], bool],
        layered: bool,
        taken: set[tuple[str, Node, Slot]],
    ) -> Scope:
        def order(node: Node) -> int:
            return node.order

        return Scope(
            sorted(golden, key=order),
            sorted(mine, key=order),
            self._tables,
            fits,
            self.golden.has,
            self.mine.has,
            self.mine.bias_of,
            layered,
            set(taken),
        )

    def _by_policy(self, scope: Scope, join: RoleJoin) -> Iterator[Match]:
        """The documented order: the user's map, roles, then the tables and the sequence of the rest."""
        for match in policies.by_types(scope, self._user_rules, "op-mapping-file", checked=False):
            scope.claim(match)
            yield match
        given = set(scope.taken)
        for match in join.matches():
            if not _ends(match) & given:
                scope.claim(match)
                yield match
        in_layers = type_rules(self._tables.types_in) if scope.layered else []
        exact = type_rules(self._tables.types, exact=True) if scope.layered else []
        for policy in (
            policies.special(scope),
            policies.modules(scope),
            policies.by_types(scope, in_layers, "types", checked=True),
            policies.fragments(scope),
            policies.by_types(scope, exact, "types", checked=True),
            policies.sequence(scope),
        ):
            for match in policy:
                if not _ends(match) & scope.taken:
                    scope.claim(match)
                    yield match


def _ends(match: Match) -> set[tuple[str, Node, Slot]]:
    return {
        ("golden", match.golden.node, match.golden.slot),
        ("mine", match.mine.node, match.mine.slot),
    }


def _unmatched(
    golden: list[Export], mine: list[Export], taken: set[tuple[str, Node, Slot]]
) -> tuple[list[Export], list[Export]]:
    """Exports of nodes that have no partner by name: dumps of one kind need roles for those only."""
    matched = {(side, node) for side, node, _ in taken}
    return (
        [export for export in golden if ("golden", export.node) not in matched],
        [export for export in mine if ("mine", export.node) not in matched],
    )


def _make(half: Half, layer: Layer) -> tuple[object, ...]:
    return tuple((layer.below(node), node.op_type, tuple(half.slots(node))) for node in layer.node.walk())


def _only_file(golden: Half, mine: Half) -> Iterator[Match]:
    """Two single tensors are a pair whatever their names."""
    ones = [node for node in golden.side.tree.walk() if list(golden.slots(node))]
    others = [node for node in mine.side.tree.walk() if list(mine.slots(node))]
    if len(ones) == len(others) == 1:
        slot = Slot("output", (0,))
        ends = Export(ones[0], slot, "file"), Export(others[0], slot, "file")
        yield Match(*ends, "file", "two files were given")


class Transfer:
    """Says of one layer pair what was said of another one of the same make."""

    def __init__(self, model: tuple[Layer, Layer], target: tuple[Layer, Layer]) -> None:
        self._same = model == target
        self._nodes: dict[Node, Node] = {}
        for one, other in zip(model, target):
            there = {other.below(node): node for node in other.node.walk()}
            self._nodes.update((node, there[one.below(node)]) for node in one.node.walk())

    def __call__(self, match: Match) -> Match:
        if self._same:
            return match
        return replace(
            match,
            golden=self._export(match.golden),
            mine=self._export(match.mine),
            golden_look=self._look(match.golden_look),
            mine_look=self._look(match.mine_look),
        )

    def _export(self, export: Export) -> Export:
        return replace(export, node=self._nodes.get(export.node, export.node))

    def _look(self, look: Look) -> Look:
        return replace(look, parts=tuple(self._export(part) for part in look.parts))
