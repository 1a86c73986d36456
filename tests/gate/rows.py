"""Rows for the tests of gates."""

from __future__ import annotations

from typing import Any

from acc_pytest.reporting.row import Row, RowSide


def row(
    error: float | None = 0.01,
    *,
    elements: int = 10_000,
    dtype: str = "torch.float16",
    test_id: str = "dump::step0::layers.0::Linear_0",
    mismatches: int | None = None,
    **fields: Any,
) -> Row:
    """A passing row of a tensor with this relative error."""
    known: dict[str, Any] = {
        "verdict": "pass",
        "sentence": "all 5 bounds hold",
        "number": 0,
        "step": 0,
        "layer": "layers.0",
        "golden": RowSide(name="g", op_type="Linear", slot="output[0]", dtype="torch.float32"),
        "mine": RowSide(name="m", op_type="LinearOperation", slot="output[0]", dtype=dtype),
        "metrics": {"relative_euclidean_distance": error},
        "counts": {"elements": elements, "mismatches": mismatches},
        **fields,
    }
    return Row(test_id, **known)
