"""The child: exit codes, signals to its whole group, output, early end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from acc_pytest.capture.atb.launch import ChildExit, run
from acc_pytest.errors import LaunchError

PATIENCE = 30.0
"""Seconds until a test gives up waiting for a process."""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def wait_for(path: Path) -> str:
    """The text of a file once it is there and not empty."""
    ends = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < ends, f"{path} never came"
        time.sleep(0.01)
    return path.read_text()


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int) -> None:
    ends = time.monotonic() + PATIENCE
    while not is_gone(pid):
        assert time.monotonic() < ends, f"process {pid} lives on"
        time.sleep(0.01)


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_childs(code: int) -> None:
    assert run(python(f"raise SystemExit({code})"), os.environ) == ChildExit(code)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_child_that_a_signal_ended_is_128_and_the_signal(number: int) -> None:
    ended = run(python(f"import os; os.kill(os.getpid(), {int(number)})"), os.environ)
    assert ended == ChildExit(128 + number)


def test_the_environment_and_the_words_arrive_unchanged(tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = "import os, sys; open(os.environ['SAID'], 'w').write(repr(sys.argv[1:]))"
    words = ["two words", "$HOME", "*", "a;b", "| cat", ""]
    assert run([sys.executable, "-c", code, *words], {"SAID": str(said)}) == ChildExit(0)
    assert said.read_text() == repr(words)


def test_output_and_errors_go_to_the_file_in_order(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        run(python("import os; os.write(1, b'one\\n'); os.write(2, b'two\\n')"), os.environ, output=file)
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


def test_a_child_whose_output_is_kept_has_no_input(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        run(python("import sys; print(repr(sys.stdin.read()))"), os.environ, output=file)
    assert (tmp_path / "out").read_text() == "''\n"


def test_a_command_that_does_not_start(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("no interpreter line")
    script.chmod(0o755)
    with pytest.raises(LaunchError, match="cannot be started: Exec format error"):
        run([str(script)], os.environ)


GRANDCHILD = """
    import os, subprocess, sys, time
    if len(sys.argv) == 1:
        sys.exit(subprocess.call([sys.executable, __file__, "inner"]))
    with open("pid.unfinished", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid.unfinished", "pid")
    time.sleep(60)
    """
LAUNCHER = """
    import os, signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup has some ignored
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    from acc_pytest.capture.atb.launch import run
    ended = run([sys.executable, "family.py"], os.environ)
    open("ended", "w").write(repr(ended))
    sys.exit(ended.code)
    """


@pytest.fixture
def family(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A launcher in a process of its own, whose child has a child that has written its id to `pid`."""
    (tmp_path / "family.py").write_text(textwrap.dedent(GRANDCHILD))
    return subprocess.Popen(python(LAUNCHER), cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_grandchildren_and_decides_the_code(
    family: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    grandchild = int(wait_for(tmp_path / "pid"))
    family.send_signal(number)
    assert family.wait(PATIENCE) == 128 + number
    assert (tmp_path / "ended").read_text() == repr(ChildExit(128 + number, int(number)))
    wait_until_gone(grandchild)


def test_a_child_that_ends_well_on_ctrl_c_was_interrupted_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(
        textwrap.dedent(
            """
            import signal, sys, time
            signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
            open("pid", "w").write("1")
            time.sleep(60)
            """
        )
    )
    launcher = subprocess.Popen(python(LAUNCHER), cwd=tmp_path, start_new_session=True)
    wait_for(tmp_path / "pid")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(PATIENCE) == 130


def test_the_third_ctrl_c_kills_a_child_that_ignores_them(tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(
        textwrap.dedent(
            """
            import os, signal, time
            signal.signal(signal.SIGINT, lambda *_: open("seen", "a").write("x"))
            open("pid", "w").write(str(os.getpid()))
            while True:
                time.sleep(60)
            """
        )
    )
    launcher = subprocess.Popen(python(LAUNCHER), cwd=tmp_path, start_new_session=True)
    pid = int(wait_for(tmp_path / "pid"))
    for count in (1, 2):
        launcher.send_signal(signal.SIGINT)
        ends = time.monotonic() + PATIENCE
        while not (tmp_path / "seen").exists() or len((tmp_path / "seen").read_text()) < count:
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert not is_gone(pid)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(PATIENCE) == 130
    wait_until_gone(pid)


def test_a_child_is_ended_early_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "family.py").write_text(textwrap.dedent(GRANDCHILD))
    ended = run([sys.executable, "family.py"], os.environ, stop=(tmp_path / "pid").exists, every=0.02)
    assert ended.stopped
    assert ended.code == 128 + signal.SIGTERM
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_child_that_ends_by_itself_is_not_stopped() -> None:
    assert run(python("pass"), os.environ, stop=lambda: False, every=0.02) == ChildExit(0)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run(python("pass"), os.environ)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_is_ignored_here_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert run(python("import os; os.kill(os.getppid(), 1)"), os.environ) == ChildExit(0)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_it_runs_in_a_thread_too_where_python_allows_no_handlers() -> None:
    found: list[ChildExit] = []
    thread = threading.Thread(target=lambda: found.append(run(python("raise SystemExit(3)"), os.environ)))
    thread.start()
    thread.join(PATIENCE)
    assert found == [ChildExit(3)]


def test_what_goes_wrong_while_it_runs_takes_the_child_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "family.py").write_text(textwrap.dedent(GRANDCHILD))

    def stop() -> bool:
        if (tmp_path / "pid").exists():
            raise RuntimeError("no more")
        return False

    with pytest.raises(RuntimeError, match="no more"):
        run([sys.executable, "family.py"], os.environ, stop=stop, every=0.02)
    wait_until_gone(int((tmp_path / "pid").read_text()))
