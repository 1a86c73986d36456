"""Rows as they are made: of a pair before it was compared, of a measurement, of a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..base.forms import Scalar
from ..base.reason import Reason, contains
from ..errors import AccError
from ..judging.replay import (
    context_scalars,
    is_stated,
    measurement_of,
    replicas_of,
    statistics_scalars,
    with_replicas,
)
from ..judging.threshold import LAYERS_BEFORE, JudgeContext, RowLevel
from ..judging.verdict import Judgement
from ..mapping.pair import Operand, Pair
from ..metrics.measurement import COLUMN_METRICS, SLICE_METRICS, Measurement
from ..reporting.row import FACTOR, Row, RowSide, WorstElement, native, place

NAN_REASONS = {"golden": "golden_data includes NAN or inf.", "mine": "my_data includes NAN or inf."}
"""Words of the old tool's `cmp_fail_reason`, which people's scripts look for."""

MESSAGE = "{}: {}"
"""A message of a metric of the user's: its name, and what it says."""
ROW_METRICS = (*COLUMN_METRICS, "mean_error", "beyond_fraction")


def pair_row(pair: Pair, test_id: str, number: int) -> Row:
    """The row of a pair that was not compared yet: everything but numbers and a verdict."""
    return Row(
        test_id=test_id,
        verdict="incomparable",
        sentence="",
        number=number,
        step=pair.step,
        rank="" if pair.rank is None else str(pair.rank),
        graph=pair.graph,
        level=pair.level,
        layer=pair.layer,
        policy=pair.policy,
        mapping_reason=pair.reason,
        golden=_side(pair.golden),
        mine=_side(pair.mine),
        fed=pair.fed,
    )


def incomparable(row: Row, reason: str, skipped: bool = False) -> Row:
    """The row of a pair that could not be judged, and why."""
    return replace(row, verdict="incomparable", sentence=reason, reasons=(reason,), skipped=skipped)


def judged(
    row: Row, judgement: Judgement, before: Sequence[str] = (), after: Sequence[str] = (), **measured: Any
) -> Row:
    """The row with the verdict, its sentence, every check, and the other fields in `measured`.

    The reasons are the sentence, if it is that of a failure, with those given `before` and `after` it.
    """
    failure = (judgement.sentence,) if judgement.verdict == "fail" else ()
    return replace(
        row,
        verdict=judgement.verdict,
        sentence=judgement.sentence,
        checks=judgement.checks,
        reasons=(*before, *failure, *after),
        **measured,
    )


def measured_row(
    row: Row,
    context: JudgeContext,
    measurement: Measurement,
    judgement: Judgement,
    notes: tuple[str, ...] = (),
) -> Row:
    """The row of a measurement and what was judged of it, in which context."""
    m, counts = measurement, measurement.nonfinite
    nonfinite = {"golden": counts.golden_nan or counts.golden_inf, "mine": counts.mine_nan or counts.mine_inf}
    return judged(
        row,
        judgement,
        before=[NAN_REASONS[side] for side, count in nonfinite.items() if count],
        after=messages_of(m),
        metrics={name: m.value(name) for name in ROW_METRICS} | _slices(m) | _noise(context),
        counts={
            "elements": m.numel,
            "near_zero": m.near_zero,
            "mismatches": m.mismatches,
            "beyond_tolerance": m.beyond_tolerance,
            "golden_nan": counts.golden_nan,
            "golden_inf": counts.golden_inf,
            "my_nan": counts.mine_nan,
            "my_inf": counts.mine_inf,
            "common_nan": counts.common_nan,
            "common_inf": counts.common_inf,
        },
        notes=notes,
        statistics=statistics_scalars(m),
        context=context_scalars(context) | ({} if judgement.factor == 1.0 else {FACTOR: judgement.factor}),
        **measured_fields(row, m),
    )


def messages_of(m: Measurement) -> list[str]:
    """Messages of the user's metrics, beside their numbers."""
    return [Reason(MESSAGE, name, message) for name, (_, message) in m.custom.items() if message]


def measured_fields(row: Row, m: Measurement) -> dict[str, Any]:
    """The fields of every measured row: extrema of both sides, the worst element, the user's metrics."""
    worst = WorstElement()
    if m.worst is not None:
        worst = WorstElement(str(list(m.worst.index)), _element(m.worst.golden), _element(m.worst.mine))
    return {
        "golden": replace(row.golden, max=m.golden_max, min=m.golden_min, mean=m.golden_mean),
        "mine": replace(row.mine, max=m.mine_max, min=m.mine_min, mean=m.mine_mean),
        "custom": {name: native(value) for name, (value, _) in m.custom.items()},
        "worst": worst,
    }


def worst_replica(rows: Sequence[Row]) -> Row:
    """The row of several replicas of a tensor: that of the worst, with what judging saw of the others.

    Under other thresholds another one may be the worst. Replicas with equal numbers are kept once.
    """
    if len(rows) == 1:
        return rows[0]
    worst = max(rows, key=lambda row: (row.red, row.excess))
    replicas: dict[str, dict[str, Scalar]] = {}
    for row in rows:
        custom = {f"custom.{name}": value for name, value in row.custom.items()}
        replicas.setdefault(repr((row.statistics, custom)), {**row.statistics, **custom})
    replicas.pop(repr((worst.statistics, {f"custom.{n}": value for n, value in worst.custom.items()})))
    if not replicas:
        return worst
    return replace(worst, statistics=with_replicas(worst.statistics, replicas.values()))


def exceeds_layers_before(row: Row) -> bool:
    """Whether a pair is beyond a bound that the layers before give, or may raise."""
    return any(
        not check.passed and (check.metric == "bias" or contains(check.reason, LAYERS_BEFORE))
        for check in row.checks
    )


def row_errors(row: Row) -> RowLevel | None:
    """The errors of rows of one whole tensor that passes; `None` where they are of a part, or of replicas."""
    if row.verdict != "pass" or row.after_tie or is_stated(row.statistics):
        return None
    replicas = replicas_of(row.statistics)
    return RowLevel.of(measurement_of(row.statistics)) if len(replicas) == 1 and replicas[0] else None


def _slices(m: Measurement) -> dict[str, float | None]:
    """The errors of rows and channels of a tensor that has enough of them."""
    return {} if m.slices.bias is None else {name: m.value(name) for name in SLICE_METRICS}


def _noise(context: JudgeContext) -> dict[str, float | None]:
    """The errors of the noise run of this tensor; none without one."""
    if context.noise_error is None:
        return {}
    return {"noise_error": context.noise_error, "noise_max_absolute_error": context.noise_max_absolute_error}


def _element(value: object) -> Any:
    return value if isinstance(value, (bool, int, float)) else str(value)


def _side(operand: Operand) -> RowSide:
    """Names, files, dtype and shape of an operand; the latter two as far as its files can be read."""
    dtypes, shapes = [], []
    for ref in operand.refs:
        try:
            header = ref.header()
        except (AccError, OSError):
            continue
        dtypes.append(f"torch.{header.dtype.name}")
        shapes.append(str(list(header.shape)))
    return RowSide(
        node=operand.node,
        name=operand.name,
        op_type=operand.op_type,
        slot=operand.slot,
        path=";".join(place(ref) for ref in operand.refs),
        dtype=_joined(dtypes),
        shape=_joined(shapes),
    )


def _joined(texts: Sequence[str]) -> str:
    """One text where all shards agree, all of them otherwise."""
    return texts[0] if len(set(texts)) == 1 else ";".join(texts)
