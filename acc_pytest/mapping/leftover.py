"""What found no partner, why, and what comes nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..dumps.base import Slot
from ..topology.tree import Node
from .evidence import Evidence
from .layered_tree import LayeredTree
from .match import Match
from .roles.export import Export
from .trees import TreeMatcher

_WHY_ALONE = {
    "passing": "only moves data; its neighbours are compared",
    "cache": "writes a cache, of which the other side has no tensor",
    "quant": "quantised values have no floating counterpart",
    "reduce": "a collective; its result is compared through the operator it belongs to",
}
_NEARER = 0.35
"""Least similarity of names (difflib ratio) for a candidate worth naming."""


@dataclass(frozen=True, slots=True, eq=False)
class Leftover:
    """A node without a partner: the side, the reason, the nearest candidate (empty if none is near).

    `why` is that of `pair.Unmapped`.
    """

    side: str
    node: Node
    reason: str
    nearest: str
    why: str = "alone"


def leftovers(matcher: TreeMatcher, matches: Sequence[Match], evidence: Evidence) -> list[Leftover]:
    """Every dumped node of both trees that no match uses, golden's first, in execution order."""
    used_golden = {m.golden.node for m in matches} | {p.node for m in matches for p in m.mine_view.parts}
    used_golden |= set(_handed_on(matcher, used_golden))
    used_mine = {m.mine.node for m in matches} | {p.node for m in matches for p in m.golden_view.parts}
    alone_golden = _alone(matcher.golden, used_golden)
    alone_mine = _alone(matcher.mine, used_mine)
    places = matcher.places()
    left = []
    for side, tree, alone, others in (
        ("golden", matcher.golden, alone_golden, alone_mine),
        ("mine", matcher.mine, alone_mine, alone_golden),
    ):
        for node in alone:
            near = [other for other in others if places.get(other) == places.get(node)]
            left.append(_leftover(side, tree, node, near, evidence))
    return left


def _handed_on(matcher: TreeMatcher, used: set[Node]) -> Iterator[Node]:
    """Golden containers whose result is that of a module inside them, which is compared."""
    layers = (matcher.golden.layer_exports(layer) for layer, _ in matcher.layer_pairs)
    for exports in (matcher.golden.model_exports(), *layers):
        compared = {export.role for export in exports if export.node in used}
        yield from (outer.node for outer in exports if outer.form == "repeated" and outer.role in compared)


def _alone(tree: LayeredTree, used: set[Node]) -> list[Node]:
    nodes = [
        n for n in tree.side.tree.walk() if n not in used and any(s.kind == "output" for s in tree.slots(n))
    ]
    return sorted(nodes, key=lambda node: node.order)


def _leftover(side: str, tree: LayeredTree, node: Node, near: Sequence[Node], evidence: Evidence) -> Leftover:
    kind = tree.tables.kind_of(node.op_type, node.param)
    reason = _WHY_ALONE.get(kind, "no tensor of the other side has its name, role or place")
    ranked = [(_similarity(tree, kind, node, other), -number, other) for number, other in enumerate(near)]
    best = max(ranked, default=None, key=lambda entry: entry[:2])
    if best is None or best[0] < _NEARER:
        return Leftover(side, node, reason, "")
    other = best[2]
    golden, mine = (node, other) if side == "golden" else (other, node)
    slot = Slot("output", (0,))
    refusal = evidence.refusal(Match(Export(golden, slot, ""), Export(mine, slot, ""), "", ""))
    near_by = f"{other.path} ({refusal or 'same size, but nothing else says so'})"
    return Leftover(side, node, reason, near_by, "refused" if refusal else "ambiguous")


def _similarity(tree: LayeredTree, kind: str, node: Node, other: Node) -> float:
    same_kind = kind != "other" and tree.tables.kind_of(other.op_type, other.param) == kind
    last, other_last = node.path.split("/")[-1], other.path.split("/")[-1]
    ratio = difflib.SequenceMatcher(None, last.lower(), other_last.lower()).ratio()
    return ratio + (0.5 if same_kind else 0.0)
