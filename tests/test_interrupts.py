"""Ctrl-C at the start of a run is Ctrl-C, whatever it was turned into on its way."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable

import pytest

from acc_pytest import cli, options
from acc_pytest.running.opening import Interrupts
from acc_pytest.session import noting_interrupts


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
