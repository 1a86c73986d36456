"""Rows on their way from an xdist worker to the controller."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from acc_pytest.recording import SINK, WorkerRows, rows_of
from acc_pytest.reporting.row import Row, RowSide, WorstElement

ROWS = [
    Row("id", "fail", "", golden=RowSide(path="/data/\udcca\udcfd/a.bin", node="\ud800\0\x1b")),
    Row("id", "fail", "", worst=WorstElement("[0]", -(2**63), 2**63)),
]


def test_rows_of_any_names_and_numbers_reach_the_controller() -> None:
    execnet = pytest.importorskip("execnet")
    config = SimpleNamespace(stash=pytest.Stash())
    worker = WorkerRows(config)  # type: ignore[arg-type]
    for row in ROWS:
        config.stash[SINK](row)
    report = SimpleNamespace()
    making = worker.pytest_runtest_makereport(SimpleNamespace(when="call"))  # type: ignore[arg-type]
    next(making)
    with pytest.raises(StopIteration):
        making.send(report)  # type: ignore[arg-type]
    sent = execnet.loads(execnet.dumps(report.__dict__))
    assert rows_of(SimpleNamespace(**sent)) == ROWS
    assert rows_of(report) == ROWS
    assert rows_of(report) == [], "pytest keeps reports until the end, and rows are large"
