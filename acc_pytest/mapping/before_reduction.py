"""Tensors that a program saved by name before ranks added them up: summands of the output of their module.

A serving engine saves the row-parallel product of each rank beside its output, and says that it is partial.
Its sum over ranks is the output of the module on one rank, so it meets the partner of that output. Where
the sum is right and the output is not, the ranks were not added up, or not rightly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..dumps.base import Slot
from ..dumps.recorded import SAVED
from ..topology.tree import Node
from .evidence import Evidence
from .match import Match, ViewRule
from .pair import Pair
from .policies import FIRST_OUTPUT
from .roles.export import Export

SUMMANDS = "partial"


def before_reduction(
    matches: Iterable[Match], evidence: Evidence, fits: Callable[[Match], bool]
) -> Iterator[Match]:
    """Matches of the summands of mine with outputs of golden's modules, for outputs that `matches` join."""
    ranks = evidence.rank_groups()[0][1]
    joined: dict[Node, Match] = {}
    paired: set[Node] = set()
    for match in matches:
        paired.add(match.mine.node)
        if match.mine.slot == FIRST_OUTPUT and match.mine_view.kind in ("whole", "row_parallel"):
            joined.setdefault(match.mine.node, match)
    for module, match in joined.items():
        for node in _saved_in(module):
            mine = Export(node, Slot("output"), match.mine.role)
            if node in paired or not evidence.mine.partial(mine, ranks):
                continue
            reason = f"summands of {module.name} on each rank"
            candidate = Match(match.golden, mine, SUMMANDS, reason, mine_view=ViewRule("sum"))
            if fits(candidate):
                yield candidate


def _saved_in(module: Node) -> list[Node]:
    """The nodes saved by name in a module that calls no other."""
    return module.children if all(child.op_type == SAVED for child in module.children) else []


def placed(match: Match) -> Match:
    """The match at its place in the order of execution: a match of summands stands with that of their sum."""
    module = match.mine.node.parent if match.policy == SUMMANDS else None
    return match if module is None else replace(match, mine=replace(match.mine, node=module))


def sums_of(pairs: Sequence[Pair]) -> Mapping[int, tuple[int, ...]]:
    """The number of the pair of their sum, for each pair of summands: it has the errors of that pair too."""
    of_sum = {
        (pair.graph, pair.step, pair.golden.node, pair.golden.slot): number
        for number, pair in enumerate(pairs)
        if pair.policy != SUMMANDS
    }
    sums = {}
    for number, pair in enumerate(pairs):
        sum_number = of_sum.get((pair.graph, pair.step, pair.golden.node, pair.golden.slot), number)
        if pair.policy == SUMMANDS and sum_number < number:
            sums[number] = (sum_number,)
    return sums
