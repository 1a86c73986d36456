"""What lies at a place is looked at before the first test: one sentence, and nothing is harmed."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from acc_pytest.errors import AccError, SettingsError
from acc_pytest.outputs import Growing, Staged, file_target, target_of
from acc_pytest.tensors.whole_file import whole_file


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
    with pytest.raises(SettingsError, match="--acc-lock /dev/null: cannot be written: it is a device"):
        file_target("/dev/null", "--acc-lock")
    assert not file_target(str(tmp_path / "lock.json"), "--acc-lock").stream
