"""Rows of single-operator checks: what was measured and judged, as the reports want it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch

from ..comparison.rows import incomparable, judged, measured_fields, messages_of
from ..judging.verdict import Judgement
from ..metrics.catalogue import COLUMN_METRICS
from ..metrics.measurement import Measurement
from ..reporting.row import Row, RowSide
from ..tensors.dtypes import by_torch
from ..vocabulary import number
from .case import Case
from .golden import Expected

PASS, FAILED, SKIPPED = "PASS", "FAILED", "SKIPPED"
"""Words of the old result sheet, and ours for what could not be judged."""
_COLUMNS = {
    "rel_precision_rate": "rel_precision_rate",
    "max_rel_error": "mare",
    "mean_rel_error": "mere",
    "abs_precision_rate": "abs_precision_rate",
    "max_abs_error": "max_absolute_error",
    "max_scaled_error": "max_scaled_error",
    "rmse": "rmse",
    "error_balance": "error_balance",
    "max_ulp_error": "max_ulp_error",
}
"""Numbers of the old result sheet, by the metric that each is."""


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
    return incomparable(replace(row, case=case), reason, skipped)


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
    row: Row, m: Measurement, judgement: Judgement, ulp_of_exact: float | None, notes: tuple[str, ...]
) -> Row:
    """The row of one output that was measured and judged. `ulp_of_exact`: steps from the exact values."""
    result = FAILED if judgement.verdict == "fail" else PASS
    errors = m.elements
    assert errors is not None, "outputs of operators are measured with what standards of operators ask"
    return judged(
        row,
        judgement,
        after=messages_of(m),
        metrics={
            **{column: m.value(metric) for column, metric in _COLUMNS.items()},
            "max_ulp_of_exact": ulp_of_exact,
            **{name: m.value(name) for name in COLUMN_METRICS},
        },
        counts={
            "elements": m.numel,
            "beyond_tolerance": m.beyond_tolerance,
            "golden_nan": m.nonfinite.golden_nan,
            "golden_inf": m.nonfinite.golden_inf,
            "my_nan": m.nonfinite.mine_nan,
            "my_inf": m.nonfinite.mine_inf,
        },
        notes=notes,
        case={
            **row.case,
            "precision_result": result,
            "ulp_histogram": " ".join(f"{end}:{count}" for end, count in errors.histogram.items()),
        },
        **measured_fields(row, m),
    )


def ulp_note(m: Measurement, exact: torch.Tensor | None, dtype: str) -> str:
    """The worst element in steps of the output's type, and the exact value; empty where that says nothing."""
    errors = m.elements
    if errors is None or errors.worst is None or errors.worst_ulp is None:
        return ""
    text = f"the worst element is {errors.worst_ulp:.4g} ULP of {dtype} from golden"
    if exact is not None:
        text += f"; its exact value is {number(float(exact.reshape(-1)[errors.worst]))}"
    return text


def output_dtype(tensor: torch.Tensor, param: dict[str, Any]) -> str:
    """The name of the type that an output is written in: hifloat8 comes as bytes, its parameter tells."""
    if tensor.dtype == torch.uint8 and param.get("outTensorType") == 34:
        return "hifloat8"
    return by_torch(tensor.dtype).name
