"""SIGKILL: previous reports are as they were, rows are on disk; workers that are stopped or killed."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest

from acc_pytest import cli
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.rows_file import read_rows

from .sessions import (
    QUICK,
    REPORTS,
    all_reports,
    dump_options,
    home_of,
    kill,
    left_by_killed,
    lines_of,
    log_of,
    reports_of,
    start,
    wait_for,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workers", [("-n0",), ("--tx=2*popen", "--dist=load")], ids=["alone", "two workers"])
def test_a_killed_session_leaves_the_previous_reports_and_its_rows(
    tmp_path: Path, dumps: DemoPaths, workers: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_of(tmp_path)
    for name in REPORTS:
        (home / name).write_text(f"previous {name}\n")
    before = reports_of(home)
    after = random.Random(workers[0]).randrange(1, 40)
    session = start(home, dumps, *workers, *all_reports())
    assert wait_for(lambda: len(lines_of(home / "ended.txt")) >= after, session)
    kill(session)
    left = left_by_killed(home, before)
    assert left.previous == "old"
    assert left.lost == 0
    assert left.rows is not None
    assert (left.rows.complete, left.rows.exit_status) == (False, None)
    (home / "rows.jsonl").unlink()
    assert cli.main(["report", "show", str(home / "rows.jsonl")]) == 0
    assert "rows of a run that was killed" in capsys.readouterr().out
    assert cli.main(["report", "merge", str(home / "rows.jsonl.partial")]) == 1
    assert "is incomplete: the run that wrote it was killed" in capsys.readouterr().out
    assert {path.name for path in home.glob(".*")} <= {".pytest_cache"}


def test_the_next_session_says_what_a_killed_one_left_and_leaves_it_there(
    pytester: pytest.Pytester, dumps: DemoPaths
) -> None:
    Path("rows.jsonl.partial").write_text("of a killed run\n")
    words = ("--acc-rows=rows.jsonl", "-k", "RmsNorm")
    result = pytester.runpytest_inprocess(*QUICK, *dump_options(dumps), *words)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["unfinished: */rows.jsonl.partial is of a run that was killed*"])
    assert Path("rows.jsonl.partial").read_text() == "of a killed run\n"
    assert read_rows("rows.jsonl").complete


STOPS_SOON = """
import sys
import acc_pytest.running.worker_reports as silence
silence.STOPPED = silence.PAUSE = 0.1
"""
ONE_INTERPRETER = """
forked, sys.executable = sys.executable, {python!r}

def pytest_testnodedown():
    sys.executable = forked
"""
"""The session and its second worker are forked, the worker that is stopped and killed is not."""


def test_a_stopped_worker_is_told_of_and_a_killed_one_is_replaced(
    tmp_path: Path, dumps: DemoPaths, request: pytest.FixtureRequest
) -> None:
    home = home_of(tmp_path, STOPS_SOON + ONE_INTERPRETER.format(python=sys.executable))
    request.getfixturevalue("python_with_torch")
    session = start(home, dumps, "-n1", "--acc-rows=rows.jsonl")
    begun, log = home / "begun.txt", log_of(home)
    assert wait_for(lambda: bool(lines_of(begun)), session)
    worker = int(lines_of(begun)[0].split()[0])
    os.kill(worker, signal.SIGSTOP)
    assert wait_for(lambda: f"acc: worker gw0 (process {worker}) is stopped, " in log.read_text(), session)
    os.kill(worker, signal.SIGKILL)
    session.wait(120)
    said = log.read_text()
    assert said.count("is stopped") == 1
    stored = read_rows(str(home / "rows.jsonl"))
    assert stored.complete
    lost = [row for row in stored.rows if row.verdict == "incomparable"]
    assert all("crashed while running" in row.sentence for row in lost)
    assert session.returncode == (1 if lost else 0)
    tests = [row.test_id for row in stored.rows if row.test_id]
    assert len(tests) == len(set(tests)) == len({line.split()[1] for line in lines_of(begun)} | set(tests))


def test_ctrl_c_while_the_session_ends_leaves_whole_reports(
    pytester: pytest.Pytester, dumps: DemoPaths
) -> None:
    pytester.makeconftest("def pytest_sessionfinish():\n    raise KeyboardInterrupt\n")
    result = pytester.runpytest_inprocess(*QUICK, *dump_options(dumps), *all_reports(), "-k", "RmsNorm")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["interrupted while the run ended"])
    stored = read_rows("rows.jsonl")
    assert (stored.exit_status, stored.complete) == (2, False)
    assert set(REPORTS) <= set(os.listdir())


# Two sessions in one directory, begun in one second: each has files of its own; a named report is whole.


ONE_SECOND = """
import time
time.gmtime = lambda *given, clock=time.gmtime: clock(1_700_000_000)
"""


def test_two_sessions_in_one_directory_do_not_write_over_each_other(
    tmp_path: Path, dumps: DemoPaths, python_with_torch: None
) -> None:
    home = home_of(tmp_path, ONE_SECOND)
    sessions = [start(home, dumps, "--acc-rows=rows.jsonl", "--acc-html=page.html") for _ in range(2)]
    assert [session.wait(120) for session in sessions] == [0, 0]
    (report,) = home.glob("*.csv*")
    one = report.read_text().splitlines()
    stored = read_rows(str(home / "rows.jsonl"))
    assert stored.complete
    assert len(stored.rows) == len(one) - 1
    assert not list(home.glob("*.partial"))
    assert (home / "page.html").read_text().endswith("</html>\n")
