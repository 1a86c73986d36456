"""BackgroundWriter: whole files, bounded memory, the first error at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from acc_pytest.capture.writer import BackgroundWriter
from acc_pytest.errors import AccError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_everything_is_there_when_finish_returns(tmp_path: Path) -> None:
    writer = BackgroundWriter()
    for number in range(100):
        parts = (b"x" * number, b"y")
        writer.put(str(tmp_path / f"{number % 7}" / f"{number}"), 10, partial(iter, parts))
    writer.finish()
    for number in range(100):
        assert (tmp_path / f"{number % 7}" / f"{number}").read_bytes() == b"x" * number + b"y"
    writer.finish()


def test_files_and_directories_are_for_owner_and_group(tmp_path: Path) -> None:
    writer = BackgroundWriter()
    writer.put(str(tmp_path / "a" / "b" / "f"), 1, lambda: (b"x",))
    writer.finish()
    assert (tmp_path / "a" / "b" / "f").stat().st_mode & 0o777 & ~0o640 == 0
    assert (tmp_path / "a").stat().st_mode & 0o777 & ~0o750 == 0


def test_no_more_waits_than_the_queue_may_hold(tmp_path: Path) -> None:
    writer = BackgroundWriter(queue_bytes=100, threads=1)
    gate = threading.Event()

    def slow() -> tuple[bytes, ...]:
        gate.wait(10)
        return (b"x",)

    started = threading.Event()

    def fill() -> None:
        for number in range(6):
            writer.put(str(tmp_path / str(number)), 40, slow)
            if number == 1:
                started.set()

    filler = threading.Thread(target=fill)
    filler.start()
    assert started.wait(10)
    time.sleep(0.05)
    assert filler.is_alive()  # the third has no room
    assert writer.peak_bytes == 80
    gate.set()
    filler.join(10)
    writer.finish()
    assert writer.peak_bytes <= 100
    assert len(names(tmp_path)) == 6


def test_a_file_larger_than_the_queue_is_let_in_alone(tmp_path: Path) -> None:
    writer = BackgroundWriter(queue_bytes=10)
    for number in range(3):
        writer.put(str(tmp_path / str(number)), 1000, lambda: (b"x" * 1000,))
    writer.finish()
    assert writer.peak_bytes == 1000
    assert len(names(tmp_path)) == 3


def test_the_first_error_is_raised_once_and_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a directory is needed")
    writer = BackgroundWriter(threads=1)
    outcomes: list[str] = []
    writer.put(str(tmp_path / "taken" / "f"), 1, lambda: (b"x",), outcomes.append)
    writer.put(str(tmp_path / "good"), 1, lambda: (b"x",), outcomes.append)
    with pytest.raises(AccError, match=r"taken.*cannot be written"):
        writer.finish()
    assert "taken" in outcomes[0]
    assert outcomes[1] == ""
    assert (tmp_path / "good").read_bytes() == b"x"
    writer.finish()


def test_content_that_fails_leaves_no_file_and_no_hanging_writer(tmp_path: Path) -> None:
    def broken() -> tuple[bytes, ...]:
        raise ZeroDivisionError("half way")

    def parts() -> Iterator[bytes]:
        yield b"first half"
        raise OSError(28, "No space left on device")

    writer = BackgroundWriter()
    writer.put(str(tmp_path / "a"), 1, broken)
    with pytest.raises(AccError, match="a: cannot be written: ZeroDivisionError: half way"):
        writer.finish()
    writer.put(str(tmp_path / "b"), 1, parts)
    with pytest.raises(AccError, match="b: cannot be written: No space left on device"):
        writer.finish()
    assert names(tmp_path) == []


def test_threads_end_when_there_is_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acc_pytest.capture.writer._IDLE_SECONDS", 0.01)
    before = threading.active_count()
    writer = BackgroundWriter()
    for round_ in range(2):
        writer.put(str(tmp_path / str(round_)), 1, lambda: (b"x",))
        writer.finish()
        deadline = time.monotonic() + 10
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() == before
    assert names(tmp_path) == ["0", "1"]
