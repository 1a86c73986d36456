"""Paths, modes, and writes that fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acc_pytest.errors import AccError, DumpError
from acc_pytest.lab.atb.probe.files import append_text, check_name, check_path, replace_text


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/a b/c", "holds other characters"),
        ("/" + "a" * 256, "is longer"),
        ("/a" * 3000, "is longer"),
        ("/a" * 33, "more than 32 slashes"),
    ],
)
def test_a_path_the_probe_would_not_write_is_an_error(path: str, reason: str) -> None:
    with pytest.raises(DumpError, match=reason):
        check_path(path)


def test_usual_paths_and_names_pass() -> None:
    check_path("/data/run-1/A_b/msit_dump_20250101_000000/tensors/0_1/0/1_Op/before/intensor0.bin")
    check_name('Layer<int, "x">_0')
    with pytest.raises(DumpError, match="no topology under this name"):
        check_name("Layer\n0")


def test_files_are_replaced_and_lines_added_with_the_probes_modes(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        for text in ("long text", "short"):
            replace_text(f"{tmp_path}/new/a.json", text)
        for text in ("one\n", "two\n"):
            append_text(f"{tmp_path}/grown/a.csv", text)
    finally:
        os.umask(old)
    assert (tmp_path / "new/a.json").read_text() == "short"
    assert (tmp_path / "grown/a.csv").read_text() == "one\ntwo\n"
    for name in ("new", "grown"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o750
    for name in ("new/a.json", "grown/a.csv"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (replace_text, append_text):
        with pytest.raises(AccError, match=r"file/a\.txt: cannot be written"):
            write(f"{tmp_path}/file/a.txt", "x")


def test_a_write_that_is_cut_short_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/a.csv"
    append_text(path, "whole\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with pytest.raises(DumpError, match="3 of 5 bytes fit"):
        append_text(path, "half\n")
    assert Path(path).read_text() == "whole\n"
