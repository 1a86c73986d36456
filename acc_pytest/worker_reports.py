"""Reports of generated tests in an xdist worker: one line at the start, one report with the rows.

xdist sends a message for each hook of a test, and execnet takes every report apart in Python: that is as much
work as comparing a small pair, half of it for the one controller of all workers.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator
from typing import Any

import pytest

from .onlookers import WATCHED, is_read
from .recording import LAST, SINK
from .reporting.row import Row

ROWS = "acc_rows"
"""Attribute of a test report that carries rows from a worker to the controller."""
PACKED = "acc_packed"
"""Key of a report that travels as one piece. execnet would send neither all integers of a row nor names that
are not UTF-8."""


class WorkerReports:
    """A plugin of an xdist worker: keeps the rows of the running test for the report of its call."""

    def __init__(self, config: pytest.Config) -> None:
        self._rows: list[Row] = []
        config.stash[SINK] = self._rows.append

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put the rows into the report, which travels to the controller."""
        report = yield
        if call.when == "call" and self._rows:
            setattr(report, ROWS, tuple(self._rows))
            self._rows.clear()
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self) -> Generator[None, dict[str, Any], dict[str, Any]]:
        """Pack a report with rows."""
        data = yield
        return {PACKED: pickle.dumps(data)} if data is not None and ROWS in data else data


class ReportsOfWorkers:
    """A plugin of the controller of xdist workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker whether somebody here looks at its reports. (`pytest.main` is given plugins that
        workers have not.)"""
        node.workerinput[WATCHED] = is_read(self._config, self._config.hook)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> None:
        """Unpack a report, for pytest to make one of."""
        unpack(data)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Say that a test has ended of which no message will say so."""
        if getattr(report, LAST, False):
            self._config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)


def unpack(data: dict[str, Any]) -> None:
    """Put what a worker has packed in its place."""
    if PACKED in data:
        # Our own bytes from our own worker, never a file.
        data.update(pickle.loads(data.pop(PACKED)))  # noqa: S301


def rows_of(report: Any) -> tuple[Row, ...]:
    """The rows that arrived with a report, taken out of it: pytest keeps reports until the end."""
    rows: tuple[Row, ...] = report.__dict__.pop(ROWS, ())
    return rows
