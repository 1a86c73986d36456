"""Disks that are full, directories that go away, dumps that are cut: one sentence each, and never green."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from acc_pytest import cli
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.recorder import Recorder
from acc_pytest.reporting.rows_file import RowsFile, read_rows
from acc_pytest.reporting.view import Result, Run

from .sessions import QUICK, REPORTS, all_reports, dump_options, home_of, lines_of, start, wait_for

pytestmark = pytest.mark.slow

SMALL = 30_000
"""Bytes: some rows, not all of them."""


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Refuse more bytes of a file (EFBIG), as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def reports_in(place: Path) -> list[str]:
    """The words that ask for every report, in `place`."""
    return [word.replace("=", f"={place}/") for word in all_reports()]


@pytest.fixture(params=["tmpfs", "limit"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A place that is full after some rows, and the size of a file that is allowed there."""
    if request.param == "limit":
        yield tmp_path, SMALL
        return
    place = tmp_path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)]
    try:
        refused = subprocess.run(words, capture_output=True, check=False).returncode
    except FileNotFoundError:
        refused = 1
    if refused:
        pytest.skip("a file system can be mounted by root alone")
    yield place, resource.RLIM_INFINITY
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_a_sentence_for_each_report(
    pytester: pytest.Pytester, dumps: DemoPaths, small: tuple[Path, int]
) -> None:
    place, limit = small
    words = (*reports_in(place), "-o", f"cache_dir={place}/cache")
    with largest_file(limit):
        result = pytester.runpytest_inprocess(*QUICK, *dump_options(dumps), *words)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in said
    assert "INTERNALERROR" not in said
    assert "passed" in said
    for name in ("x.csv", "rows.jsonl", "page.html"):
        (line,) = [line for line in said.splitlines() if f"{place}/{name}: cannot be written" in line]
        assert line.startswith("a report could not be written: ")
        assert not (place / name).exists()
    stored = read_rows(f"{place}/rows.jsonl.partial")
    assert stored.rows
    assert not stored.complete


def test_a_command_on_a_full_disk_is_one_line_and_leaves_no_half_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with largest_file(1000):
        code = cli.main(["demo", str(tmp_path / "demo"), "--only-dump"])
    assert code == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("acc: error: ")
    assert "cannot be written: File too large" in line
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size >= 1000] == []


def test_reports_survive_the_directories_of_the_session(
    tmp_path: Path, dumps: DemoPaths, python_with_torch: None
) -> None:
    """The working directory and that of the reports are removed while tests run."""
    home = home_of(tmp_path / "home")
    session = start(home, dumps, *reports_in(tmp_path / "out"))
    assert wait_for(lambda: bool(lines_of(home / "ended.txt")), session)
    for gone in (tmp_path / "out", home):
        while gone.exists():  # the session writes into it meanwhile
            shutil.rmtree(gone, ignore_errors=True)
    session.wait(120)
    assert sorted(os.listdir(tmp_path / "out")) == sorted(REPORTS)
    assert read_rows(f"{tmp_path}/out/rows.jsonl").rows


def test_a_directory_that_becomes_read_only_keeps_the_rows(
    pytester: pytest.Pytester, tmp_path: Path, dumps: DemoPaths
) -> None:
    if subprocess.run(["chattr", "+i", str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("chattr +i is for root, on file systems that have it")
    subprocess.run(["chattr", "-i", str(tmp_path)], check=True)
    out = tmp_path / "out"
    pytester.makeconftest(f"""
        import subprocess

        ran = []

        def pytest_runtest_teardown(item):
            ran.append(item)
            if len(ran) == 5:
                subprocess.run(["chattr", "+i", {str(out)!r}], check=True)
        """)
    try:
        result = pytester.runpytest_inprocess(*QUICK, *dump_options(dumps), *reports_in(out))
    finally:
        subprocess.run(["chattr", "-i", str(out)], check=True)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = result.stdout.str() + result.stderr.str()
    assert said.count("a report could not be written: ") == len(REPORTS)
    assert "Traceback" not in said
    stored = read_rows(f"{out}/rows.jsonl.partial")
    assert len([row for row in stored.rows if row.test_id]) == result.parseoutcomes()["passed"]


def test_a_dump_that_is_cut_and_removed_while_it_is_read(
    pytester: pytest.Pytester, tmp_path: Path, dumps: DemoPaths
) -> None:
    """The rest of its pairs are red, each with the file, and the session ends as usual."""
    shutil.copytree(dumps.mine, tmp_path / "mine")
    pytester.makeconftest(f"""
        import pathlib

        ran = []

        def pytest_runtest_teardown(item):
            ran.append(item)
            if len(ran) == 5:
                for number, path in enumerate(sorted(pathlib.Path({str(tmp_path)!r}).rglob("*.bin"))):
                    path.write_bytes(path.read_bytes()[:100]) if number % 2 else path.unlink()
        """)
    moved = dump_options(DemoPaths(dumps.golden, tmp_path / "mine"))
    assert pytester.runpytest_inprocess(*QUICK, *moved, "--acc-rows=rows.jsonl").ret == 1
    stored = read_rows("rows.jsonl")
    assert stored.complete
    verdicts = [row.verdict for row in stored.rows if row.test_id]
    assert verdicts[:5] == ["pass"] * 5
    assert set(verdicts[5:]) <= {"incomparable", "pass"}
    broken = [row for row in stored.rows if row.verdict == "incomparable"]
    assert len(broken) > len(verdicts) // 2
    assert all(".bin" in row.sentence for row in broken)


def test_a_report_that_is_refused_ends_the_session_and_leaves_the_others_as_they_were(
    pytester: pytest.Pytester, dumps: DemoPaths
) -> None:
    Path("x.csv").write_text("previous")
    Path("page.html").mkdir()
    result = pytester.runpytest_inprocess(*QUICK, *dump_options(dumps), *all_reports())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "verdicts:" not in result.stdout.str()
    assert Path("x.csv").read_text() == "previous"
    assert not [name for name in os.listdir() if name.endswith((".partial", ".jsonl", ".md"))]


def test_a_merged_report_that_is_refused_leaves_nothing_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view = RowsFile(str(tmp_path / "rows.jsonl"), {})
    recorder = Recorder([view])
    recorder.begin(Run())
    recorder.finish(Result(0, recorder.tally, None, str(recorder.hash)))
    before = sorted(os.listdir(tmp_path))
    words = ["report", "merge", str(tmp_path / "rows.jsonl"), f"--csv={tmp_path}/x.csv", f"--html={tmp_path}"]
    assert cli.main(words) == 4
    assert "it is a directory; give the name of a file" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == before == ["rows.jsonl"]
