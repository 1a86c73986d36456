"""A worker that does not answer is told of once, with its test; one without work is not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from types import SimpleNamespace as Some
from typing import Any

import pytest

from acc_pytest import cli, options
from acc_pytest.reporting.row import Row, RowSide, WorstElement
from acc_pytest.running.opening import Interrupts
from acc_pytest.running.run import LAST, SINK
from acc_pytest.running.worker_reports import (
    PACKED,
    PATIENCE,
    STOPPED,
    ReportsOfWorkers,
    Silence,
    WorkerReports,
    is_stopped,
    rows_of,
)
from acc_pytest.session import noting_interrupts

LONG = PATIENCE + 1


def node(name: str, process: int = 0) -> Any:
    spec = Some(popen=bool(process))
    return Some(gateway=Some(id=name, spec=spec, _io=Some(popen=Some(pid=process))))


def report(worker: Any, when: str, nodeid: str = "d::step0::x", **more: bool) -> Any:
    return Some(node=worker, when=when, nodeid=nodeid, **more)


@pytest.fixture
def silence(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Silence:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    return Silence(pytestconfig)


def test_a_worker_at_a_test_is_told_of_once(silence: Silence) -> None:
    worker = node("gw1")
    silence.pytest_xdist_newgateway(worker.gateway)
    silence.pytest_runtest_logreport(report(worker, "setup"))
    assert list(silence.look(100 + PATIENCE - 1)) == []
    assert list(silence.look(100 + LONG)) == [
        "acc: worker gw1 has not answered for 61 s, at d::step0::x; the run waits for it"
    ]
    assert list(silence.look(100 + 10 * LONG)) == []


def test_where_a_test_begins_is_heard_of_xdist(silence: Silence) -> None:
    """A test that passes sends no report of its setup."""
    worker, begun = node("gw1"), []
    dsession = Some(worker_logstart=lambda **given: begun.append(given))
    silence.listen(dsession)
    silence.pytest_xdist_newgateway(worker.gateway)
    dsession.worker_logstart(node=worker, nodeid="d::a\nb", location=("d", 0, "a"))
    assert begun == [{"node": worker, "nodeid": "d::a\nb", "location": ("d", 0, "a")}]
    (line,) = silence.look(100 + LONG)
    assert line == r"acc: worker gw1 has not answered for 61 s, at d::a\nb; the run waits for it"


def test_an_xdist_that_says_it_otherwise_is_left_alone(silence: Silence) -> None:
    dsession = Some()
    silence.listen(dsession)
    assert vars(dsession) == {}


def test_who_answers_after_all_has_long_tests_and_gets_more_time(silence: Silence) -> None:
    worker = node("gw1")
    silence.pytest_xdist_newgateway(worker.gateway)
    silence.pytest_runtest_logreport(report(worker, "setup"))
    assert list(silence.look(100 + LONG))
    silence.pytest_runtest_logreport(report(worker, "setup", "d::next"))
    assert list(silence.look(100 + LONG)) == []
    assert "at d::next" in next(silence.look(100 + 2 * LONG))


def test_who_has_no_work_is_not_told_of(silence: Silence) -> None:
    idle, finished, passed, ended = node("gw0"), node("gw1"), node("gw3"), node("gw2")
    for worker in (idle, finished, passed, ended):
        silence.pytest_xdist_newgateway(worker.gateway)
        silence.pytest_testnodeready(worker)
    silence.pytest_xdist_node_collection_finished(idle)
    silence.pytest_runtest_logreport(report(finished, "teardown"))
    silence.pytest_runtest_logreport(report(passed, "call", acc_last=True))
    silence.pytest_testnodedown(ended)
    silence.pytest_runtest_logreport(report(ended, "teardown"))
    assert list(silence.look(100 + LONG)) == []


def test_a_worker_that_does_not_start_is_told_of(silence: Silence) -> None:
    silence.pytest_xdist_newgateway(node("gw0").gateway)
    assert "since it was started" in next(silence.look(100 + LONG))


def test_a_stopped_process_is_known_and_how_it_goes_on_is_said(silence: Silence) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        worker = node("gw3", process.pid)
        silence.pytest_xdist_newgateway(worker.gateway)
        silence.pytest_runtest_logreport(report(worker, "teardown"))
        assert list(silence.look(100 + STOPPED)) == []
        process.send_signal(signal.SIGSTOP)
        while not is_stopped(process.pid):
            time.sleep(0.01)
        assert list(silence.look(100 + STOPPED - 1)) == []
        assert list(silence.look(100 + STOPPED)) == [
            f"acc: worker gw3 (process {process.pid}) is stopped, after d::step0::x; the run waits for it: "
            f"kill -CONT {process.pid} lets it go on, kill -KILL {process.pid} gives it up"
        ]
        process.kill()
    assert not is_stopped(process.pid)
    assert not is_stopped(0)


def test_ctrl_c_ends_workers_that_have_not_begun_or_are_stopped(silence: Silence) -> None:
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            for _ in range(3)
        ]
        starting, working, stopped = (node(f"gw{at}", one.pid) for at, one in enumerate(processes))
        for worker in (starting, working, stopped):
            silence.pytest_xdist_newgateway(worker.gateway)
        for worker in (working, stopped):
            silence.pytest_xdist_node_collection_finished(worker)
            silence.pytest_runtest_logreport(report(worker, "setup"))
        processes[2].send_signal(signal.SIGSTOP)
        while not is_stopped(processes[2].pid):
            time.sleep(0.01)
        silence.pytest_keyboard_interrupt()
        assert [processes[at].wait(10) for at in (0, 2)] == [-signal.SIGKILL, -signal.SIGKILL]
        assert processes[1].poll() is None
        processes[1].kill()


def test_ctrl_c_while_workers_are_started_ends_them_before_execnet_waits_for_them(silence: Silence) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        silence.pytest_xdist_newgateway(node("gw0", process.pid).gateway)
        silence.guard_start()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert process.wait(10) == -signal.SIGKILL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# Reports on their way from an xdist worker to the controller.


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


# Ctrl-C at the start of a run is Ctrl-C, whatever it was turned into on its way.


def interrupted() -> None:
    """What an import does that goes on without another one which was interrupted."""
    with contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def interrupted_and_failing() -> None:
    interrupted()
    raise ImportError("cannot load module more than once per process")


@pytest.mark.parametrize("work", [interrupted, interrupted_and_failing])
def test_a_ctrl_c_that_was_swallowed_or_turned_into_another_error_interrupts(
    work: Callable[[], None],
) -> None:
    with pytest.raises(KeyboardInterrupt), noting_interrupts():
        work()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_errors_stay_and_other_handlers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match="no torch"), noting_interrupts():
        raise ImportError("no torch")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with noting_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_before_there_is_a_session_is_one_word(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*given: object, **named: object) -> int:
        raise KeyboardInterrupt

    config = pytester.parseconfig("--acc-golden", "/tmp")
    monkeypatch.setattr(pytest, "main", stop)
    assert options.start_over(config) == pytest.ExitCode.INTERRUPTED
    monkeypatch.setattr("acc_pytest.commands.demo.run_demo", stop)
    assert cli.main(["demo", "--list-faults"]) == 130
    assert capsys.readouterr().err == "\ninterrupted\nacc: interrupted\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 gives such a line a number, -1")
def test_ctrl_c_ahead_of_the_first_line_of_a_function_can_be_printed() -> None:
    def lineless() -> None:
        raise KeyboardInterrupt

    lineless.__code__ = lineless.__code__.replace(co_linetable=b"")
    try:
        lineless()
    except KeyboardInterrupt:
        excinfo = pytest.ExceptionInfo[BaseException].from_current()
    assert excinfo.tb.tb_next is not None
    Interrupts().pytest_keyboard_interrupt(excinfo)
    assert str(excinfo.getrepr()).endswith(f"{excinfo.tb.tb_lineno}: KeyboardInterrupt")
