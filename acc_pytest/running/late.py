"""A run without options of ours whose workers compare all the same, by a fixture."""

from __future__ import annotations

from typing import Any

import pytest

from .host import REPORTS, is_open
from .worker_reports import ROWS, unpack


class LateRows:
    """A plugin of xdist's controller that opens the run when the first row arrives."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> None:
        """Unpack a report with rows."""
        unpack(data)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Before others see the report: our reports take the rows out of it."""
        if not hasattr(report, ROWS) or is_open(self._config):
            return
        from .opening import run_of

        run_of(self._config)
        # pytest asks who is there before it calls the first, so that the new one is not called this time.
        self._config.pluginmanager.get_plugin(REPORTS).pytest_runtest_logreport(report)  # type: ignore[union-attr]
