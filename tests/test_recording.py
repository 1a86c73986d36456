"""Rows on their way from an xdist worker to the controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from acc_pytest.recording import SINK, WorkerRows, rows_of
from acc_pytest.reporting.row import Row, RowSide, WorstElement

ROWS = [
    Row("id", "fail", "", golden=RowSide(path="/data/\udcca\udcfd/a.bin", node="\ud800\0\x1b")),
    Row("id", "fail", "", worst=WorstElement("[0]", -(2**63), 2**63)),
]


def test_rows_of_any_names_and_numbers_reach_the_controller() -> None:
    execnet = pytest.importorskip("execnet")
    config: Any = SimpleNamespace(stash=pytest.Stash())
    worker = WorkerRows(config)
    for row in ROWS:
        config.stash[SINK](row)
    report: Any = SimpleNamespace()
    call: Any = SimpleNamespace(when="call")
    making = worker.pytest_runtest_makereport(call)
    next(making)
    with pytest.raises(StopIteration):
        making.send(report)
    sent = execnet.loads(execnet.dumps(report.__dict__))
    assert rows_of(SimpleNamespace(**sent)) == ROWS
    assert rows_of(report) == ROWS
    assert rows_of(report) == [], "pytest keeps reports until the end, and rows are large"
