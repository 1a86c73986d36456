"""Tensors that a program saved by name before ranks added them up: summands of what their module gives.

A serving engine saves what a row-parallel product holds on each rank beside its output, and says that it is
partial. Summed over ranks it is what the module of one rank gives, so it meets what that output meets. Where
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

POLICY = "partial"


def before_reduction(
    matches: Iterable[Match], evidence: Evidence, fits: Callable[[Match], bool]
) -> Iterator[Match]:
    """Matches of the summands of mine with what golden's modules give, for outputs that `matches` join."""
    ranks = evidence.rank_groups()[0][1]
    joined: dict[Node, Match] = {}
    met: set[Node] = set()
    for match in matches:
        met.add(match.mine.node)
        if match.mine.slot == FIRST_OUTPUT and match.mine_view.kind in ("whole", "row_parallel"):
            joined.setdefault(match.mine.node, match)
    for module, match in joined.items():
        for node in _saved_in(module):
            mine = Export(node, Slot("output"), match.mine.role)
            if node in met or not evidence.mine.partial(mine, ranks):
                continue
            reason = f"summands of {module.name} on each rank"
            found = Match(match.golden, mine, POLICY, reason, mine_view=ViewRule("sum"))
            if fits(found):
                yield found


def _saved_in(module: Node) -> list[Node]:
    """What was saved by name in a module that calls no other."""
    return module.children if all(child.op_type == SAVED for child in module.children) else []


def placed(match: Match) -> Match:
    """A match at its place in the order of execution: one of summands stands with that of their sum."""
    module = match.mine.node.parent if match.policy == POLICY else None
    return match if module is None else replace(match, mine=replace(match.mine, node=module))


def sums_of(pairs: Sequence[Pair]) -> Mapping[int, tuple[int, ...]]:
    """For each pair of summands the number of the pair of their sum, whose errors it has too."""
    of_sum = {
        (pair.graph, pair.step, pair.golden.node, pair.golden.slot): number
        for number, pair in enumerate(pairs)
        if pair.policy != POLICY
    }
    found = {}
    for number, pair in enumerate(pairs):
        of = of_sum.get((pair.graph, pair.step, pair.golden.node, pair.golden.slot), number)
        if pair.policy == POLICY and of < number:
            found[number] = (of,)
    return found
