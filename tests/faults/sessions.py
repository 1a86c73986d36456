"""Real sessions of pytest over two dumps, in processes of their own, to be killed, stopped and starved.

`tests/faults` runs a few of them, `benchmarks/faults.py` as many as are asked for.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.rows_file import StoredRows, read_rows

ROOT = Path(__file__).resolve().parents[2]
REPORTS = {
    "x.csv": "--acc-csv",
    "rows.jsonl": "--acc-rows",
    "page.html": "--acc-html",
    "summary.md": "--acc-summary",
}
"""Reports that take the place of the previous ones."""

CONFTEST = """
import os

def note(name, text):
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except FileNotFoundError:  # the directory is gone, which is what is tried
        return
    os.write(descriptor, (text + "\\n").encode())
    os.close(descriptor)

def pytest_configure(config):
    config.at_home = os.getcwd()
    note("configured.txt", str(os.getpid()))

def pytest_runtest_call(item):
    note(os.path.join(item.config.at_home, "begun.txt"), f"{os.getpid()} {item.nodeid}")

def pytest_runtest_logreport(report):
    # After the row of the test was recorded, and in the process that writes the reports.
    if report.when == "call" and not os.environ.get("PYTEST_XDIST_WORKER"):
        note("ended.txt", report.nodeid)
"""
"""Says that pytest has its plugins, which tests have begun and where, and which reports have come."""


QUICK = ("-p", "no:hypothesispytest", "-p", "no:logging")
"""What inner sessions do without, for it takes seconds."""


def dump_options(paths: DemoPaths) -> tuple[str, str]:
    """The two options that every comparison needs."""
    return f"--acc-golden={paths.golden}", f"--acc-mine={paths.mine}"


def home_of(directory: Path, conftest: str = "") -> Path:
    """A directory to run in, with what `CONFTEST` says and `conftest` does."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "conftest.py").write_text(CONFTEST + conftest)
    return directory


def log_of(home: Path) -> Path:
    """What the last session in `home` said; beside it, for `home` may go away."""
    return home.with_name(f"{home.name}.log")


def start(home: Path, paths: DemoPaths, *words: str) -> subprocess.Popen[str]:
    """A session in `home`, the leader of a group of processes; what it says goes to `log_of(home)`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    with log_of(home).open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "pytest", *QUICK, *dump_options(paths), *words],
            cwd=home,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell has its background jobs ignore Ctrl-C, and what they start inherits that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )


def all_reports() -> list[str]:
    """The words that ask for every report."""
    return [f"{flag}={name}" for name, flag in REPORTS.items()]


def lines_of(path: Path) -> list[str]:
    """Whole lines of a file that is being written; none where it is not there yet."""
    if not path.is_file():
        return []
    return path.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0].splitlines()


def wait_for(found: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> bool:
    """Wait until something is found; false where the process ends, or the time, before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found():
            return True
        if process.poll() is not None:
            return found()
        time.sleep(0.005)
    return False


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the session and all its workers at once."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True)
class Left:
    """What a killed session left. `ended` are the tests whose reports the controller had."""

    ended: frozenset[str]
    rows: StoredRows | None
    in_csv: frozenset[str]
    previous: str

    @property
    def lost(self) -> int:
        """Tests that had ended and of which a report has no row."""
        in_rows = frozenset(row.test_id for row in self.rows.rows) if self.rows is not None else frozenset()
        return len(self.ended - in_rows) + len(self.ended - self.in_csv)


def reports_of(home: Path) -> dict[str, tuple[int, bytes]]:
    """The reports there: which file each is, and its content."""
    return {name: ((home / name).stat().st_ino, (home / name).read_bytes()) for name in REPORTS}


def left_by_killed(home: Path, before: dict[str, tuple[int, bytes]]) -> Left:
    """What lies in `home`; `before` are the previous reports. Raises where a file cannot be read."""
    states = {_state(home / name, content) for name, content in before.items()}
    rows, cells = home / "rows.jsonl.partial", home / "x.csv.partial"
    if states == {"new"}:
        rows, cells = home / "rows.jsonl", home / "x.csv"
    return Left(
        ended=frozenset(lines_of(home / "ended.txt")),
        rows=read_rows(str(rows)) if rows.exists() and rows.stat().st_size else None,
        in_csv=_ids(cells),
        previous=" and ".join(sorted(states)),
    )


def _state(path: Path, before: tuple[int, bytes]) -> str:
    """Whether the previous file is there; by its number, for two runs may have equal reports."""
    if not path.exists():
        return "gone"
    if path.stat().st_ino != before[0]:
        return "new"
    return "old" if path.read_bytes() == before[1] else "harmed"


def _ids(path: Path) -> frozenset[str]:
    """The tests in a CSV, of which every line but the last must be whole."""
    if not path.exists():
        return frozenset()
    with path.open(newline="", encoding="utf-8") as file:
        rows: Sequence[list[str]] = list(csv.reader(file))
    width = len(rows[0]) if rows else 0
    whole = [row for row in rows[1:] if len(row) == width]
    assert len(whole) >= len(rows) - 2, f"{path}: {len(rows) - 1 - len(whole)} lines are cut"
    return frozenset(row[-1] for row in whole)
