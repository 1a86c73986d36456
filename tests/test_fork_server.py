"""Programs of the fork server: words, streams, directory and exit code are those of an interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
