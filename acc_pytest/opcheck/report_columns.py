"""The columns of the CSV of single-operator checks: those of the old tool's result sheet, then ours."""

from __future__ import annotations

OLD_COLUMNS = {
    "op_id": "case.op_id",
    "op_name": "case.op_name",
    "op_param": "case.op_param",
    "tensor_path": "case.tensor_path",
    "out_tensor_id": "case.out_tensor_id",
    "precision_standard": "case.precision_standard",
    "precision_result": "case.precision_result",
    "rel_precision_rate(%)": "metrics.rel_precision_rate",
    "max_rel_error": "metrics.max_rel_error",
}
"""The old result sheet's columns, in its order; and where a `Row` has the value."""

METRIC_COLUMNS = {
    "abs": {"abs_precision_rate(%)": "metrics.abs_precision_rate", "max_abs_error": "metrics.max_abs_error"},
    "cos_sim": {"cosine_similarity": "metrics.cosine_similarity"},
    "kl": {"kl_divergence": "metrics.kl_divergence"},
}
"""Columns that the old sheet has when its `-metric` asks for them."""

OUR_COLUMNS = {
    "verdict": "verdict",
    "standard": "case.standard",
    "thresholds": "thresholds",
    "slot": "mine.slot",
    "dtype": "mine.dtype",
    "shape": "mine.shape",
    "mean_rel_error": "metrics.mean_rel_error",
    "max_scaled_error": "metrics.max_scaled_error",
    "rmse": "metrics.rmse",
    "error_balance": "metrics.error_balance",
    "max_ulp_error": "metrics.max_ulp_error",
    "max_ulp_of_exact": "metrics.max_ulp_of_exact",
    "ulp_histogram": "case.ulp_histogram",
    "elements": "counts.elements",
    "beyond": "counts.beyond_tolerance",
    "golden_nan": "counts.golden_nan",
    "golden_inf": "counts.golden_inf",
    "my_nan": "counts.my_nan",
    "my_inf": "counts.my_inf",
    "worst_index": "worst.index",
    "worst_golden_value": "worst.golden",
    "worst_my_value": "worst.mine",
    "my_data_path": "mine.path",
    "rank": "rank",
    "notes": "note",
    "source": "case.source",
    "test_id": "test_id",
}
"""Our columns, appended to the old ones."""


def columns(metrics: tuple[str, ...], custom: tuple[str, ...], optimization: bool = False) -> dict[str, str]:
    """The report's columns: the old sheet's with these of its metrics, the user's own, ours."""
    result = dict(OLD_COLUMNS)
    for name, group in METRIC_COLUMNS.items():
        if not metrics or name in metrics:
            result |= group
    result |= {name: f"custom.{name}" for name in custom}
    result["fail_reason"] = "reason"
    if optimization:
        result["optimization_closed"] = "case.optimization_closed"
    return result | OUR_COLUMNS
