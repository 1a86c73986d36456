"""One mapped pair, or any two tensors, in; one `Row` out. Runs in the process that runs the test.

Whatever is wrong with the input of a pair (a cut file, shapes that do not agree, a threshold that
makes no sense) becomes the row's reason: a comparison never raises for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .errors import AccError, NoPayload
from .judging import JudgeContext, Judgement, judge, thresholds_for
from .judging.threshold import ThresholdRule
from .mapping.pair import Operand, Pair
from .mapping.reconcile import open_pair
from .metrics import measure
from .metrics.measurement import METRICS, Measurement
from .reporting.row import Check, Row, Side, Worst, native

if TYPE_CHECKING:
    from .tensors.source import Source

NAN_REASONS = {"golden": "golden_data includes NAN or inf.", "mine": "my_data includes NAN or inf."}
"""Words of the old tool's `cmp_fail_reason`, which people's scripts look for."""


@dataclass(frozen=True, slots=True)
class Judge:
    """What is needed to judge tensors: rules (weakest first) and the custom metrics in use."""

    rules: tuple[ThresholdRule, ...] = ()
    custom: tuple[Any, ...] = ()

    def tensors(self, context: JudgeContext, golden: Source, mine: Source) -> tuple[Measurement, Judgement]:
        """Measure and judge two sources of one shape. Raises `AccError` for what cannot be judged."""
        measurement = measure(golden, mine, custom=self.custom)
        return measurement, judge(measurement, thresholds_for(context, measurement, self.rules))


def compare_pair(pair: Pair, make_judge: Callable[[], Judge], test_id: str, number: int) -> Row:
    """Open, measure and judge a pair. `number` is its place in the plan.

    `make_judge` may raise `AccError` (a marker or hook that makes no sense), which is a reason too.

    Replicas (one tensor per rank, all of which should be equal) are judged one by one; the row is
    that of the worst, and its notes say which one it is.
    """
    row = pair_row(pair, test_id, number)

    def compared() -> Row:
        judge_ = make_judge()
        if _is_statistics(pair):
            from .statistics_comparison import compare_statistics

            return compare_statistics(pair, row, judge_.rules)
        opened = open_pair(pair)
        rows = []
        for comparison in opened.comparisons:
            context = JudgeContext.of(pair, _length(comparison.golden))
            measurement, judgement = judge_.tensors(context, comparison.golden, comparison.mine)
            notes = opened.notes
            if comparison.label:
                notes += (f"{comparison.label}, the worst of {len(opened.comparisons)} replicas",)
            rows.append(_filled(row, measurement, judgement, notes))
        return max(rows, key=lambda one: (one.red, one.excess))

    return _or_reason(row, compared)


def pair_row(pair: Pair, test_id: str, number: int) -> Row:
    """The row of a pair that was not compared yet: everything but numbers and a verdict."""
    return Row(
        test_id=test_id,
        verdict="incomparable",
        sentence="",
        number=number,
        step=pair.step,
        rank="" if pair.rank is None else str(pair.rank),
        level=pair.level,
        layer=pair.layer,
        policy=pair.policy,
        mapping_reason=pair.reason,
        golden=_side(pair.golden),
        mine=_side(pair.mine),
    )


def compare_tensors(
    golden: Source, mine: Source, make_judge: Callable[[], Judge], test_id: str, name: str
) -> Row:
    """Measure and judge any two tensors; shapes that differ make them incomparable.

    `name` says what they are, where the test compares more than one thing.
    """
    row = Row(test_id, "incomparable", "", golden=_described(golden, name), mine=_described(mine, name))

    def compared() -> Row:
        if tuple(golden.shape) != tuple(mine.shape):
            return incomparable(
                row, f"data shape doesn't match: golden {list(golden.shape)}, mine {list(mine.shape)}"
            )
        context = JudgeContext(id=name, golden_name=name, mine_name=name, length=_length(golden))
        return _filled(row, *make_judge().tensors(context, golden, mine))

    return _or_reason(row, compared)


def incomparable(row: Row, reason: str, skipped: bool = False) -> Row:
    """The row of a pair that could not be judged, and why."""
    return replace(row, verdict="incomparable", sentence=reason, reasons=(reason,), skipped=skipped)


def judged(
    row: Row, judgement: Judgement, before: Sequence[str] = (), after: Sequence[str] = (), **measured: Any
) -> Row:
    """The row with the verdict, its sentence, every check, and the other fields in `measured`.

    The reasons are the sentence, if it is that of a failure, with those given `before` and `after` it.
    """
    checks = tuple(
        Check(
            check.metric,
            check.measured,
            check.threshold.bound,
            check.threshold.at_least,
            check.threshold.reason,
            check.ok,
        )
        for check in judgement.checks
    )
    said = (judgement.sentence,) if judgement.verdict == "fail" else ()
    return replace(
        row,
        verdict=judgement.verdict,
        sentence=judgement.sentence,
        checks=checks,
        reasons=(*before, *said, *after),
        **measured,
    )


def _side(operand: Operand) -> Side:
    """Names, files, dtype and shape of an operand; the latter two as far as its files can be read."""
    dtypes, shapes = [], []
    for ref in operand.refs:
        try:
            header = ref.header()
        except (AccError, OSError):
            continue
        dtypes.append(f"torch.{header.dtype.name}")
        shapes.append(str(list(header.shape)))
    return Side(
        node=operand.node,
        name=operand.name,
        op_type=operand.op_type,
        slot=operand.slot,
        path=";".join(os.path.abspath(str(ref)) for ref in operand.refs),
        dtype=_joined(dtypes),
        shape=_joined(shapes),
    )


def _joined(texts: Sequence[str]) -> str:
    """One text where all shards agree, all of them otherwise."""
    return texts[0] if len(set(texts)) == 1 else ";".join(texts)


def _described(source: Source, name: str) -> Side:
    return Side(name=name, dtype=str(source.dtype), shape=str(list(source.shape)))


def _length(golden: Source) -> int | None:
    return int(golden.shape[-1]) if golden.shape else None


def _is_statistics(pair: Pair) -> bool:
    """Whether a side holds statistics only. A header that cannot be read is reported when opened."""
    try:
        return any(ref.header().payload == "statistics" for ref in (*pair.golden.refs, *pair.mine.refs))
    except (AccError, OSError):
        return False


def _or_reason(row: Row, compared: Callable[[], Row]) -> Row:
    try:
        return compared()
    except NoPayload as error:
        return incomparable(row, str(error), skipped=True)
    except (AccError, OSError) as error:
        return incomparable(row, str(error))


def _filled(row: Row, measurement: Measurement, judgement: Judgement, notes: tuple[str, ...] = ()) -> Row:
    m, counts = measurement, measurement.nonfinite
    reasons = []
    if counts.golden_nan or counts.golden_inf:
        reasons.append(NAN_REASONS["golden"])
    if counts.mine_nan or counts.mine_inf:
        reasons.append(NAN_REASONS["mine"])
    messages = [f"{name}: {said}" for name, (_, said) in m.custom.items() if said]
    worst = Worst()
    if m.worst is not None:
        worst = Worst(str(list(m.worst.index)), _element(m.worst.golden), _element(m.worst.mine))
    return judged(
        row,
        judgement,
        before=reasons,
        after=messages,
        golden=replace(row.golden, max=m.golden_max, min=m.golden_min, mean=m.golden_mean),
        mine=replace(row.mine, max=m.mine_max, min=m.mine_min, mean=m.mine_mean),
        metrics=_metrics(m),
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
        custom={name: native(value) for name, (value, _) in m.custom.items()},
        worst=worst,
        notes=notes,
    )


def _metrics(m: Measurement) -> Mapping[str, float | None]:
    found: dict[str, float | None] = {name: getattr(m, name) for name in METRICS}
    found["mean_error"] = m.mean_error
    found["beyond_fraction"] = m.beyond_fraction
    return found


def _element(value: object) -> Any:
    return value if isinstance(value, (bool, int, float)) else str(value)
