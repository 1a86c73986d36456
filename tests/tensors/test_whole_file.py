"""whole_file: a file is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acc_pytest.errors import AccError
from acc_pytest.tensors.whole_file import make_directory, whole_file


def test_the_file_appears_when_the_block_ends_with_its_mode_and_directories(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "f.bin"
    before = os.umask(0)
    try:
        with whole_file(target) as file:
            file.write(b"half")
            file.flush()
            assert not target.exists()
            file.write(b" and half")
    finally:
        os.umask(before)
    assert target.read_bytes() == b"half and half"
    assert target.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750
    assert os.listdir(target.parent) == ["f.bin"]


def test_what_lay_there_survives_a_block_that_raises(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"old")

    def interrupted() -> None:
        with whole_file(target) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_refusals_of_the_system_name_the_file(tmp_path: Path) -> None:
    def write(target: Path, problem: OSError | None = None) -> None:
        with whole_file(target):
            if problem is not None:
                raise problem

    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    with pytest.raises(AccError, match=r"file/f: cannot be written: Not a directory"):
        write(tmp_path / "file" / "f")
    with pytest.raises(AccError, match="directory: cannot be written: Is a directory"):
        write(tmp_path / "directory")
    with pytest.raises(AccError, match="full: cannot be written: No space left"):
        write(tmp_path / "full", OSError(28, "No space left on device"))
    with pytest.raises(AccError, match=r"cannot be written: .*embedded null"):
        write(tmp_path / "a\0b")
    assert sorted(os.listdir(tmp_path)) == ["directory", "file"]


def test_a_directory_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    mode = tmp_path.stat().st_mode
    make_directory(tmp_path)
    assert tmp_path.stat().st_mode == mode
