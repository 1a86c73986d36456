"""A stored row under other thresholds: the same numbers, judged again, without its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..comparison import Judge
from ..comparison.rows import NAN_REASONS, incomparable, judged
from ..errors import AccError, Incomparable
from ..judging import Judgement, judge, judge_statistics, thresholds_for, thresholds_for_statistics
from ..judging.catalogue import METRICS
from ..judging.replay import context_of, is_stated, measurement_of, stated_of
from ..judging.threshold import Threshold
from ..metrics.measurement import Measurement
from ..reporting.row import Row

NOTE_STARTS = ("baseline: ", "known: ")
"""What the notes of gates begin with; they are made anew."""


def rejudge(row: Row, make_judge: Callable[[], Judge]) -> Row:
    """The row as `make_judge` judges it, with the custom metrics as they were measured.

    A row without statistics was incomparable, or is not a pair's, and stays as it is. What cannot be judged
    without the tensors becomes incomparable with the reason, never a pass.
    """
    clean = replace(
        row,
        cause=None,
        strict=False,
        levels={},
        notes=tuple(n for n in row.notes if not n.startswith(NOTE_STARTS)),
    )
    if not row.statistics:
        return clean
    try:
        judgement = _judgement(row, make_judge())
    except Incomparable as error:
        return incomparable(clean, f"cannot be judged without data: {error}")
    except AccError as error:
        return incomparable(clean, str(error))
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return incomparable(clean, f"cannot be judged without data: its statistics are not whole ({error})")
    found = NAN_REASONS.values()
    messages = [one for one in row.reasons if one.startswith(tuple(f"{name}: " for name in row.custom))]
    return judged(clean, judgement, before=[r for r in row.reasons if r in found], after=messages)


def _judgement(row: Row, judge_: Judge) -> Judgement:
    """The judgement of the stored numbers. Raises `Incomparable` where they are not enough."""
    context = context_of(row.context)
    if is_stated(row.statistics):
        stated = stated_of(row.statistics)
        return judge_statistics(stated, thresholds_for_statistics(context, stated, judge_.rules))
    measurement = measurement_of(row.statistics, _custom(row))
    thresholds = thresholds_for(context, measurement, judge_.rules, judge_.standard)
    for threshold in thresholds:
        _refuse_unmeasured(threshold, measurement)
    return judge(measurement, thresholds)


def _custom(row: Row) -> Mapping[str, tuple[float | str, str]]:
    """The values of the user's own metrics; their messages are among the row's reasons."""
    return {name: (math.nan if value is None else value, "") for name, value in row.custom.items()}


def _refuse_unmeasured(threshold: Threshold, measurement: Measurement) -> None:
    name = threshold.metric
    if name not in METRICS and name not in measurement.custom and not threshold.off:
        raise Incomparable(f"the metric {name} was not measured when the rows were written")
