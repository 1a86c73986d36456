"""The whole analysis in one process, without pytest: a plan in, rows with causes and a diagnosis out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..comparison import compare_pair
from ..comparison.tie_reach import AfterTies
from ..judging.judges import Judge
from ..reference.recomputers import recomputer_of
from ..reporting.row import Cause, Row
from ..reporting.view import Diagnosis
from .evidence import PairState, as_accumulated, may_accumulate, with_replay
from .inheritance import Inheritance
from .summary import Ledger

if TYPE_CHECKING:
    from ..mapping.pair import Pair, Plan
    from ..reference.recomputation import Recomputer


def run(plan: Plan, judge_of: Callable[[Pair], Judge] | None = None) -> tuple[list[Row], Diagnosis]:
    """Compare every pair of `plan`, find the causes, and sum up; rows are in execution order.

    `judge_of` gives the judge of a pair, by default one without rules.
    """
    judge = judge_of or (lambda _: Judge())
    make_ties = functools.cache(lambda: AfterTies(plan))
    rows = [
        compare_pair(pair, lambda pair=pair: judge(pair), pair.id, number, make_ties=make_ties)  # type: ignore[misc]
        for number, pair in enumerate(plan.pairs)
    ]
    return diagnose(plan, rows)


def diagnose(
    plan: Plan, rows: Sequence[Row], recomputer: Recomputer | None = None, lifts: bool = True
) -> tuple[list[Row], Diagnosis]:
    """The diagnosis of rows that were compared already, one for each pair in the plan's order.

    `recomputer` computes operators of mine again, by default whoever can without a golden model. Without
    `lifts` no error passes as rounding.
    """
    ledger = Ledger()
    with_causes = explained(plan, rows, recomputer or recomputer_of(plan), lifts)
    for row in with_causes:
        ledger.add(row)
    return with_causes, ledger.diagnosis(plan)


def explained(
    plan: Plan, rows: Sequence[Row], recomputer: Recomputer, lifts: bool, strict: bool = False
) -> list[Row]:
    """The rows of all pairs, those that fail with their causes; `strict` as in `with_cause`."""
    states = [PairState.of(row, number) for number, row in enumerate(rows)]
    inheritance = Inheritance(plan, states.__getitem__, recomputer, lifts)
    decided = [decide(row, state, inheritance) for row, state in zip(rows, states)]
    return [row if cause is None else with_cause(row, cause, strict) for row, cause in decided]


def decide(
    row: Row, state: PairState, inheritance: Inheritance, stored: Cause | None = None
) -> tuple[Row, Cause | None]:
    """The row, which may pass as accumulated rounding, and the cause where it does not: the one that was
    `stored`, if any."""
    if may_accumulate(row) and (lift := inheritance.lift(state)) is not None:
        recomputed = inheritance.recomputed(state)
        return as_accumulated(with_replay(row, recomputed) if recomputed.sources else row, lift), None
    if state.failing:
        return row, stored or inheritance.cause(state)
    return row, inheritance.cause_of_shapes(state)


def with_cause(row: Row, cause: Cause, strict: bool = False) -> Row:
    """A failing row with its cause; an inherited failure gets that verdict, a known difference stays one.

    `strict` says that an inherited failure fails its test all the same.
    """
    if cause.kind == "inherited" and row.verdict in ("fail", "incomparable"):
        return replace(row, verdict="inherited", strict=strict, cause=cause)
    return replace(row, cause=cause)
