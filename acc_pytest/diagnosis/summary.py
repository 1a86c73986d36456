"""What a whole run says: its roots in execution order, what follows from each, and the lines that say so."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..reporting.diagnosis import Diagnosis, Root
from ..reporting.row import Cause, Row
from ..reporting.view import View
from .folding import RootAtStep, folded
from .pair_state import PairState
from .peers import Peers
from .shares import shares

if TYPE_CHECKING:
    from ..mapping.pair import Plan

MOST_LINES = 8
"""Roots that the summary has a line for."""


class Ledger(View):
    """Takes the rows of a run in any order; keeps roots whole, and of every other pair a few numbers.

    A view, so that it is fed as reports are; it writes nothing.
    """

    def __init__(self) -> None:
        self._states: dict[int, PairState] = {}
        self._causes: dict[int, Cause] = {}
        self._roots: dict[int, Row] = {}
        self._peers = Peers()

    def add(self, row: Row) -> None:
        """Take a row into account; those of people's own tests and of single operators say nothing here."""
        if row.number is None or row.case or row.alone:
            return
        cause = row.cause
        if cause is None and row.verdict in ("fail", "inherited", "known"):
            return
        self._states[row.number] = PairState.of(row, row.number)
        self._peers.add(row)
        if cause is not None:
            self._causes[row.number] = cause
            if cause.kind == "root":
                self._roots[row.number] = row

    def diagnosis(self, plan: Plan) -> Diagnosis:
        """What the rows so far say of the run."""
        inherited = Counter(member.root for member in self._causes.values() if member.kind == "inherited")
        below: dict[int, float] = defaultdict(float)
        for number, cause in self._causes.items():
            if cause.kind == "inherited" and cause.root is not None:
                below[cause.root] = max(below[cause.root], self._states[number].level)
        explained, finals = self._shares(plan)
        roots_at_steps = []
        for numbers in self._operators(plan):
            first = numbers[0]
            shared = [explained[member] for member in numbers if member in explained]
            roots_at_steps.append(
                RootAtStep(
                    self._roots[first],
                    self._causes[first],
                    plan.pairs[first],
                    first,
                    max(self._states[member].level for member in numbers),
                    max((below[member] for member in numbers if member in below), default=0.0),
                    sum(inherited[member] for member in numbers),
                    sum(shared) if shared else None,
                    finals.get(first, ""),
                )
            )
        roots = folded(roots_at_steps)
        guessed = any(number in plan.by_order for number in self._causes)
        notes = _notes(plan, roots, guessed)
        return Diagnosis(tuple(roots), sum(inherited.values()), plan.lineage, notes, self._peers.lines(plan))

    def _operators(self, plan: Plan) -> list[list[int]]:
        """Roots that are tensors of one operator at one step, together; in execution order."""
        operators: dict[object, list[int]] = {}
        for number in sorted(self._roots):
            pair = plan.pairs[number]
            key = pair.graph, pair.step, pair.rank, pair.mine.node, self._causes[number].root_name
            operators.setdefault(key, []).append(number)
        return list(operators.values())

    def _steps(self, plan: Plan) -> Iterator[tuple[list[int], dict[int | None, int]]]:
        """The compared pairs of each step, and the last one of each rank: its final output."""
        steps: dict[object, list[int]] = defaultdict(list)
        for number in sorted(self._states):
            if number < len(plan.pairs) and self._states[number].compared:
                pair = plan.pairs[number]
                steps[pair.graph, pair.step].append(number)
        for numbers in steps.values():
            yield numbers, {plan.pairs[number].rank: number for number in numbers}

    def _shares(self, plan: Plan) -> tuple[dict[int, float], dict[int, str]]:
        """The shares of roots in the error of their step's final output, and the name of that output; where
        the output of any step fails, not of one that passes."""
        explained: dict[int, float] = {}
        finals: dict[int, str] = {}
        steps = list(self._steps(plan))
        one_fails = any(not self._causes.keys().isdisjoint(last.values()) for _, last in steps)
        for numbers, last in steps:
            roots = [number for number in numbers if number in self._roots]
            for rank, final in last.items() if roots else ():
                mine = [root for root in roots if rank is None or plan.pairs[root].rank in (rank, None)]
                part = shares(final, numbers[0], plan.parents, self._states, self._causes)
                if final in self._causes or not one_fails:
                    finals |= dict.fromkeys(mine, self._states[final].name)
                for number in mine if final in self._causes else ():
                    explained[number] = max(explained.get(number, 0.0), part.get(number, 0.0))
        return explained, finals


def root_lines(diagnosis: Diagnosis) -> list[str]:
    """A line for each root, which begins with `root cause: `.

    What is beyond `MOST_LINES` is counted; then comes what has to be known of how they were found.
    """
    lines = [f"root cause: {root.sentence}" for root in diagnosis.roots[:MOST_LINES]]
    if len(diagnosis.roots) > MOST_LINES:
        lines.append(f"root cause: and {len(diagnosis.roots) - MOST_LINES} more operators")
    return lines + [f"root causes: {note}" for note in diagnosis.notes]


def _notes(plan: Plan, roots: Sequence[Root], guessed: bool) -> tuple[str, ...]:
    """What has to be known of how the roots were found."""
    notes = []
    if guessed:
        notes.append(
            f"what a pair computes from is known by {plan.lineage or 'nothing'}; by execution order a "
            "root is where the error starts or grows tenfold (rate of change)"
        )
    operators = [root for root in roots if not root.row.fed and root.number not in plan.gaps]
    unknown = sum(1 for root in operators if not _cause(root).local and root.basis != "local")
    if unknown and not guessed:
        notes.append(f"{unknown} of {len(operators)} could not be computed again on their own inputs")
    return tuple(notes)


def _cause(root: Root) -> Cause:
    assert root.row.cause is not None
    return root.row.cause
