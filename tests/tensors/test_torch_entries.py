"""The directory of an archive of `torch.save` reads as `zipfile` reads it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import FormatError
from acc_pytest.tensors.torch_archive import ArchiveEntry, encode, entries_in


def saved(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def ours(tensor: torch.Tensor) -> bytes:
    archive = encode(tensor)
    return b"".join((archive.head, archive.data, archive.tail))


def zipped(*names: str, method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.comment = comment
        for name in names:
            archive.writestr(name, name * 9)
    return file.getvalue()


ARCHIVES = {
    "torch": saved(torch.arange(6.0)),
    "torch, several": saved([torch.zeros(2), torch.ones(3, dtype=torch.int8)]),  # type: ignore[arg-type]
    "ours": ours(torch.arange(6.0)),
    "zipfile": zipped("a/data.pkl", "a/data/0"),
    "no entry": zipped(),
    "a comment": zipped("a/data.pkl", comment=b"PK"),
    "a name that is not ASCII": zipped("\u00e4/data.pkl"),
    "something in front": b"x" * 100 + zipped("a/data.pkl"),
}


def by_zipfile(content: bytes) -> list[ArchiveEntry]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [
            ArchiveEntry(
                e.filename, e.header_offset, e.file_size, e.CRC, e.compress_type != zipfile.ZIP_STORED
            )
            for e in archive.infolist()
        ]


def read(content: bytes) -> list[ArchiveEntry]:
    return entries_in("x.pth", io.BytesIO(content), len(content))


@pytest.mark.parametrize("content", ARCHIVES.values(), ids=ARCHIVES)
def test_entries_are_those_of_zipfile(content: bytes) -> None:
    assert read(content) == by_zipfile(content)


@pytest.mark.parametrize("content", [ARCHIVES["torch"], ARCHIVES["ours"]], ids=["torch", "ours"])
def test_files_of_torch_need_no_zipfile(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = by_zipfile(content)
    monkeypatch.delattr(zipfile, "ZipFile")
    assert read(content) == entries


@given(
    st.sampled_from([ARCHIVES["torch"], ARCHIVES["ours"], ARCHIVES["zipfile"]]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 40),
)
def test_a_spoilt_directory_is_read_as_zipfile_reads_it_or_refused(
    content: bytes, changes: list[tuple[float, int]], cut: int
) -> None:
    spoilt = bytearray(content)
    first = content.rindex(b"PK\x01\x02")
    for where, value in changes:
        spoilt[first + int(where * (len(content) - first - 1))] = value
    whole = bytes(spoilt[: len(spoilt) - cut])
    try:
        entries = read(whole)
    except FormatError:
        return
    try:
        expected = by_zipfile(whole)
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return  # it wants a newer program, say, and lists what it has nevertheless
    assert entries == expected


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="compressed"):
        read(zipped("a/data.pkl", method=zipfile.ZIP_DEFLATED))
