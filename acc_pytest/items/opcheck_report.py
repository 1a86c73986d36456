"""The controller's view of single-operator checks: header, the old result sheet as CSV, lost tests."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from ..errors import NoPayload
from ..reporting.environment import environment
from ..reporting.row import Row
from ..reporting.view import Run
from ..run_report import RunReport, lost
from ..views import open_views
from .opcheck_session import OpcheckSession

if TYPE_CHECKING:
    from ..opcheck.case import Case

PREFIX = "opcheck_result"
"""What the names of the old tool's reports begin with."""

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
    found = dict(OLD_COLUMNS)
    for name, more in METRIC_COLUMNS.items():
        if not metrics or name in metrics:
            found |= more
    found |= {name: f"custom.{name}" for name in custom}
    found["fail_reason"] = "reason"
    if optimization:
        found["optimization_closed"] = "case.optimization_closed"
    return found | OUR_COLUMNS


class OpcheckReport(RunReport):
    """A `RunReport` of single-operator checks."""

    def __init__(self, config: pytest.Config, acc: OpcheckSession) -> None:
        settings = acc.settings
        found = columns(settings.columns, settings.custom_metrics, settings.optimization)
        views = open_views(acc.common, csv=True, columns=found, prefix=PREFIX, case_of=self._case_of)
        super().__init__(config, None, views)
        self._opcheck = acc

    def _run(self) -> Run:
        sources = tuple(map(os.path.abspath, self._opcheck.settings.sources))
        return Run(
            "opcheck", command=tuple(self._opcheck.command), environment=environment(), sources=sources
        )

    def pytest_report_header(self) -> list[str]:
        """Say what is checked, by which rules, and of what nothing can be said."""
        acc = self._opcheck
        settings = acc.settings
        groups = Counter(names[1] for names, _ in acc.named)
        return [
            f"acc opcheck: {len(acc.named)} operators from {', '.join(settings.sources)} "
            f"({', '.join(f'{name}: {count}' for name, count in groups.items())})",
            f"acc standard: {settings.standard}",
        ]

    @functools.cached_property
    def _entries(self) -> dict[str, Any]:
        return {"::".join(names): entry for names, entry in self._opcheck.chosen}

    def _case_of(self, test_id: str) -> Case:
        """The case of a check, its files found again. Raises `AccError`."""
        from ..opcheck.prepare import prepare

        settings = self._opcheck.settings
        if test_id not in self._entries:
            raise NoPayload("it is no check of this run's sources")
        case = prepare(self._entries[test_id], settings.input, settings.soc)
        return dataclasses.replace(case, precision=settings.precision)

    def _lost_row(self, report: Any) -> Row | None:
        """The row of a check that ended without one: its worker died."""
        entry = self._entries.get(report.nodeid)
        if entry is None:
            return None
        from ..opcheck.run import refused_entry
        from ..opcheck.standards import standard_named

        standard = standard_named(self._opcheck.settings.standard)
        return refused_entry(entry, standard, f"not checked: {lost(report)}", report.nodeid)
