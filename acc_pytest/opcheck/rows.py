"""Rows of single-operator checks: what was measured and judged, as the reports want it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import torch

from ..metrics.measurement import METRICS, Measurement
from ..reporting.row import Check, Row, RowSide, WorstElement, number
from ..tensors.dtypes import by_torch
from .case import Case
from .errors_of import Errors
from .golden import Expected
from .standards import Judged

PASS, FAILED, SKIPPED = "PASS", "FAILED", "SKIPPED"
"""Words of the old result sheet, and ours for what could not be judged."""


def case_row(case: Case, standard: str, test_id: str, running: int) -> Row:
    """The row of a case before anything was computed."""
    side = RowSide(node=case.ids, name=case.full_name, op_type=case.name)
    return Row(
        test_id=test_id,
        verdict="incomparable",
        sentence="",
        number=running,
        step=case.step if case.step >= 0 else "",
        level="operation",
        mine=replace(side, path=case.directory),
        case={
            "op_id": case.ids,
            "op_name": case.name,
            "op_param": json.dumps(case.param, ensure_ascii=False, separators=(",", ":"), default=str),
            "tensor_path": case.directory or case.source,
            "out_tensor_id": None,
            "precision_standard": "",
            "precision_result": FAILED,
            "standard": standard,
            "source": case.source,
        },
    )


def unjudged(row: Row, reason: str, skipped: bool = False) -> Row:
    """The row of a case, or of one output, that could not be judged, and why."""
    case = {**row.case, "precision_result": SKIPPED if skipped else FAILED}
    return replace(
        row, verdict="incomparable", sentence=reason, reasons=(reason,), skipped=skipped, case=case
    )


def described(row: Row, expected: Expected) -> Row:
    """The row with the slot, files, dtypes and shapes of one output."""
    mine = expected.mine
    golden_side = RowSide(
        name=row.mine.name,
        slot=expected.slot,
        dtype=str(expected.golden.dtype),
        shape=str(list(expected.golden.shape)),
    )
    mine_side = replace(
        row.mine,
        slot=expected.slot,
        path=expected.path,
        dtype="" if mine is None else str(mine.dtype),
        shape="" if mine is None else str(list(mine.shape)),
    )
    return replace(
        row,
        number=None if row.number is None else row.number + expected.number,
        golden=golden_side,
        mine=mine_side,
        case={**row.case, "out_tensor_id": expected.number},
    )


def judged_row(
    row: Row,
    expected: Expected,
    errors: Errors,
    judged: Judged,
    measurement: Measurement,
    exact: Errors | None,
    notes: tuple[str, ...],
) -> Row:
    """The row of one output that was measured and judged."""
    m = measurement
    failed = [check for check in judged.checks if not check.passed]
    verdict = "fail" if failed else "pass"
    sentence = _failed(failed, errors) if failed else _passed(judged.checks)
    metrics: dict[str, Any] = {
        "rel_precision_rate": errors.rate,
        "max_rel_error": errors.max_relative,
        "mean_rel_error": errors.mean_relative,
        "abs_precision_rate": errors.absolute_rate,
        "max_abs_error": errors.max_absolute,
        "max_scaled_error": errors.max_scaled,
        "rmse": errors.rmse,
        "error_balance": errors.balance,
        "max_ulp_error": errors.max_ulp,
        "max_ulp_of_exact": exact.max_ulp if exact is not None else None,
        **{name: getattr(m, name) for name in METRICS},
    }
    said = (sentence,) if failed else ()
    messages = tuple(f"{name}: {text}" for name, (_, text) in m.custom.items() if text)
    return replace(
        row,
        verdict=verdict,
        sentence=sentence,
        checks=judged.checks,
        reasons=(*said, *messages),
        golden=replace(row.golden, max=m.golden_max, min=m.golden_min, mean=m.golden_mean),
        mine=replace(row.mine, max=m.mine_max, min=m.mine_min, mean=m.mine_mean),
        metrics=metrics,
        counts={
            "elements": errors.numel,
            "beyond_tolerance": errors.beyond,
            "golden_nan": m.nonfinite.golden_nan,
            "golden_inf": m.nonfinite.golden_inf,
            "my_nan": m.nonfinite.mine_nan,
            "my_inf": m.nonfinite.mine_inf,
        },
        custom={name: value for name, (value, _) in m.custom.items()},
        worst=_worst(expected, errors),
        notes=notes,
        case={
            **row.case,
            "precision_standard": judged.said,
            "precision_result": FAILED if failed else PASS,
            "ulp_histogram": " ".join(f"{end}:{count}" for end, count in errors.histogram.items()),
        },
    )


def _worst(expected: Expected, errors: Errors) -> WorstElement:
    if errors.worst is None or expected.mine is None:
        return WorstElement()
    place, index = errors.worst, []
    for size in reversed(expected.mine.shape):
        place, here = divmod(place, int(size))
        index.append(here)
    flat = errors.worst
    values = [_scalar(side.reshape(-1)[flat]) for side in (expected.golden, expected.mine)]
    return WorstElement(str(index[::-1]), *values)


def _scalar(element: torch.Tensor) -> Any:
    value = element.item()
    return value if isinstance(value, (bool, int, float)) else str(value)


def ulp_note(expected: Expected, errors: Errors, exact: torch.Tensor | None, dtype: str) -> str:
    """The worst element in steps of the output's type, and the exact value; empty where that says nothing."""
    if errors.worst is None or errors.worst_ulp is None:
        return ""
    text = f"the worst element is {errors.worst_ulp:.4g} ULP of {dtype} from golden"
    if exact is not None and exact.numel() == expected.golden.numel():
        text += f"; its exact value is {number(float(exact.reshape(-1)[errors.worst]))}"
    return text


def _failed(failed: list[Check], errors: Errors) -> str:
    checks = sorted(failed, key=lambda check: (check.metric == "nonfinite_mismatch", check.excess))
    worst = checks[-1]
    where = f"; {errors.beyond} of {errors.numel} elements are beyond it"
    where += f", in {errors.box}" if errors.box and errors.beyond else ""
    if worst.metric == "nonfinite_mismatch":
        text = f"{errors.nonfinite} of {errors.numel} elements are NaN or infinite on one side only"
        return text + (f", in {errors.box}" if errors.box else "")
    if not worst.allowed and not worst.at_least:
        return f"{worst.metric} is {number(worst.measured)}, where no error is allowed{where}"
    if worst.measured is None or worst.at_least:
        return f"{worst.metric} {number(worst.measured)} is not {worst.bound}{where}"
    times = worst.measured / worst.allowed
    said = f"{times:.3g} times" if math.isfinite(times) else "beyond"
    return f"{worst.metric} {worst.measured:.3g} is {said} the allowed {worst.allowed:.3g}{where}"


def _passed(checks: tuple[Check, ...]) -> str:
    bounded = [check for check in checks if check.allowed and not check.at_least]
    if not bounded:
        return "all bounds hold"
    closest = max(bounded, key=lambda check: check.excess)
    share = f"{100 * closest.excess:.3g} % of {closest.allowed:.3g}"
    return f"all bounds hold; closest is {closest.metric} at {share}"


def dtype_name(tensor: torch.Tensor, param: dict[str, Any]) -> str:
    """The name of the type that an output is written in: hifloat8 comes as bytes, its parameter tells."""
    if tensor.dtype == torch.uint8 and param.get("outTensorType") == 34:
        return "hifloat8"
    return by_torch(tensor.dtype).name
