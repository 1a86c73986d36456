"""Policies that look at types, names and order: for user maps and for what the roles leave over.

Each takes a `Scope` (one layer of each side, or all that is outside of layers) and yields matches of
slots that are still free. The order in which they run is in `trees.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..dumps.base import Slot
from ..topology.tree import Node
from .alignment import align
from .evidence import IN_SEQUENCE
from .match import End, Match
from .op_mapping_file import Endpoint, TypeRule
from .roles.export import Export
from .tables import Tables

FIRST_OUTPUT = Slot("output", (0,))
_ALIGNED_KINDS = ("linear", "norm", "activation", "embedding", "attention")


@dataclass(slots=True, eq=False)
class Scope:
    """Nodes of both sides that may be paired with each other, in execution order.

    `fits` checks a match by headers; `has` says whether a slot was dumped (golden, mine);
    `bias_of` gives the add that completes a linear without bias, so that it stands for both.
    `claimed` collects the ends that have a plain match.
    """

    golden: list[Node]
    mine: list[Node]
    tables: Tables
    fits: Callable[[Match], bool]
    golden_has: Callable[[Node, Slot], bool]
    mine_has: Callable[[Node, Slot], bool]
    bias_of: Callable[[Node], Node]
    layered: bool
    claimed: set[End] = field(default_factory=set)

    def free(self, side: str, node: Node, slot: Slot) -> bool:
        """True for a dumped slot that has no partner yet."""
        has = self.golden_has if side == "golden" else self.mine_has
        return has(node, slot) and (side, node, slot) not in self.claimed


def by_types(scope: Scope, rules: Sequence[TypeRule], policy: str) -> Iterator[Match]:
    """Nodes of a type with nodes of another type, in order; pairs whose shapes disagree are dropped."""
    for rule in rules:
        for endpoint in rule.golden:
            match = _typed(rule, endpoint, policy)
            mine = [node for node in scope.mine if has_type(node, rule.mine, rule.exact)]
            mine = [node for node in map(scope.bias_of, mine) if scope.free("mine", node, slot_of(rule.mine))]
            golden = [node for node in scope.golden if has_type(node, endpoint, rule.exact)]
            golden = [node for node in golden if scope.free("golden", node, slot_of(endpoint))]
            yield from in_order(golden, mine, match, scope.fits)


def _typed(rule: TypeRule, endpoint: Endpoint, policy: str) -> Callable[[Node, Node], Match]:
    """A function that matches a golden and a mine node by one entry of a rule."""
    reason = f"type {rule.mine.op_type} is {endpoint.op_type}"

    def match(golden_node: Node, mine_node: Node) -> Match:
        golden, mine = (
            Export(golden_node, slot_of(endpoint), "type"),
            Export(mine_node, slot_of(rule.mine), "type"),
        )
        return Match(golden, mine, policy, reason)

    return match


def in_order(
    golden: list[Node],
    mine: list[Node],
    match: Callable[[Node, Node], Match | None],
    fits: Callable[[Match], bool],
) -> Iterator[Match]:
    """The matches of two lists of nodes, both in order, that fit; `match` gives `None` for what is none.

    Equal numbers are zipped; unequal ones are aligned, so that one more operator on one side does not shift
    the rest.
    """

    def fitting(golden_node: Node, mine_node: Node) -> Match | None:
        candidate = match(golden_node, mine_node)
        return candidate if candidate is not None and fits(candidate) else None

    if len(golden) == len(mine):
        pairs = list(zip(golden, mine))
    else:
        pairs = align(golden, mine, lambda g, m: fitting(g, m) is not None)
    yield from filter(None, (fitting(*pair) for pair in pairs))


def has_type(node: Node, endpoint: Endpoint, exact: bool) -> bool:
    """True for a node of the type; types that are not `exact` are searched as substrings."""
    if exact:
        return node.is_leaf and node.op_type == endpoint.op_type
    return endpoint.op_type in node.op_type


def slot_of(endpoint: Endpoint) -> Slot:
    """The tensor that an entry means."""
    return endpoint.slot or FIRST_OUTPUT


def special(scope: Scope) -> Iterator[Match]:
    """The old tool's whole-tree names: word embedding, top-level norm, `LmHead`, Bloom's norms."""
    if scope.layered:
        return
    for rule in scope.tables.special:
        mine = [node for node in _free_nodes(scope, "mine") if _name_test(node.name, rule["mine"])]
        golden = [
            node
            for node in _free_nodes(scope, "golden")
            if _name_test(node.name, rule["golden"]) and not _name_test(node.name, rule.get("not_golden", ()))
        ]
        yield from _in_order(scope, golden, mine, "special", "special name")


def _name_test(name: str, tests: Iterable[str]) -> bool:
    lowered = name.lower()
    return any(re.search(test[1:], lowered) if test.startswith("~") else test in lowered for test in tests)


def modules(scope: Scope) -> Iterator[Match]:
    """Direct children of a layer by name fragment: `Attention` is `self_attn`, `Mlp` is `mlp`."""
    if not scope.layered:
        return
    for rule in scope.tables.module:
        mine = [n for n in _children(scope, "mine") if rule["mine"] in n.path.split("/")[-1]]
        golden = [n for n in _children(scope, "golden") if any(t in _last(n) for t in rule["golden"])]
        yield from _in_order(scope, golden, mine, "module", "module name")


def _children(scope: Scope, side: str) -> list[Node]:
    nodes = scope.golden if side == "golden" else scope.mine
    top = min((node.depth for node in nodes), default=0)
    return [node for node in _free_nodes(scope, side) if node.depth == top + 1]


def _last(node: Node) -> str:
    return node.path.rpartition(".")[2]


def fragments(scope: Scope) -> Iterator[Match]:
    """Leaves of a layer by fragments of their paths (the old tool's table), each used once."""
    if not scope.layered:
        return
    for rule in scope.tables.fragments:
        mine_slot = slot_of(Endpoint.parse(f"x_{rule.get('mine_slot', 'outtensor0')}") or Endpoint("x"))
        golden_slot = slot_of(Endpoint.parse(f"x_{rule.get('golden_slot', 'output_0')}") or Endpoint("x"))
        for mine in scope.mine:
            if not (_has_fragments(mine, rule) and scope.free("mine", mine, mine_slot)):
                continue
            for golden in scope.golden:
                if rule["golden"] in golden.path.lower() and scope.free("golden", golden, golden_slot):
                    match = Match(
                        Export(golden, golden_slot, "path"),
                        Export(mine, mine_slot, "path"),
                        "fragments",
                        f"path has {' and '.join(rule['mine'])}",
                    )
                    if scope.fits(match):
                        yield match
                        break


def _has_fragments(mine: Node, rule: Mapping[str, Any]) -> bool:
    """Whether it is a leaf whose path has all fragments of a rule, and not the one that excludes it."""
    path = mine.path.lower()
    excluded = bool(rule.get("unless")) and rule["unless"] in path
    return mine.is_leaf and not excluded and all(fragment in path for fragment in rule["mine"])


def sequence(scope: Scope) -> Iterator[Match]:
    """Computing leaves without a partner, aligned in execution order by kind and shape."""
    golden = [node for node in _free_nodes(scope, "golden") if _aligned(scope, node)]
    mine = [node for node in _free_nodes(scope, "mine") if _aligned(scope, node)]

    def same(golden_node: Node, mine_node: Node) -> bool:
        kinds = {scope.tables.kind_of(node.op_type, node.param) for node in (golden_node, mine_node)}
        return len(kinds) == 1 and scope.fits(_first_outputs(golden_node, mine_node, IN_SEQUENCE, ""))

    for golden_node, mine_node in align(golden, mine, same):
        kind = scope.tables.kind_of(golden_node.op_type, golden_node.param)
        yield _first_outputs(
            golden_node, mine_node, IN_SEQUENCE, f"same place in the order of {kind} operators, same shape"
        )


def _aligned(scope: Scope, node: Node) -> bool:
    return node.is_leaf and scope.tables.kind_of(node.op_type, node.param) in _ALIGNED_KINDS


def _in_order(
    scope: Scope, golden: list[Node], mine: list[Node], policy: str, reason: str
) -> Iterator[Match]:
    for golden_node, mine_node in align(
        golden, mine, lambda g, m: scope.fits(_first_outputs(g, m, policy, reason))
    ):
        yield _first_outputs(golden_node, mine_node, policy, reason)


def _first_outputs(golden_node: Node, mine_node: Node, policy: str, reason: str) -> Match:
    return Match(
        Export(golden_node, FIRST_OUTPUT, "order"), Export(mine_node, FIRST_OUTPUT, "order"), policy, reason
    )


def _free_nodes(scope: Scope, side: str) -> list[Node]:
    nodes = scope.golden if side == "golden" else scope.mine
    return [node for node in nodes if scope.free(side, node, FIRST_OUTPUT)]
