"""The summary of a run: its roots in execution order, what follows from each, and the lines that say so."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..reporting.diagnosis import Diagnosis, Root
from ..reporting.row import Cause, Row
from ..reporting.view import View
from .folding import RootAtStep, folded
from .pair_state import PairState
from .peers import Peers

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
        """The diagnosis of the run by the rows so far."""
        inherited = Counter(member.root for member in self._causes.values() if member.kind == "inherited")
        levels: dict[int, float] = defaultdict(float)
        for number, cause in self._causes.items():
            if cause.kind == "inherited" and cause.root is not None:
                levels[cause.root] = max(levels[cause.root], self._states[number].level)
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
                    max((levels[member] for member in numbers if member in levels), default=0.0),
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
        any_fails = any(not self._causes.keys().isdisjoint(last.values()) for _, last in steps)
        for numbers, last in steps:
            roots = [number for number in numbers if number in self._roots]
            for rank, final in last.items() if roots else ():
                mine = [root for root in roots if rank is None or plan.pairs[root].rank in (rank, None)]
                root_shares = shares(final, numbers[0], plan.parents, self._states, self._causes)
                if final in self._causes or not any_fails:
                    finals |= dict.fromkeys(mine, self._states[final].name)
                for number in mine if final in self._causes else ():
                    explained[number] = max(explained.get(number, 0.0), root_shares.get(number, 0.0))
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
    """Notes on how the roots were found."""
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


def shares(
    final: int,
    first: int,
    parents: Sequence[Sequence[int]],
    states: Mapping[int, PairState],
    causes: Mapping[int, Cause],
) -> dict[int, float]:
    """The share of each root between the pairs `first` and `final`, both of one step, that has one.

    `causes` has every failing pair. A `final` that passes has nothing to explain: no root has a share.
    """
    if final not in causes:
        return {}
    arriving: dict[int, float] = defaultdict(float, {final: 1.0})
    explained: dict[int, float] = {}
    for number in range(final, first - 1, -1):
        share = arriving.pop(number, 0.0)
        if not share:
            continue
        state, cause = states.get(number), causes.get(number)
        sources = _between(first, parents[number] if number < len(parents) else (), number)
        if state is None or not state.compared:
            # Nothing is known of it, so what is above it gets equal parts.
            weights = _equal(sources)
        else:
            if cause is not None and cause.kind == "inherited" and not set(cause.parents) & set(sources):
                sources = _between(first, cause.parents, number)
            added, weights = _divided(state, cause, sources, states)
            if cause is not None and cause.kind == "root":
                explained[number] = min(1.0, share * added)  # parts of 1 may sum to a rounding more
            share *= 1.0 - added
        for parent, weight in weights.items():
            arriving[parent] += share * weight
    return explained


def _between(first: int, numbers: Sequence[int], last: int) -> list[int]:
    return [number for number in numbers if first <= number < last]


def _equal(numbers: Sequence[int]) -> dict[int, float]:
    return dict.fromkeys(numbers, 1.0 / len(numbers)) if numbers else {}


def _divided(
    state: PairState, cause: Cause | None, sources: Sequence[int], states: Mapping[int, PairState]
) -> tuple[float, dict[int, float]]:
    """The share that a pair adds itself, and the weights by which the rest goes to those above it."""
    source_states = [states[parent] for parent in sources if parent in states]
    hidden = [parent for parent in sources if parent not in states or not states[parent].compared]
    return _added(state, cause, source_states), _weights(state, source_states) or _equal(hidden)


def _added(state: PairState, cause: Cause | None, sources: Sequence[PairState]) -> float:
    """The part of its squared error that a pair adds itself: nothing where it is inherited."""
    if cause is not None and cause.kind != "root":
        return 0.0
    size, source_sizes = _sizes(state, sources)
    if cause is not None and cause.parents and cause.local_error is not None and 0 < size < math.inf:
        return min(1.0, (cause.local_error / size) ** 2)
    largest = max(source_sizes, default=0.0)
    if math.isinf(size):
        return 0.0 if math.isinf(largest) else 1.0
    if size <= 0.0:
        return 0.0 if sources else 1.0
    return max(0.0, 1.0 - (largest / size) ** 2)


def _sizes(state: PairState, sources: Sequence[PairState]) -> tuple[float, list[float]]:
    """Errors in one unit, infinite for a new NaN: relative ones where all have them, else levels."""
    compared = [parent for parent in sources if parent.compared]
    measured = all(parent.error is not None for parent in (state, *compared))

    def size(parent: PairState) -> float:
        if math.isinf(parent.level) or not measured:
            return parent.level
        return parent.error if parent.error is not None and not math.isnan(parent.error) else math.inf

    return size(state), [size(parent) for parent in compared]


def _weights(state: PairState, sources: Sequence[PairState]) -> dict[int, float]:
    """The parts that the pairs above have in what came in, by number; they sum to 1, or nothing came in."""
    numbers = [parent.number for parent in sources if parent.compared]
    sizes = dict(zip(numbers, _sizes(state, sources)[1]))
    infinite = [number for number, size in sizes.items() if math.isinf(size)]
    if infinite:
        return dict.fromkeys(infinite, 1.0 / len(infinite))
    largest = max(sizes.values(), default=0.0)
    if largest <= 0.0:
        return {}
    squares = {number: (size / largest) ** 2 for number, size in sizes.items()}
    total = sum(squares.values())
    return {number: square / total for number, square in squares.items()}
