"""The state of a pair: a few numbers of its row, for root analysis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..judging.replay import is_stated
from ..judging.threshold import is_narrowed
from ..judging.tolerance import CAP, PER_LAYER, cap_of
from ..mapping.fed import BLOCKED
from ..reporting.row import FACTOR, REPLAY, Row
from ..tensors.dtypes import by_name
from .recomputation import NOT_COMPUTED, Recomputation
from .replayed import ACCUMULATED, needed_tolerance, replay_of

DISTANCE = "relative_euclidean_distance"

FAILING = frozenset({"fail", "inherited", "known"})
"""Verdicts of pairs that are beyond their thresholds, whatever is made of it."""


@dataclass(frozen=True, slots=True)
class PairState:
    """Whether a pair was compared, is beyond its thresholds, and by how much.

    `level` is the largest share of an allowed error that was measured, also where it is within its bound:
    infinite for NaN where golden has none. `error` is the relative L2 distance, `None` where it has no value,
    and `allowed` its bound, infinite without one.
    `masked` says that golden has values as a mask puts them: beside them the bound is so wide that passing
    tells little of the others. `stated` says that only statistics were compared, which other tensors may have
    too. `shapes_differ` is that of the row. `input_sentence` is the sentence of a row about what
    the run was fed, empty for all others. `recomputed` is the operator of mine computed again on its own
    inputs. `accumulated` is the T up to which an earlier run took its error for rounding, `None` where it did
    not. `near` says that the error is no more than the rounding of one operator, whatever came before,
    `excused` that the pair passes as a tie or as accumulated rounding. `roundoff` is that of the coarser of
    the float types it was computed in, 0 without one; `quantised` is what rounding to whole steps does to all
    of mine, relative to golden, 0 where mine is not quantised. `needed` is the least T at which the bounds of
    a failing pair hold, infinite where no T decides; `cap` the largest T that may excuse it.
    """

    number: int
    compared: bool
    failing: bool
    level: float
    error: float | None
    name: str
    shapes_differ: bool = False
    input_sentence: str = ""
    masked: bool = False
    stated: bool = False
    recomputed: Recomputation = NOT_COMPUTED
    accumulated: float | None = None
    near: bool = False
    excused: bool = False
    roundoff: float = 0.0
    quantised: float = 0.0
    needed: float = math.inf
    allowed: float = math.inf
    cap: float = CAP

    @property
    def replayed(self) -> str:
        """The outcome of replay for the operator of mine: `right`, `wrong`, or empty."""
        return self.recomputed.outcome

    @classmethod
    def of(cls, row: Row, number: int) -> PairState:
        """The state of the pair `number`, from its row.

        The row of a passing test is asked about twice, by who looks for causes and by who sums up the run:
        both get and keep the same state.
        """
        if _latest and _latest[0][0] is row and _latest[0][1].number == number:
            return _latest[0][1]
        state = cls._of_row(row, number)
        _latest[:] = [(row, state)]
        return state

    @classmethod
    def _of_row(cls, row: Row, number: int) -> PairState:
        error = row.metrics.get(DISTANCE)
        declared = str(row.context.get("declared", ""))
        mine = declared if is_narrowed(row.mine.dtype, declared) else row.mine.dtype
        formats = (by_name(dtype).format for dtype in (row.golden.dtype, mine))
        roundoff = max((fmt.roundoff for fmt in formats if fmt is not None), default=0.0)
        accumulated = row.context.get(ACCUMULATED)
        return cls(
            number,
            row.verdict in FAILING or (row.verdict in ("pass", "tie") and row.after_tie != "wholly"),
            row.verdict in FAILING,
            level_of(row),
            float(error) if isinstance(error, (int, float)) else None,
            row.name,
            row.shapes_differ,
            row.sentence if row.fed else "",
            row.golden.min is not None and row.golden.min <= BLOCKED,
            is_stated(row.statistics),
            replay_of(row) or NOT_COMPUTED,
            accumulated if isinstance(accumulated, float) else None,
            row.verdict == "pass" and isinstance(error, (int, float)) and error <= PER_LAYER * roundoff,
            row.verdict == "tie" or accumulated is not None,
            roundoff,
            _quantised(row),
            needed_tolerance(row) if row.verdict in FAILING else math.inf,
            next((check.allowed for check in row.checks if check.metric == DISTANCE), math.inf),
            cap_of(factor if isinstance(factor := row.context.get(FACTOR), float) else 1.0),
        )


_latest: list[tuple[Row, PairState]] = []
"""The row that was asked about last, and its state."""


def _quantised(row: Row) -> float:
    """The root mean square of rounding to the steps of a quantised type whose range golden fills: a step is
    the largest value over the largest level, and rounding is off by 1 / sqrt(12) of it."""
    rms, largest = row.statistics.get("golden_rms"), row.statistics.get("golden_max_abs")
    levels = 2.0 ** (by_name(row.mine.dtype).bits - 1) - 1 if by_name(row.mine.dtype).kind == "int" else 0.0
    if by_name(row.golden.dtype).format is None or not levels or not rms or not largest:
        return 0.0
    return float(largest) / levels / math.sqrt(12) / float(rms)


def level_of(row: Row) -> float:
    """The largest share of an allowed error that was measured; metrics that are switched off do not count,
    nor what replay measured: that is no error against golden."""
    levels = [check.excess for check in row.checks if not (check.off or check.metric.startswith(REPLAY))]
    return max(levels, default=math.inf if row.verdict in FAILING else 0.0)
