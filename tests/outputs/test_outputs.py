"""Reports replace the previous ones whole, at the end; none is overwritten; a full disk is told once."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

from acc_pytest.errors import AccError, SettingsError
from acc_pytest.outputs import Growing, Staged, file_target, target_of
from acc_pytest.outputs.writing import left_behind
from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.recorder import Recorder
from acc_pytest.reporting.rows_file import RowsFile
from acc_pytest.reporting.view import Run, View
from acc_pytest.tensors.whole_file import whole_file


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


# What lies at a place is looked at before the first test: one sentence, and nothing is harmed.


def refusal(path: Path | str) -> str:
    with pytest.raises(SettingsError) as caught:
        target_of(str(path), "--acc-csv")
    return str(caught.value)


def test_a_directory_and_a_file_where_a_directory_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(tmp_path).endswith("cannot be written: it is a directory; give the name of a file")
    assert refusal(f"{tmp_path}/new/").endswith("it names a directory; give the name of a file")
    assert refusal(tmp_path / "file" / "x.csv").endswith("x.csv: cannot be written: Not a directory")
    assert refusal(tmp_path / "file" / "deep" / "x.csv").endswith("cannot be written: Not a directory")
    assert "embedded null" in refusal("a\0b")
    assert "File name too long" in refusal(tmp_path / ("x" * 300))
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_asked_before_the_run_leaves_nothing(tmp_path: Path) -> None:
    target_of(str(tmp_path / "new" / "below" / "x.csv"), "--acc-csv")
    assert os.listdir(tmp_path) == []


def test_a_link_to_a_file_is_refused_and_what_it_leads_to_is_unharmed(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("mine")
    (tmp_path / "link").symlink_to("mine.csv")
    (tmp_path / "dangling").symlink_to("nothing")
    assert "is a symbolic link to mine.csv; give the name of a file" in refusal(tmp_path / "link")
    assert "is a symbolic link to nothing" in refusal(tmp_path / "dangling")
    assert (tmp_path / "mine.csv").read_text() == "mine"


def test_a_directory_that_is_a_link_is_a_directory_like_others(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    report = Growing(target_of(str(tmp_path / "link" / "x.csv"), "--acc-csv"))
    report.write(b"row\n")
    report.land()
    assert (tmp_path / "real" / "x.csv").read_bytes() == b"row\n"


def test_a_fifo_that_nobody_reads_is_refused_and_one_that_is_read_is_written(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert refusal(fifo).endswith("it is a fifo without a reader; start the reader first")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    report = Growing(target_of(str(fifo), "--acc-csv"))
    report.write(b"row\n")
    report.land()
    assert os.read(reader, 100) == b"row\n"
    os.close(reader)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert os.listdir(tmp_path) == ["fifo"]


def test_a_reader_that_sleeps_or_goes_away_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acc_pytest.outputs.writing.PATIENCE", 0.05)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    sleeping, gone = (Growing(target_of(str(fifo), "--acc-rows")) for _ in range(2))
    with pytest.raises(AccError, match=r"fifo: cannot be written: its reader has not read for 0 s$"):
        sleeping.write(b"x" * (1 << 20))
    os.close(reader)
    with pytest.raises(AccError, match=r"fifo: cannot be written: Broken pipe$"):
        gone.write(b"x")
    gone.write(b"dropped")  # one sentence, not one a row


@pytest.mark.parametrize("through", ["/dev/fd/{}", "/proc/self/fd/{}", "link"])
def test_an_open_descriptor_is_written_where_it_stands(tmp_path: Path, through: str) -> None:
    with (tmp_path / "out").open("wb", buffering=0) as out:
        out.write(b"before\n")
        path = through.format(out.fileno())
        if through == "link":
            path = str(tmp_path / "link")
            os.symlink(f"/dev/fd/{out.fileno()}", path)
        report = Growing(target_of(path, "--acc-csv"))
        report.write(b"row\n")
        report.land()
        page = Staged(target_of(path, "--acc-html"))
        page.write(b"page\n")
        page.land()
        out.write(b"after\n")
    assert (tmp_path / "out").read_bytes() == b"before\nrow\npage\nafter\n"


def test_a_descriptor_that_is_not_open_is_refused() -> None:
    assert refusal("/dev/fd/99999").endswith("/dev/fd/99999: cannot be written: Bad file descriptor")


def test_devices_stay_devices(tmp_path: Path) -> None:
    for device in ("/dev/null", "/dev/full"):
        page = Staged(target_of(device, "--acc-html"))
        page.write(b"page")
        if device == "/dev/full":
            with pytest.raises(AccError, match="No space left on device"):
                page.land()
        else:
            page.land()
        assert stat.S_ISCHR(os.stat(device).st_mode)


def test_a_dump_never_takes_the_place_of_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (
        pytest.raises(AccError, match="fifo: cannot be written: it is a device, fifo or socket"),
        whole_file(tmp_path / "fifo"),
    ):
        pass
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("s")
        assert refusal("s").endswith("s: is a socket; give the name of a file")


def test_a_file_that_may_not_be_written_and_a_directory_in_which_none_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.csv").touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)  # root may write everything
        assert refusal(tmp_path / "x.csv").endswith("it exists and you may not write it")

    def refused(*given: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    assert refusal(tmp_path / "y.csv").endswith("y.csv: cannot be written: Permission denied")


def test_what_is_read_again_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--acc-baseline /dev/null: cannot be written: it is a device"):
        file_target("/dev/null", "--acc-baseline")
    assert not file_target(str(tmp_path / "base.json"), "--acc-baseline").stream
