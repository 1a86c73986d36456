"""A worker that does not answer is told of once, with its test; one without work is not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace as Some
from typing import Any

import pytest

from acc_pytest.running.worker_reports import PATIENCE, STOPPED, Silence, is_stopped

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
