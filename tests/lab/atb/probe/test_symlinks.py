"""The hash by which tensors are told apart, and the links."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.errors import DumpError
from acc_pytest.lab.atb.probe.files import FirstFiles, hash_of

PRIME = 1099511628211
BASIS = 14695981039346656037


def word(state: int, data: bytes) -> int:
    return (state ^ int.from_bytes(data.ljust(8, b"\0"), "little")) * PRIME % 2**64


def test_the_hash_takes_attributes_places_and_payload_in_words_of_eight_bytes() -> None:
    state = BASIS
    for part in (b"format2d", b"type0dim", b"s2,2"):  # the last word is padded with zeros
        state = word(state, part)
    header = {"format": "2", "dtype": "0", "dims": "2,2"}
    assert hash_of(header, None) == state
    for part in (b"", (12).to_bytes(8, "little"), b"01234567", b"89ab"):
        state = word(state, part)
    assert hash_of(header, b"0123456789ab") == state


def test_only_later_files_of_a_hash_are_links_and_an_old_file_is_replaced(tmp_path: Path) -> None:
    first = FirstFiles()
    (tmp_path / "b").write_text("old")
    assert not first.link(f"{tmp_path}/a", 1)
    assert first.link(f"{tmp_path}/b", 1)
    assert not first.link(f"{tmp_path}/a", 1)
    assert (tmp_path / "b").readlink() == tmp_path / "a"


def test_a_link_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first = FirstFiles()
    first.link(f"{tmp_path}/a", 1)
    with pytest.raises(DumpError, match="file/b: cannot be written"):
        first.link(f"{tmp_path}/file/b", 1)
