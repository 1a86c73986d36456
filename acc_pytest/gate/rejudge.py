"""A stored row under other thresholds: the same numbers, judged again, without its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..base.forms import Scalar
from ..base.reason import Reason, arguments
from ..base.vocabulary import number
from ..comparison.choices import as_tie
from ..comparison.rows import MESSAGE, NAN_REASONS, incomparable, judged, measured_row
from ..diagnosis.evidence import as_replayed
from ..errors import AccError, Incomparable
from ..judging.judges import Judge
from ..judging.replay import ROWS_OFF, context_of, is_stated, measurement_of, replicas_of, stated_of
from ..judging.statistics import judge_statistics, thresholds_for_statistics
from ..judging.thresholds import thresholds_for
from ..judging.verdict import Judgement, judge
from ..metrics.measurement import METRICS
from ..reporting.row import WORST_OF, Row
from .baseline import OTHER_KIND, PREFIX
from .known import NOT_ACCEPTED

_CUSTOM = "custom."
_TEXTS = ("shape", "golden_dtype", "mine_dtype", "slices.worst_row", "slices.worst_channel", ROWS_OFF)
_WHOLES = ("numel", "compared", "near_zero", "beyond_tolerance")


def rejudge(row: Row, make_judge: Callable[[], Judge]) -> Row:
    """The row as `make_judge` judges it, with the custom metrics as they were measured.

    A row without statistics was incomparable, or is not a pair's, and stays as it is. What cannot be judged
    without the tensors becomes incomparable with the reason, never a pass.
    """
    clean = replace(row, cause=None, strict=False, levels={}, notes=_notes(row, OTHER_KIND, NOT_ACCEPTED))
    if row.shapes_differ and not row.fed:
        # That it follows from what the run was fed is found again, or not.
        return as_replayed(incomparable(clean, row.reason, row.skipped))
    if not row.statistics:
        return as_replayed(clean)
    try:
        judge_ = make_judge()
        worst, *replicas = replicas_of(row.statistics)
        # The row under the rules of `judge_`, with the numbers it has.
        judgement = _judgement(clean, worst, clean.custom, judge_)
        nan_reasons = NAN_REASONS.values()
        messages = [r for r in clean.reasons if (arguments(r, MESSAGE) or ("",))[0] in clean.custom]
        again = judged(
            clean, judgement, before=[r for r in clean.reasons if r in nan_reasons], after=messages
        )
        rows = [as_tie(again), *(_replica(clean, replica, judge_) for replica in replicas)]
    except Incomparable as error:
        return incomparable(clean, Reason("cannot be judged without data: {}", str(error)))
    except AccError as error:
        return incomparable(clean, str(error))
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        why = Reason("its statistics are not whole ({})", error)
        return incomparable(clean, Reason("cannot be judged without data: {}", why))
    return as_replayed(max(rows, key=lambda judged_row: (judged_row.red, judged_row.excess)))


def ungated(row: Row) -> Row:
    """A row that is not judged again, as its own bounds left it: without what gates made of it."""
    checks = tuple(check for check in row.checks if not check.metric.startswith(PREFIX))
    clean = replace(row, checks=checks, notes=_notes(row, OTHER_KIND, NOT_ACCEPTED))
    failing = [check for check in checks if not check.passed]
    if row.verdict == "known" and failing:
        worst = max(failing, key=lambda check: check.excess)
        measured = "undefined" if worst.measured is None else number(worst.measured)
        sentence = Reason("{} {} is not {}", worst.metric, measured, worst.bound)
        return replace(clean, verdict="fail", sentence=sentence, reasons=(sentence,))
    if row.verdict in ("fail", "known") and checks and not failing:
        return replace(clean, verdict="pass", sentence=Reason("all {} bounds hold", len(checks)), reasons=())
    return clean


def _notes(row: Row, *codes: str) -> tuple[str, ...]:
    """The notes of a row, without those of the templates `codes`."""
    return tuple(note for note in row.notes if all(arguments(note, code) is None for code in codes))


def _replica(row: Row, statistics: Mapping[str, Scalar], judge_: Judge) -> Row:
    """The row of another replica, which was not the worst when it was measured."""
    custom = {name[len(_CUSTOM) :]: value for name, value in statistics.items() if name.startswith(_CUSTOM)}
    judgement = _judgement(row, statistics, custom, judge_)
    notes = (*_notes(row, WORST_OF), "another of its replicas")
    if is_stated(statistics):
        return judged(row, judgement, metrics=dict(stated_of(statistics).values), notes=notes)
    measured = measurement_of(statistics, _custom(custom))
    return measured_row(row, context_of(row.context), measured, judgement, notes)


def _judgement(
    row: Row, statistics: Mapping[str, Scalar], custom: Mapping[str, Scalar], judge_: Judge
) -> Judgement:
    """The judgement of stored numbers. Raises `Incomparable` where they are not enough."""
    _check_kinds(statistics)
    context = context_of(row.context)
    if is_stated(statistics):
        stated = stated_of(statistics)
        return judge_statistics(
            stated, thresholds_for_statistics(context, stated, judge_.rules, judge_.standard)
        )
    measurement = measurement_of(statistics, _custom(custom))
    thresholds = thresholds_for(context, measurement, judge_.rules, judge_.standard)
    for name in (threshold.metric for threshold in thresholds if not threshold.off):
        if name not in METRICS and name not in measurement.custom:
            raise Incomparable(Reason("the metric {} was not measured when the rows were written", name))
    return judge(measurement, thresholds)


def _check_kinds(statistics: Mapping[str, Scalar]) -> None:
    """Raise `TypeError` for a statistic of a kind it never is: files of rows may come from anywhere."""
    for name, value in statistics.items():
        if name.startswith(_CUSTOM):
            continue
        if name in _TEXTS:
            right = type(value) is str
        elif name in _WHOLES or name.startswith("nonfinite."):
            right = type(value) is int and value >= 0
        else:
            right = value is None or type(value) in (bool, int, float)
        if not right:
            raise TypeError(f"{name:.100} is {value!r:.100}")


def _custom(values: Mapping[str, Scalar]) -> dict[str, tuple[float | str, str]]:
    """The values of the user's own metrics; their messages are among the row's reasons."""
    return {name: (math.nan if value is None else value, "") for name, value in values.items()}
