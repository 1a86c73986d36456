"""Programs of the fork server: words, streams, directory and exit code are those of an interpreter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import fork_server
from tests.fork_client import SIZE, STREAMS

pytestmark = pytest.mark.usefixtures("python_with_torch")
SAID = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['X'], input())"


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
def test_a_program_gets_what_it_was_started_with(kind: str, tmp_path: Path) -> None:
    (tmp_path / "said.py").write_text(SAID)
    words = {"-c": ["-u", "-c", SAID], "-m": ["-m", "said"], "script": ["said.py"]}[kind]
    done = subprocess.run(
        [sys.executable, *words, "one", "two words"],
        cwd=tmp_path,
        env={**os.environ, "X": "1"},
        input="from its input\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"['one', 'two words'] {tmp_path} 1 from its input\n"


@pytest.mark.parametrize(
    ("code", "ended"),
    [("import sys; sys.exit(3)", 3), ("1/0", 1), ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL)],
)
def test_its_end_is_that_of_the_program(code: str, ended: int) -> None:
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == ended


def test_a_program_is_killed_with_its_launcher() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert int(launcher.stdout.readline())
        launcher.kill()
        assert launcher.stdout.read() == ""  # ends when the program has


def test_a_program_that_goes_on_after_the_last_test_is_killed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "LIMIT", 0.2)
    launcher, connection = socket.socketpair()
    fork = os.fork()
    if fork == 0:
        fork_server._answered(connection, tmp_path)()
        os._exit(0)
    connection.close()  # a fork that ends without an answer is the end of what there is to receive
    program = "import time; open('runs', 'w'); time.sleep(60)"
    data = "\0".join(["python", str(tmp_path), "2", "-c", program]).encode()
    socket.send_fds(launcher, [SIZE.pack(len(data))], STREAMS)
    launcher.sendall(data)
    while not (tmp_path / "runs").exists():  # before that, nothing in the fork answers for it
        time.sleep(0.01)
    began = time.monotonic()
    fork_server._end_all([fork])
    assert time.monotonic() - began < 30
    assert launcher.recv(SIZE.size) == SIZE.pack(-signal.SIGKILL)
    said = f"python -c {program} (in {tmp_path})\n"
    assert (tmp_path / fork_server.LEFT).read_text() == said


def test_whoever_started_the_server_says_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended() -> None:
        (tmp_path / fork_server.LEFT).write_text("python -m endless (in /x)\n")

    monkeypatch.setattr(fork_server, "_started", lambda directory: SimpleNamespace(wait=ended))
    leased = fork_server.lease(tmp_path)
    leased.__enter__()
    with pytest.raises(RuntimeError, match=r"end them in the test:\npython -m endless \(in /x\)"):
        leased.__exit__(None, None, None)


def test_a_fork_of_a_test_holds_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_started", lambda directory: None)
    before = fork_server._held.copy()
    with fork_server.lease(tmp_path):
        (held,) = fork_server._held - before
        fork = os.fork()
        if fork == 0:
            open_still = os.path.exists(f"/proc/self/fd/{held}")
            os._exit(1 if open_still or fork_server._held else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
        assert os.path.exists(f"/proc/self/fd/{held}")
    assert fork_server._held == before
