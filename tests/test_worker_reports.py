"""Reports on their way from an xdist worker to the controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from acc_pytest.reporting.row import Row, RowSide, WorstElement
from acc_pytest.running.run import LAST, SINK
from acc_pytest.running.worker_reports import PACKED, ReportsOfWorkers, WorkerReports, rows_of

HOSTILE = (
    Row("id", "fail", "", golden=RowSide(path="/data/\udcca\udcfd/a.bin", node="\ud800\0\x1b")),
    Row("id", "fail", "", worst=WorstElement("[0]", -(2**63), 2**63)),
)


def report_of(*rows: Row, when: str = "call", **more: Any) -> pytest.TestReport:
    """The report that a worker makes of a phase in which these rows were recorded."""
    config: Any = SimpleNamespace(stash=pytest.Stash())
    worker = WorkerReports(config)
    for row in rows:
        config.stash[SINK](row)
    call: Any = SimpleNamespace(when=when)
    making = worker.pytest_runtest_makereport(call)
    next(making)
    made = pytest.TestReport("d::x", ("d", 0, "x"), {"x": 1}, "passed", None, "call", **more)
    with pytest.raises(StopIteration) as stop:
        making.send(made)
    report: pytest.TestReport = stop.value.value
    return report


def sent(config: pytest.Config, report: pytest.TestReport) -> dict[str, Any]:
    """What arrives of a report in the controller, through the serialiser of execnet."""
    execnet = pytest.importorskip("execnet")
    packing = WorkerReports(SimpleNamespace(stash=pytest.Stash())).pytest_report_to_serializable()  # type: ignore[arg-type]
    next(packing)
    with pytest.raises(StopIteration) as stop:
        packing.send(config.hook.pytest_report_to_serializable(config=config, report=report))
    data: dict[str, Any] = execnet.loads(execnet.dumps(stop.value.value))
    return data


def received(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    ReportsOfWorkers(config).pytest_report_from_serializable(data)
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    return report


def test_rows_of_any_names_and_numbers_reach_the_controller(pytestconfig: pytest.Config) -> None:
    data = sent(pytestconfig, report_of(*HOSTILE, user_properties=[("rows", 2)], duration=1.5))
    assert list(data) == [PACKED]
    report = received(pytestconfig, data | {"item_index": 7, "worker_id": "gw1"})
    assert report.nodeid == "d::x"
    assert (report.duration, report.user_properties) == (1.5, [("rows", 2)])
    assert (report.item_index, report.worker_id) == (7, "gw1")
    assert rows_of(report) == HOSTILE
    assert rows_of(report) == (), "pytest keeps reports until the end, and rows are large"


def test_a_report_without_rows_travels_as_pytest_sends_it(pytestconfig: pytest.Config) -> None:
    for report in (report_of(), report_of(*HOSTILE, when="teardown")):
        data = sent(pytestconfig, report)
        assert PACKED not in data
        assert received(pytestconfig, data).nodeid == "d::x"


def test_a_test_of_one_report_ends_in_the_controller_as_others_do() -> None:
    ended: list[tuple[str, tuple[Any, ...]]] = []

    def logfinish(nodeid: str, location: tuple[Any, ...]) -> None:
        ended.append((nodeid, location))

    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_runtest_logfinish=logfinish))
    report = report_of(*HOSTILE)
    ReportsOfWorkers(config).pytest_runtest_logreport(report)
    assert ended == [], "its teardown follows, and a message that it has ended"
    setattr(report, LAST, True)
    ReportsOfWorkers(config).pytest_runtest_logreport(report)
    assert ended == [("d::x", ("d", 0, "x"))]
