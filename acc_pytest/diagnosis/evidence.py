"""The rule of evidence: which pairs agree, and which errors rounding alone can have made.

The inputs of an operator agree only if each was compared with its partner and passed under a bound that is
no excuse (`Standing.SOUND`). What was not compared (unmapped, incomparable, left out after a tie, statistics
alone) does not agree and excuses nothing. Every judge and every sentence about inputs asks `PairEvidence`.

A pair beyond its bound passes only where rounding explains it. With e the measured error of a pair, r the
error of its operator on its own inputs, n the rounding of that operator, and p the pairs it computes from,

    E = hypot(n, share * carried)        share = sqrt(sum E_p^2 / sum e_p^2)

is what rounding has made of it; carried is sqrt(e^2 - r^2) where the operator was computed again and is right
on both sides, so that its result follows from its inputs whatever it amplifies. Where values show what a
tensor is computed from (`known_by_values`), p are these pairs. An operator that was not computed again, or
reads what is not compared, hands on at most the largest e_p: nothing says that it amplifies. An operator that
is wrong, and one below a pair that fails, has no E. So a fault anywhere above makes share small in all that
follows from it, and its error is not excused.

The bounds of the pair may then follow from `T = min(1/4, 2 E)` (`judging.derive`); 2 is the safety factor of
T. A rule's factor raises the 1/4, up to 1/2 (`PairState.cap`). Such a pair is `LIFTED`: its row says so, the
summary counts it, and those below it are held against their own E again, not against inputs that agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..base.forms import Scalar
from ..base.reason import Reason, contains
from ..base.vocabulary import OF_MODULES
from ..comparison.tokens import ExpertCalls
from ..judging.derive import (
    by_tolerance,
    golden_norm,
    is_exact,
    is_zero,
    least_tolerance,
    needed_rounding,
)
from ..judging.replay import context_of, is_stated, measurement_of
from ..judging.threshold import SET, Threshold, is_narrowed
from ..judging.tolerance import CAP, PER_LAYER, SAFETY, cap_of
from ..judging.verdict import Check
from ..mapping.choices import is_choice
from ..mapping.pair import BLOCKED, EXACT
from ..reference.recomputation import NOT_COMPUTED, Recomputation, Recomputer, full_name
from ..reporting.row import FACTOR, REPLAY, TIMES_LIFTED, Row
from ..tensors.dtypes import by_name

if TYPE_CHECKING:
    from ..mapping.pair import Plan


_MODULE_ROUNDINGS = PER_LAYER / SAFETY
"""Units of rounding of an operator that was not computed again: it may be a whole layer."""


class Standing(Enum):
    """The standing of a compared tensor: equal, passing by an excuse, beyond its bound, or not known."""

    SOUND = "sound"
    LIFTED = "lifted"
    DIFFERS = "differs"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a pair's operator: how each that was compared stands, and the names of the others."""

    compared: tuple[Standing, ...]
    not_compared: tuple[str, ...]

    @property
    def agree(self) -> bool:
        """Whether each input was compared and passed under a bound that is no excuse."""
        return not self.not_compared and set(self.compared) == {Standing.SOUND}


@dataclass(frozen=True, slots=True)
class _Error:
    """The measured error of a pair, and how much of it rounding has made; both relative to golden."""

    measured: float
    rounding: float


_NONE = _Error(0.0, 0.0)


class PairEvidence:
    """Evidence that the pairs of a plan are for each other.

    `state` judges a pair, and is `None` for one that does not run; `local` computes operators again. Without
    `lifts` nothing passes as rounding.
    """

    def __init__(
        self, plan: Plan, state: Callable[[int], PairState | None], local: Recomputer, lifts: bool = True
    ) -> None:
        self._lifts = lifts and (plan.mine_kind == "atb" or plan.mine_kind in OF_MODULES)
        self._plan = plan
        self._judged = state
        self._local = local
        self._experts = ExpertCalls(plan)
        self._errors: dict[int, _Error | None] = {}
        self._lifted: set[int] = set()
        self._others: set[int] = set()  # choices that differ within their bound, made by right operators
        self._beyond: dict[int, float] = {}

    def state(self, number: int) -> PairState | None:
        """The state of a pair; a lifted one does not fail."""
        state = self._judged(number)
        if state is not None and state.failing and self.lift(state) is not None:
            return replace(state, failing=False, excused=True)
        return state

    def standing(self, number: int) -> Standing:
        """The standing of a pair's tensor, for those computed from it."""
        state = self.state(number)
        if state is None or not state.compared or state.stated:
            return Standing.NOT_COMPARED
        if state.failing:
            return Standing.DIFFERS
        return Standing.LIFTED if state.excused else Standing.SOUND

    def inputs(self, number: int, parents: Iterable[PairState], passed: Sequence[int]) -> Inputs:
        """The inputs of a pair: the nearest pairs `parents` that were compared, and those `passed` on the way
        to them that were not."""
        standings = {state.number: self.standing(state.number) for state in parents}
        hidden = [number for number, standing in standings.items() if standing is Standing.NOT_COMPARED]
        names = [
            *self._plan.unseen.get(number, ()),
            *map(full_name, self._plan.between.get(number, ())),
            *(self._plan.pairs[pair].mine.name for pair in (*passed, *hidden)),
        ]
        return Inputs(tuple(standings.values()), tuple(dict.fromkeys(names)))

    def lift(self, state: PairState) -> float | None:
        """The T, at most the cap, up to which rounding explains the error of a failing pair; else `None`.

        It is 0 for a pair whose shapes, rows or whole numbers are those of another choice that rounding made.
        """
        if not self._lifts or state.replayed == "wrong":
            return None
        if state.accumulated is not None:
            stored = min(state.cap, state.accumulated)
            needed = min(state.needed, state.needed_of_right) if state.replayed else state.needed
            return stored if not stored or needed <= stored else None
        error = self._error(state.number)
        if state.number not in self._lifted or error is None:
            return None
        return min(state.cap, SAFETY * error.rounding)

    def rounding(self, number: int) -> float:
        """What rounding makes of a failing pair's error, where it is half of it, and more than can be excused
        without a noise profile; else 0."""
        return self._beyond.get(number, 0.0) if self._lifts and not self._error(number) else 0.0

    def _error(self, number: int) -> _Error | None:
        """The error of a pair and what rounding made of it; `None` where nothing shows that."""
        if number not in self._errors and self._plan.parents:
            for pair_number in self._unknown(number):
                self._errors[pair_number] = self._traced(pair_number)
        return self._errors.get(number)

    def _unknown(self, number: int) -> list[int]:
        """A pair and all above it that were not looked at yet; a pair comes after all it computes from."""
        pending, visited = [number], {number}
        for current in pending:
            new = [
                parent
                for parent in self._parents(current)
                if parent not in visited and parent not in self._errors
            ]
            visited.update(new)
            pending += new
        return sorted(visited)

    def _parents(self, number: int) -> Sequence[int]:
        """The pairs through which an error may come to a pair."""
        return () if self._plan.pairs[number].fed in EXACT else self._plan.parents[number]

    def _sources(self, state: PairState) -> tuple[int, ...]:
        """The earlier pairs that a tensor is known to be computed from, and from nothing else."""
        if self._plan.mine_kind == "atb":
            return ()
        recomputed = self.recomputed(state)
        numbers = (recomputed.sources or recomputed.reads).split()
        return tuple(int(text) for text in numbers if text.isdecimal() and int(text) < state.number)

    def _traced(self, number: int) -> _Error | None:
        state = self._judged(number)
        if state is None:
            return None
        if not state.failing and (state.near or state.error == 0.0):
            return _Error(state.error or 0.0, state.error or 0.0)
        parent_errors = [self._errors.get(parent) for parent in self._parents(number)]
        inputs = [error for error in parent_errors if error is not None]
        if len(inputs) < len(parent_errors) or state.replayed == "wrong":
            return None
        if not state.compared and not state.failing:
            chosen = self._chosen(state, verified=False) if state.shapes_differ else None
            return chosen or (_joined(inputs) if inputs else None)
        if self._plan.pairs[number].fed and not inputs:
            return _NONE if not state.failing and state.error is None else None
        source_errors = [self._error(source) for source in self._sources(state)]
        if None in source_errors:
            return None  # it is known to be one, whatever the flow of modules says
        return self._of_operator(state, [error for error in source_errors if error is not None] or inputs)

    def _of_operator(self, state: PairState, inputs: Sequence[_Error]) -> _Error | None:
        """The error of what an operator made of `inputs` whose errors rounding has made."""
        recomputed, verified = self._computed(state)
        if recomputed.outcome == "wrong":
            return None
        if state.error is None or state.shapes_differ or state.whole_numbers:
            return self._chosen(state, verified)
        error = self._explained(state, recomputed, inputs, verified)
        needed = min(state.needed, state.needed_of_right) if verified else state.needed
        if state.failing and needed > min(state.cap, SAFETY * error.rounding):
            if SAFETY * error.rounding >= max(error.measured, state.cap) and not state.profiled:
                self._beyond[state.number] = error.rounding
            return self._chosen(state, verified=False)
        if state.failing:
            self._lifted.add(state.number)
        return error

    def _computed(self, state: PairState) -> tuple[Recomputation, bool]:
        """The operator of a pair on the inputs of mine, and whether its result follows from pairs: it is
        right there and on golden's inputs, and all that it reads was compared."""
        number = state.number
        recomputed = self.recomputed(state)
        if recomputed.outcome != "right":
            return recomputed, False
        sources = self._sources(state)
        golden = recomputed if recomputed.sources else self._local.of_golden(number)
        if golden.outcome == "wrong":
            return golden, False
        if golden.outcome != "right":
            return recomputed, False
        parent_states = map(self._judged, sources or self._parents(number))
        between = () if sources else self._plan.between.get(number, ())
        return recomputed, all(state is not None and state.compared for state in parent_states) and all(
            self._local.of_operator(number, path).outcome == "right" for path in between
        )

    def _explained(
        self, state: PairState, recomputed: Recomputation, inputs: Sequence[_Error], verified: bool
    ) -> _Error:
        """The error of a pair and what rounding made of it; `verified` is that of `_computed`."""
        measured = state.error or 0.0
        arriving = _joined(inputs)
        noise = math.hypot(_rounding_of(recomputed, state), state.quantised)
        carried = math.sqrt(max(0.0, measured**2 - (recomputed.error or 0.0) ** 2)) if verified else measured
        if not verified:
            carried = min(carried, max((error.measured for error in inputs), default=0.0))
        if verified and self._plan.mine_kind == "atb":
            noise = math.hypot(noise, self._local.of_golden(state.number).error or 0.0)
        share = arriving.rounding / arriving.measured if arriving.measured else 0.0
        rounding = math.hypot(noise, share * carried)
        return _Error(measured, rounding if state.failing else min(rounding, measured))

    def recomputed(self, state: PairState) -> Recomputation:
        """The operator of a pair computed again. Rows do not say what only values show of pairs that pass."""
        asked = self._plan.mine_kind == "atb" or (self._lifts and not state.recomputed.outcome)
        return self._local.of_pair(state.number) if asked else state.recomputed

    def _chosen(self, state: PairState, verified: bool) -> _Error | None:
        """The error of whole numbers, other shapes, and rows of one expert: golden's choice, or another that
        rounding made above. Of the latter nothing can be measured. Whole numbers that a right operator made
        of inputs that are off by rounding are such a choice, whatever they count."""
        if not state.failing and not state.shapes_differ:
            if verified and state.whole_numbers and state.error:
                self._others.add(state.number)
            return _NONE
        pair = self._plan.pairs[state.number]
        parents = self._plan.parents[state.number]
        follows = any(
            self._is_another(parent) if is_choice(self._plan.pairs[parent]) else self._has_other_rows(parent)
            for parent in parents
        )
        chooses = verified and (state.whole_numbers or (state.error is None and is_choice(pair)))
        if not chooses and not (follows and (state.shapes_differ or self._experts.holds(pair))):
            return None
        self._lifted.add(state.number)
        return _NONE

    def _has_other_rows(self, number: int) -> bool:
        """Whether a pair has another shape because a choice above is another."""
        state = self._judged(number)
        return number in self._lifted and state is not None and state.shapes_differ

    def _is_another(self, choice: int) -> bool:
        """Whether mine chose otherwise, as a tie or as rounding above lets it."""
        state = self._judged(choice)
        chosen = choice in self._lifted or choice in self._others
        return chosen or (state is not None and state.excused)


def _joined(errors: Sequence[_Error]) -> _Error:
    """The errors of several inputs together: independent ones add their squares."""
    return _Error(
        math.hypot(*(error.measured for error in errors)), math.hypot(*(error.rounding for error in errors))
    )


def _rounding_of(recomputed: Recomputation, state: PairState) -> float:
    """The relative rounding of one operator: as it was measured, else as its bound or its type says.

    One that was not computed again rounds no more than its own T allows, which a noise profile may have set.
    """
    if recomputed.outcome == "right" and recomputed.noise is not None:
        return recomputed.noise
    if recomputed.outcome == "right" and recomputed.allowed is not None:
        return recomputed.allowed / PER_LAYER
    return min(_MODULE_ROUNDINGS * state.roundoff, state.allowed / SAFETY)


# The state of a pair: a few numbers of its row, for root analysis.


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
    a failing pair hold, infinite where no T decides, `needed_of_right` the same where its operator is
    right on its own inputs; `cap` the largest T that may excuse it. `profiled` says that a noise run tells
    how far right runs are off there, `whole_numbers` that both sides are whole numbers or truth values.
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
    needed_of_right: float = math.inf
    allowed: float = math.inf
    cap: float = CAP
    profiled: bool = False
    whole_numbers: bool = False

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
        types = by_name(row.golden.dtype), by_name(mine)
        roundoff = max((dtype.format.roundoff for dtype in types if dtype.format is not None), default=0.0)
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
            needed_tolerance(row, True) if row.verdict in FAILING else math.inf,
            next((check.allowed for check in row.checks if check.metric == DISTANCE), math.inf),
            cap_of(factor if isinstance(factor := row.context.get(FACTOR), float) else 1.0),
            row.metrics.get("noise_error") is not None,
            all(dtype.is_exact for dtype in types),
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


# Outcomes of replay in rows: checks beside those against golden, and the way back.
#
# It is kept in the row's context, so that a row can be judged again without the tensors.


ACCUMULATED = f"{REPLAY}accumulated"
"""In the context of a row that passes as accumulated rounding: the T of its bounds, 0 for a choice."""
_FOLLOW_FROM_T = frozenset({
    "relative_euclidean_distance", "cosine_similarity", "max_absolute_error", "typical_row_error",
    "worst_row_error", "worst_channel_error", "bulk_error", "bias", "last_row_error",
})  # fmt: skip
_WORDS = ("outcome", "why", "reason", "note", "lacking", "culprit", "sources", "reads")
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_WORDS, (str,)),
    **{one.name: (float, int, type(None)) for one in fields(Recomputation) if one.name not in _WORDS},
}
_WHAT = {
    "error": "",
    "row_error": "the worst row; ",
    "typical_row_error": "rows that weigh alike; ",
    "bias": "too large or small as a whole, beside u/4 and 4 standard errors; ",
    "part_bias": "a sixteenth of the channels too large or small; ",
    "golden_error": "with golden's weights and numbers; ",
}
"""What a measure is of, before the reason for its bound."""


def with_replay(row: Row, recomputed: Recomputation) -> Row:
    """The row of a pair with what became of the operator of mine on its own inputs."""
    values = {field.name: getattr(recomputed, field.name) for field in fields(recomputed)}
    entries: dict[str, Scalar] = {
        REPLAY + name: value for name, value in values.items() if value is not None and value != ""
    }
    return as_replayed(replace(row, context={**row.context, **entries}))


def judged_by_replay(row: Row, recomputed: Recomputation) -> Row:
    """The row of an operator that nothing but replay judges."""
    if not recomputed.outcome:
        why = Reason("not computed again: {}", recomputed.why)
        row = replace(row, verdict="incomparable", sentence=why, reasons=(why,), skipped=True)
    else:
        sentence: str = "the operator is right on its own inputs"
        if recomputed.error is not None:
            sentence = Reason("{}: {}", sentence, Reason("relative L2 error {:.3g}", recomputed.error))
        row = replace(row, verdict="pass", sentence=sentence)
    return with_replay(row, recomputed)


def replay_of(row: Row) -> Recomputation | None:
    """The outcome of replay for the pair; `None` where the run was without, or its file is broken."""
    if row.replayed is None:
        return None
    values: dict[str, Any] = {
        name: row.context[REPLAY + name] for name in _KINDS if REPLAY + name in row.context
    }
    sound = all(isinstance(value, _KINDS[name]) for name, value in values.items())
    if not values or not sound or values.get("outcome", "") not in ("", "right", "wrong"):
        return None
    return Recomputation(**values)


def stored_replay(row: Row) -> Recomputation | None:
    """The outcome for the operator of a row of an earlier run: by replay, or from looking for its cause."""
    replay = replay_of(row)
    if replay is not None or row.cause is None or not row.cause.local:
        return replay
    return Recomputation(row.cause.local, row.cause.local_error)


def as_replayed(row: Row) -> Row:
    """A row with the checks of what its context says of replay. Wrong on its own inputs fails, whatever the
    comparison with golden says.
    """
    replay = replay_of(row)
    if replay is None:
        return row
    checks = (*(check for check in row.checks if not check.metric.startswith(REPLAY)), *_checks(replay))
    if replay.outcome != "wrong":
        note = replay.note if replay.outcome else Reason("not computed again: {}", replay.why)
        return _noted(replace(row, checks=checks), note)
    sentence = replay.sentence
    reasons = tuple(reason for reason in row.reasons if reason != sentence)
    failing = replace(
        row, verdict="fail", skipped=False, sentence=sentence, checks=checks, reasons=(sentence, *reasons)
    )
    return _noted(failing, replay.note)


def _noted(row: Row, note: str) -> Row:
    present = not note or note in (*row.notes, *row.reasons)
    return row if present else replace(row, notes=(*row.notes, note))


def may_accumulate(row: Row) -> bool:
    """Whether a row fails by derived thresholds alone: a bound that somebody has set is meant, and what a
    gate finds (`baseline.mismatches`) is no rounding. Its shapes may differ because rounding has changed a
    choice."""
    if row.verdict == "incomparable":
        return row.shapes_differ and not row.fed
    failing = [check for check in row.checks if not check.passed]
    return row.verdict == "fail" and not any("." in c.metric or contains(c.reason, SET) for c in failing)


def needed_tolerance(row: Row, is_right: bool = False) -> float:
    """The least T at which the bounds of a failing row hold; infinite where no T decides: NaN, zeros, whole
    numbers, statistics alone, metrics of the user's own. `is_right` asks for the bounds of an operator that
    is right on its own inputs, all of which were compared."""
    if not may_accumulate(row) or is_stated(row.statistics):
        return math.inf
    failing = {check.metric for check in row.checks if not check.passed}
    try:
        measurement = measurement_of(row.statistics)
    except (KeyError, TypeError, ValueError):
        return math.inf
    if is_exact(measurement) or is_zero(measurement) or not failing <= _FOLLOW_FROM_T:
        return math.inf
    last = (measurement.slices.last_row_error or 0.0) * ("last_row_error" in failing)
    bias = PER_LAYER * needed_rounding(measurement)
    bias = min(bias, abs(measurement.slices.bias or 0.0)) if is_right else bias
    return max(least_tolerance(measurement, is_right), bias, last / SAFETY)


def _is_right(row: Row) -> bool:
    """Whether the operator is right on its own inputs. Its error is that of these then: it may be in one
    element, where large values cancel each other, or in one direction, as of a sharper softmax."""
    replay = replay_of(row)
    return replay is not None and replay.outcome == "right"


def as_accumulated(row: Row, t: float) -> Row:
    """A failing row whose error is rounding that has accumulated, up to T `t`: bounds that do not hold follow
    from that. A row that cannot be held against a T has other rows or numbers, which rounding chose: a tie.
    """
    context: dict[str, Scalar] = {**row.context, ACCUMULATED: t}
    if not t:
        return replace(
            row,
            verdict="tie",
            sentence=Reason("{}: a choice above differs by rounding that has accumulated", row.sentence),
            context=context,
            checks=tuple(check if check.passed else check._replace(passed=True) for check in row.checks),
        )
    reason = Reason(
        "T = {:.3g}: rounding that has accumulated, {:g} times what the operators up to here make", t, SAFETY
    )
    measurement = measurement_of(row.statistics)
    thresholds = by_tolerance(context_of(row.context), measurement, t, reason)
    of_last = Threshold("last_row_error", SAFETY * t, False, reason)  # as a typical row
    lifted = {threshold.metric: threshold for threshold in (*thresholds, of_last)}
    if _is_right(row):
        norm = golden_norm(measurement)
        in_one = Reason("T times |golden| = {:.3g}: the error may be in one element; {}", norm, reason)
        directed = Reason("T: the error may be in one direction; {}", reason)
        wide = {"max_absolute_error": (t * norm, in_one), "bias": (t, directed)}
        for check in row.checks:
            if check.metric in wide and not lifted[check.metric].allows(check.measured):
                bound, why = wide[check.metric]
                lifted[check.metric] = lifted[check.metric]._replace(bound=bound, reason=why)
    checks = tuple(
        check if check.passed else Check.of(_with_bound(lifted[check.metric], check), check.measured)
        for check in row.checks
    )
    times = max(check.excess for check in row.checks if not check.passed)
    sentence = Reason("rounding that has accumulated, {:.3g} times the bound without it: {}", times, reason)
    return replace(
        row,
        verdict="pass",
        sentence=sentence,
        checks=checks,
        reasons=(),
        notes=(*row.notes, sentence),
        context={**context, TIMES_LIFTED: times},
    )


def _with_bound(threshold: Threshold, check: Check) -> Threshold:
    return threshold._replace(reason=Reason("{} (else {})", threshold.reason, check.bound))


def _checks(replay: Recomputation) -> Iterator[Check]:
    measured = replay.measured
    for name, (error, allowed) in measured.items():
        yield _check(name, error, allowed, Reason("{}{}", _WHAT[name], replay.reason))
    beyond = any(error > allowed for error, allowed in measured.values())
    if replay.outcome == "wrong" and not beyond:
        yield _check("wrong", 1.0, 0.0, replay.why or replay.reason)


def _check(name: str, measured: float, allowed: float, reason: str) -> Check:
    return Check(REPLAY + name, measured, allowed, False, reason, measured <= allowed)
