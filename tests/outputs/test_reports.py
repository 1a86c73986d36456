"""Reports replace the previous ones whole, at the end; none is overwritten; a full disk is told once."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from acc_pytest.errors import AccError, SettingsError
from acc_pytest.outputs import Growing, Staged, target_of
from acc_pytest.outputs.writing import left_behind
from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.recorder import Recorder
from acc_pytest.reporting.rows_file import RowsFile
from acc_pytest.reporting.view import Run, View


def growing(path: Path, *, numbered: bool = False) -> Growing:
    return Growing(target_of(str(path), "--acc-csv"), numbered=numbered)


def staged(path: Path) -> Staged:
    return Staged(target_of(str(path), "--acc-html"))


def test_the_previous_report_stands_until_the_new_one_is_whole(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("old")
    report = growing(tmp_path / "x.csv")
    report.write(b"head\n", head=True)
    report.write(b"row\n")
    assert (tmp_path / "x.csv").read_text() == "old"
    assert (tmp_path / "x.csv.partial").read_text() == "head\nrow\n"
    report.land()
    assert (tmp_path / "x.csv").read_text() == "head\nrow\n"
    assert os.listdir(tmp_path) == ["x.csv"]


def test_a_run_that_does_not_end_leaves_its_rows_and_the_next_one_says_where(tmp_path: Path) -> None:
    first = growing(tmp_path / "x.csv")
    first.write(b"row of the first\n")
    beside = growing(tmp_path / "x.csv")
    beside.write(b"row of the second\n")
    assert beside.notes == []  # the first still goes on
    first.close()
    last = growing(tmp_path / "x.csv")
    killed = f"{tmp_path}/x.csv.partial"
    assert last.notes == [f"unfinished: {killed} is of a run that was killed; remove it when done with it"]
    assert left_behind(str(tmp_path / "x.csv")) == [killed]
    beside.land()
    last.drop()
    assert (tmp_path / "x.csv").read_text() == "row of the second\n"
    assert (tmp_path / "x.csv.partial").read_text() == "row of the first\n"
    assert sorted(os.listdir(tmp_path)) == ["x.csv", "x.csv.partial"]


def test_a_file_of_its_head_alone_is_not_kept(tmp_path: Path) -> None:
    report = growing(tmp_path / "x.csv")
    report.write(b"head\n", head=True)
    report.close()
    assert os.listdir(tmp_path) == []


def test_numbered_reports_of_one_second_never_share_a_name(tmp_path: Path) -> None:
    reports = [growing(tmp_path / "r.csv", numbered=True) for _ in range(2)]
    reports[0].write(b"0")
    reports[0].land()
    reports.append(growing(tmp_path / "r.csv", numbered=True))
    for number in (1, 2):
        reports[number].write(str(number).encode())
        reports[number].land()
    found = {name: (tmp_path / name).read_text() for name in sorted(os.listdir(tmp_path))}
    assert found == {"r.csv": "0", "r_1.csv": "1", "r_2.csv": "2"}


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_modes_are_those_of_dumps_less_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        report, page = growing(tmp_path / "new" / "x.csv"), staged(tmp_path / "new" / "x.html")
        report.write(b"row\n")
        page.write(b"page")
        report.land()
        page.land()
    finally:
        os.umask(before)
    for name, mode in (("", 0o750), ("x.csv", 0o640), ("x.html", 0o640)):
        assert (tmp_path / "new" / name).stat().st_mode & 0o777 == mode & ~umask


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_a_full_disk_is_one_sentence_and_leaves_whole_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    report = growing(tmp_path / "x.csv")
    report.write(b"row 1\n")
    write, written = os.write, []

    def full(descriptor: int, data: bytes) -> int:
        written.append(len(data))
        if len(written) == 1:
            return write(descriptor, data[:3])
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(
        AccError, match=f"{os.strerror(problem)}; what was written before is in .*x.csv.partial"
    ):
        report.write(b"row 2\n")
    report.write(b"row 3\n")
    report.land()
    report.close()
    assert len(written) == 2
    assert (tmp_path / "x.csv.partial").read_bytes() == b"row 1\n"
    assert not report.landed


def test_a_disk_that_is_full_when_the_file_is_closed_leaves_the_previous_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.csv").write_text("old")
    report = growing(tmp_path / "x.csv")
    report.write(b"row\n")
    close = os.close

    def full(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", full)
        with pytest.raises(AccError, match="Disk quota exceeded; what was written before is in"):
            report.land()
    assert (tmp_path / "x.csv").read_text() == "old"


def test_reports_survive_their_directory(tmp_path: Path) -> None:
    report, page = growing(tmp_path / "out" / "x.csv"), staged(tmp_path / "out" / "x.html")
    report.write(b"row 1\n")
    shutil.rmtree(tmp_path / "out")
    report.write(b"row 2\n")
    page.write(b"page")
    report.land()
    page.land()
    assert (tmp_path / "out" / "x.csv").read_bytes() == b"row 1\nrow 2\n"
    assert (tmp_path / "out" / "x.html").read_bytes() == b"page"


def test_a_page_is_made_beside_its_place_first_and_dropped_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text("old")
    page = staged(tmp_path / "x.html")
    page.write(b"new")
    assert (tmp_path / "x.html").read_text() == "old"
    page.close()
    page.land()
    assert (tmp_path / "x.html").read_text() == "old"
    assert os.listdir(tmp_path) == ["x.html"]


def test_what_belongs_to_others_too_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("theirs\n")
    page = Staged(target_of(str(tmp_path / "steps"), "GITHUB_STEP_SUMMARY", replaces=False), append=True)
    page.write(b"ours\n")
    page.land()
    assert (tmp_path / "steps").read_text() == "theirs\nours\n"


def test_two_reports_of_a_run_do_not_share_a_file(tmp_path: Path) -> None:
    views: list[View] = [RowsFile(str(tmp_path / "x"), {}), HtmlReport(f"{tmp_path}/./x")]
    recorder = Recorder(views)
    with pytest.raises(
        SettingsError, match="x: two reports would be written to this file; give each its own"
    ):
        recorder.begin(Run())
    recorder.close()
    assert os.listdir(tmp_path) == []
    Recorder([RowsFile(os.devnull, {}), HtmlReport(os.devnull)]).begin(Run())
