"""torch_file: one dense tensor per file, mapped, detached, and never unpickled in full."""

from __future__ import annotations

import io
import math
import os
import pickle
import random
import resource
import sys
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import AccError, FormatError, NoPayload
from acc_pytest.tensors import torch_archive
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.torch_archive import ArchiveEntry, encode, entries_in
from acc_pytest.tensors.torch_file import content_of, pickle_advice, stored_crc
from tests.newer import torch_dtypes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output.pth"


def saved(path: Path, value: object, **options: bool) -> TensorRef:
    torch.save(value, path, **options)
    return TensorRef(str(path))


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64])
@pytest.mark.parametrize("shape", [(), (0, 64), (3, 5)])
def test_a_tensor_comes_back_as_it_was(
    path: Path, new: bool, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    ref = saved(path, tensor, _use_new_zipfile_serialization=new)
    assert (ref.header().dtype.torch_dtype(), ref.header().shape) == (dtype, shape)
    assert ref.open().dtype == dtype
    assert torch.equal(ref.open(), tensor)


@pytest.mark.skipif(not hasattr(torch._utils, "_rebuild_tensor_v3"), reason="torch 2.1 cannot save float8")
def test_types_newer_than_the_legacy_format_come_back(path: Path) -> None:
    tensor = torch.tensor([1.5, -2.0]).to(torch.float8_e5m2)
    assert torch.equal(saved(path, tensor).open().view(torch.uint8), tensor.view(torch.uint8))


def test_a_dtype_that_this_torch_does_not_know_yet_is_said(path: Path) -> None:
    torch.save(torch.tensor([1.5, -2.0]), path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data.replace(b"ctorch\nFloatStorage", b"ctorch\nfloat8_e9m9"))
    with pytest.raises(FormatError, match="its dtype is newer than torch"):
        TensorRef(str(path)).open()


def test_gradients_parameters_and_lazy_conjugates_are_stripped(path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    opened = saved(path, parameter).open()
    assert type(opened) is torch.Tensor
    assert not opened.requires_grad
    conjugate = torch.tensor([1 + 2j]).conj()
    assert not saved(path.with_name("conj.pth"), conjugate).open().is_conj()


def test_a_small_view_of_a_huge_storage_is_mapped_not_read(path: Path) -> None:
    ref = saved(path, torch.zeros(1 << 26, dtype=torch.uint8)[:: 1 << 25])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert ref.open().tolist() == [0, 0]
    # Kilobytes: the storage has 65536 of them, of which two pages are touched.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8192


def test_a_transposed_tensor_keeps_its_strides(path: Path) -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(saved(path, tensor).open(), tensor)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ((torch.ones(1), torch.ones(2)), "a tuple of 2"),
        ([torch.ones(1), torch.ones(2)], "a list of 2"),
        ({"weight": torch.ones(1), "bias": torch.ones(2)}, "a dict with keys 'weight', 'bias'"),
        (3, "a int"),
    ],
)
def test_anything_but_one_tensor_is_named(path: Path, value: object, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        saved(path, value).open()


def test_sparse_quantized_and_meta_tensors_are_refused(path: Path) -> None:
    with pytest.raises(FormatError, match="sparse"):
        saved(path, torch.eye(3).to_sparse()).open()
    with pytest.raises(NoPayload, match="device meta"):
        saved(path.with_name("meta.pth"), torch.ones(3, device="meta")).open()


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_code_in_a_pickle_is_not_run(path: Path, new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    ref = saved(path, Hostile(), _use_new_zipfile_serialization=new)
    with pytest.raises(FormatError, match="never unpickled in full; save plain tensors"):
        ref.open()
    assert not (path.parent / "executed").exists()


def test_a_bare_pickle_is_no_torch_file(path: Path) -> None:
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(FormatError, match=r"was not written by torch\.save: it starts with"):
        TensorRef(str(path)).open()


@pytest.mark.parametrize("keep", [0, 3, 100, 400, -1])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_cut_file_is_an_error_that_names_it(path: Path, keep: int, new: bool) -> None:
    ref = saved(path, torch.ones(1000), _use_new_zipfile_serialization=new)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FormatError, match=r"output\.pth"):
        ref.open()


def rezipped(path: Path, compression: int, extra: int = 0) -> TensorRef:
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    entries |= {f"output/extra{number}": b"" for number in range(extra)}
    with zipfile.ZipFile(path, "w", compression) as new:
        for name, content in entries.items():
            new.writestr(name, content)
    return TensorRef(str(path))


def test_a_compressed_archive_is_refused_before_it_is_inflated(path: Path) -> None:
    saved(path, torch.ones(1000))
    with pytest.raises(FormatError, match="compressed or larger"):
        rezipped(path, zipfile.ZIP_DEFLATED).open()


def test_an_archive_of_countless_entries_is_refused(path: Path) -> None:
    saved(path, torch.ones(10))
    with pytest.raises(FormatError, match="entries"):
        rezipped(path, zipfile.ZIP_STORED, extra=10_000).open()


def test_old_torch_is_called_unsafe_for_foreign_files() -> None:
    assert pickle_advice("2.10.0") == ""
    assert pickle_advice("3.0") == ""
    assert "CVE-2025-32434" in pickle_advice("2.5.1+cpu")
    assert "2.10 or newer" in pickle_advice("2.9.1")
    assert "trust" in pickle_advice("unknown")
    assert isinstance(pickle_advice(), str)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_path_that_is_not_utf_8_opens(path: Path, new: bool) -> None:
    here = Path(os.fsdecode(os.fsencode(path.parent) + b"/\xca\xfd\xbe\xdd.pth"))
    saved(path, torch.arange(6.0), _use_new_zipfile_serialization=new)
    path.rename(here)
    tensor = TensorRef(str(here)).open()
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]
    here.write_bytes(b"cut")
    with pytest.raises(FormatError, match=r"\.pth: was not written by torch.save"):
        TensorRef(str(here)).open()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_few_elements_that_are_shown_as_billions_are_refused(tmp_path: Path, zipped: bool) -> None:
    """A file of kilobytes would else take minutes to compare."""
    path = tmp_path / "x.pth"
    torch.save(torch.zeros(2000, 1).expand(2000, 10**6), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(
        FormatError, match=r"is a view of 2000000000 elements over 2000; save tensor\.contiguous\(\)"
    ):
        TensorRef(str(path)).header()
    torch.save(torch.zeros(1).expand(32, 512, 512), path, _use_new_zipfile_serialization=zipped)
    assert TensorRef(str(path)).header().shape == (32, 512, 512)


def test_an_old_file_that_asks_for_more_memory_than_it_can_fill_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save(torch.zeros(2000), path, _use_new_zipfile_serialization=False)
    sound = path.read_bytes()
    assert sound.count(b"M\xd0\x07") == 2
    path.write_bytes(sound.replace(b"M\xd0\x07", b"\x8a\x05" + (10**11).to_bytes(5, "little"), 1))
    with pytest.raises(FormatError, match=f"declares {10**11} elements, but has {path.stat().st_size} bytes"):
        TensorRef(str(path)).header()


def test_what_pickle_says_of_a_damaged_old_file_is_cut_to_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save(torch.zeros(3), path, _use_new_zipfile_serialization=False)
    mark, stop, rest = path.read_bytes().partition(b".")
    path.write_bytes(mark + stop + b"F" + b"\xf9 j\xa8P" * 1000 + b"\n" + rest)
    with pytest.raises(FormatError, match=r"is a damaged torch file .could not convert") as told:
        TensorRef(str(path)).header()
    assert len(str(told.value)) < 300 + len(str(path))


@pytest.mark.parametrize("named", [0, 2])
def test_an_old_file_must_have_the_bytes_of_each_storage_once(path: Path, named: int) -> None:
    """Of a storage that is not listed torch shows whatever was in the memory that it took."""
    torch.save(torch.ones(2, 3), path, _use_new_zipfile_serialization=False)
    before, start, after = path.read_bytes().rpartition(b"\x80\x02]")
    (key,) = pickle.loads(start + after)
    values = after[after.index(b"a.") + 2 :]
    path.write_bytes(before + pickle.dumps([key] * named, 2) + values * max(named, 1))
    said = rf"output\.pth: has the bytes of the storages .*, but its tensors lie in \['{key}'\];"
    with pytest.raises(FormatError, match=said):
        TensorRef(str(path)).open()


def test_views_of_one_storage_and_several_storages_of_an_old_file_are_sound(path: Path) -> None:
    whole = torch.arange(6.0)
    value = {"a": whole[:3], "b": whole[3:], "c": torch.ones(2, dtype=torch.float16)}
    torch.save(value, path, _use_new_zipfile_serialization=False)
    with pytest.raises(FormatError, match="a dict with keys 'a', 'b', 'c', not one tensor"):
        TensorRef(str(path)).open()


def test_a_storage_of_other_bytes_than_its_archive_has_is_refused(path: Path) -> None:
    """torch would read what follows in the file. Of a tensor in order the header sees it."""
    saved(path, torch.arange(6.0).reshape(2, 3).T)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data[:8] if name.endswith("data/0") else data)
    with pytest.raises(FormatError, match=r"output\.pth: has 8 bytes of the storage '0' and declares 24;"):
        TensorRef(str(path)).open()


# torch_archive: files that torch.load reads as its own, made of parts, the same for the same values.


DTYPES = torch_dtypes(
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"),
)


def written(path: Path, tensor: torch.Tensor) -> Path:
    archive = encode(tensor)
    path.write_bytes(archive.head + bytes(archive.data) + archive.tail)
    assert path.stat().st_size == archive.nbytes
    return path


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


UNTYPED = hasattr(torch._utils, "_rebuild_tensor_v3")
"""Whether this torch has files of dtypes without a typed storage: from 2.2 on."""


@pytest.mark.parametrize("dtype", [d for d in DTYPES if UNTYPED or "float8" not in str(d)], ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 5), (0, 4), (1, 1)], ids=str)
def test_torch_and_our_reader_load_what_was_encoded(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    path = written(tmp_path / "x.pth", tensor)
    for mapped in (False, True):
        loaded = torch.load(str(path), weights_only=True, mmap=mapped)
        assert (loaded.dtype, loaded.shape, raw(loaded)) == (dtype, tensor.shape, raw(tensor))
        assert loaded.is_contiguous()
        assert not loaded.requires_grad
    assert raw(TensorRef(str(path)).open()) == raw(tensor)


def test_the_archive_is_sound_and_its_storage_aligned(tmp_path: Path) -> None:
    tensor = torch.randn(7, 9)
    path = written(tmp_path / "x.pth", tensor)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        entry = archive.getinfo("archive/data/0")
        assert entry.CRC == encode(tensor).crc32 == zlib.crc32(raw(tensor))
    start = path.read_bytes().index(raw(tensor))
    assert start % 64 == 0


def test_the_pickle_is_the_one_that_torch_save_writes(tmp_path: Path) -> None:
    untyped = [torch.zeros(2, dtype=torch.float8_e4m3fn)] if UNTYPED else []
    for tensor in (torch.zeros(2, 3), torch.zeros(()), *untyped):
        torch.save(tensor, tmp_path / "theirs.pth")
        ours = written(tmp_path / "ours.pth", tensor)
        with zipfile.ZipFile(tmp_path / "theirs.pth") as theirs, zipfile.ZipFile(ours) as mine:
            name = next(name for name in theirs.namelist() if name.endswith("data.pkl"))
            assert mine.read("archive/data.pkl") == theirs.read(name)


def test_equal_values_give_equal_bytes_under_every_name(tmp_path: Path) -> None:
    tensor = torch.randn(4, 4)
    one = written(tmp_path / "output.pth", tensor).read_bytes()
    assert written(tmp_path / "input_0.pth", tensor.clone()).read_bytes() == one


def test_views_are_copied_without_what_they_are_views_of(tmp_path: Path) -> None:
    base = torch.arange(1e6).reshape(1000, 1000)
    path = written(tmp_path / "x.pth", base.t()[5:6, ::100])
    assert path.stat().st_size < 2000
    assert torch.equal(torch.load(path, weights_only=True), base.t()[5:6, ::100])
    conjugated = torch.tensor([1 + 2j]).conj()
    assert torch.load(written(path, conjugated), weights_only=True).item() == 1 - 2j


def test_what_a_small_archive_cannot_hold_is_saved_by_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_archive, "_LARGEST", 100)
    tensor = torch.randn(50)
    assert torch.equal(torch.load(written(tmp_path / "x.pth", tensor), weights_only=True), tensor)


def test_a_dtype_that_this_torch_cannot_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._utils, "_rebuild_tensor_v3", raising=False)
    with pytest.raises(TypeError, match=r"cannot save torch\.float8_e5m2; torch 2\.2 can"):
        encode(torch.zeros(1, 2, 77).to(torch.float8_e5m2))


@pytest.mark.parametrize(
    "tensor", [torch.eye(2).to_sparse(), torch.empty(2, device="meta")], ids=["sparse", "meta"]
)
def test_only_dense_tensors_with_values_have_a_file(tensor: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="dense tensors on the CPU"):
        encode(tensor)


# The directory of an archive of `torch.save` reads as `zipfile` reads it.


def saved_entries(tensor: torch.Tensor) -> bytes:
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
    "torch": saved_entries(torch.arange(6.0)),
    "torch, several": saved_entries([torch.zeros(2), torch.ones(3, dtype=torch.int8)]),  # type: ignore[arg-type]
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


# torch_members: tensors in files that hold several, by their members; it agrees with torch.load.


WHOLE = torch.arange(24.0).reshape(4, 6)
HELD: dict[Any, Any] = {
    "value": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "list": [torch.ones(3, dtype=torch.int8), None, (torch.tensor(7), "text")],
    "ordered": OrderedDict(a=torch.zeros(2, dtype=torch.bool)),
    "parameter": torch.nn.Parameter(torch.full((2,), 3.0)),
    "part": WHOLE[1:3],
    "transposed": WHOLE.T,
    "spread": torch.ones(1, 3).expand(4, 3),
    "empty": torch.empty(0, 5),
    7: torch.tensor(8.5),
    "meta": {
        "step": 0,
        "dims": "t h",
        "size": 2.5,
        "none": None,
        "big": 1 << 70,
        "deep": {"x": torch.ones(1)},
    },
}
MEMBERS = {
    "value": HELD["value"],
    "list/0": HELD["list"][0],
    "list/2/0": HELD["list"][2][0],
    "ordered/a": HELD["ordered"]["a"],
    "parameter": HELD["parameter"].detach(),
    "part": HELD["part"],
    "transposed": HELD["transposed"],
    "spread": HELD["spread"],
    "empty": HELD["empty"],
    "7": HELD[7],
    "meta/deep/x": HELD["meta"]["deep"]["x"],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "held.pt"
    torch.save(HELD, path)
    return path


def test_the_members_of_a_file_in_its_order(file: Path) -> None:
    assert list(content_of(str(file)).tensors) == list(MEMBERS)


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_is_what_torch_reads(file: Path, member: str) -> None:
    ref, expected = TensorRef(str(file), member), MEMBERS[member]
    header, found = ref.header(), ref.open()
    assert header.shape == tuple(expected.shape)
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert torch.equal(found, expected)


def test_what_is_beside_the_tensors_is_read_but_not_made(file: Path) -> None:
    meta = content_of(str(file)).value["meta"]  # type: ignore[index]
    assert {key: meta[key] for key in ("step", "dims", "size", "none", "big")} == {
        key: HELD["meta"][key] for key in ("step", "dims", "size", "none", "big")
    }


def test_a_member_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(FormatError, match="has no tensor 'other'; its tensors: value, list/0"):
        TensorRef(str(file), "other").header()


def test_a_file_of_one_tensor_needs_no_member(tmp_path: Path) -> None:
    torch.save({"value": HELD["transposed"], "meta": {"name": "x"}}, tmp_path / "one.pt")
    assert torch.equal(TensorRef(str(tmp_path / "one.pt")).open(), HELD["transposed"])
    torch.save({"value": HELD["value"], "meta": {"name": "x"}}, tmp_path / "other.pt")
    assert torch.equal(TensorRef(str(tmp_path / "other.pt")).open(), HELD["value"])


class _Evil:
    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return sys.exit, self.arguments


def test_objects_beside_a_tensor_are_not_made(tmp_path: Path) -> None:
    path = tmp_path / "held.pt"
    torch.save({"value": torch.ones(2), "meta": {"evil": _Evil(3), _Evil: [_Evil(torch.ones(1))]}}, path)
    assert list(content_of(str(path)).tensors) == ["value"]
    assert TensorRef(str(path), "value").open().tolist() == [1, 1]


def test_check_sums_of_whole_storages(file: Path, tmp_path: Path) -> None:
    torch.save(HELD["value"], tmp_path / "alone.pt")
    assert stored_crc(str(file), "value") == stored_crc(str(tmp_path / "alone.pt"))
    for member in ("part", "transposed", "spread", "other"):
        assert stored_crc(str(file), member) is None
    assert stored_crc(str(tmp_path / "x.safetensors"), "data") is None


@pytest.mark.parametrize("value", [3, "text", None, [], {}, {"meta": {}}])
def test_files_without_a_tensor_have_no_member(tmp_path: Path, value: object) -> None:
    torch.save(value, tmp_path / "held.pt")
    assert not content_of(str(tmp_path / "held.pt")).tensors
    with pytest.raises(FormatError):
        TensorRef(str(tmp_path / "held.pt")).header()


def test_lists_that_hold_themselves_end(tmp_path: Path) -> None:
    value: list[Any] = [torch.ones(1)]
    value.append(value)
    torch.save(value, tmp_path / "held.pt")
    with pytest.raises(FormatError, match="values 16 deep"):
        content_of(str(tmp_path / "held.pt"))
    wide: list[Any] = [torch.ones(1)]
    for _ in range(14):
        wide = [wide] * 10
    torch.save(wide, tmp_path / "wide.pt")
    with pytest.raises(FormatError, match="more than 100000 values"):
        content_of(str(tmp_path / "wide.pt"))


def test_views_of_few_elements_that_show_many_are_refused(tmp_path: Path) -> None:
    torch.save({"value": torch.ones(1).expand(1 << 40)}, tmp_path / "held.pt")
    with pytest.raises(FormatError, match="is a view of"):
        TensorRef(str(tmp_path / "held.pt"), "value").open()


def test_files_older_than_zip_archives_have_no_members(tmp_path: Path) -> None:
    torch.save({"value": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(FormatError, match="older than torch 1"):
        TensorRef(str(tmp_path / "old.pt"), "value").header()


def test_damage_gives_typed_errors_or_a_tensor_of_the_declared_size(file: Path, tmp_path: Path) -> None:
    sound = file.read_bytes()
    chance = random.Random(11)
    broken = tmp_path / "broken.pt"
    for number in range(1500):
        content = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            # Most of the file is one pickle, which is where lies are.
            content[chance.randrange(len(content))] = chance.randrange(256)
        if number % 10 == 0:
            del content[chance.randrange(len(content)) :]
        broken.write_bytes(content)
        for member in ("value", "transposed", "list/2/0"):
            try:
                header = TensorRef(str(broken), member).header()
                assert TensorRef(str(broken), member).open().numel() == header.numel
            except AccError:
                continue


# The check sum of a tensor's bytes, taken from the directory of its file.


VALUES = torch.arange(24.0).reshape(4, 6)


def saved_tensor(path: Path, value: object, **options: Any) -> str:
    torch.save(value, path / "x.pth", **options)
    return str(path / "x.pth")


@pytest.mark.parametrize(
    "tensor",
    [
        VALUES,
        torch.nn.Parameter(VALUES),
        VALUES.bfloat16(),
        VALUES.to(torch.float8_e4m3fn),
        VALUES > 3,
        VALUES[:1].clone().unsqueeze(2),
        torch.tensor(3),
        torch.complex(VALUES, VALUES),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_it_is_the_sum_of_the_bytes_in_row_major_order(tmp_path: Path, tensor: torch.Tensor) -> None:
    plain = tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    try:
        path = saved_tensor(tmp_path, tensor)
    except KeyError:
        pytest.skip(f"torch {torch.__version__} cannot save {tensor.dtype}")
    assert stored_crc(path) == (zlib.crc32(plain), len(plain))
    archive = encode(tensor.detach())
    (tmp_path / "ours.pth").write_bytes(archive.head + bytes(archive.data.cast("B")) + archive.tail)
    assert stored_crc(str(tmp_path / "ours.pth")) == (archive.crc32, len(plain))


@pytest.mark.parametrize("tensor", [VALUES.t(), VALUES[1:], VALUES[:, :3], VALUES[:2], VALUES[::2]])
def test_a_view_has_none_for_the_storage_is_not_the_tensor(tmp_path: Path, tensor: torch.Tensor) -> None:
    assert stored_crc(saved_tensor(tmp_path, tensor)) is None


def test_other_files_have_none(tmp_path: Path) -> None:
    assert stored_crc(saved_tensor(tmp_path, (VALUES, VALUES.clone()))) is None
    assert stored_crc(saved_tensor(tmp_path, {"a": VALUES})) is None
    assert stored_crc(saved_tensor(tmp_path, VALUES, _use_new_zipfile_serialization=False)) is None
    assert stored_crc(saved_tensor(tmp_path, torch.empty(3, device="meta"))) is None
    assert stored_crc(str(tmp_path / "nowhere.pth")) is None
    numpy.save(tmp_path / "x.npy", VALUES.numpy())
    assert stored_crc(str(tmp_path / "x.npy")) is None


def test_a_writer_that_makes_no_sums_gives_none(tmp_path: Path) -> None:
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always makes check sums")
    torch.serialization.set_crc32_options(False)
    try:
        path = saved_tensor(tmp_path, VALUES)
    finally:
        torch.serialization.set_crc32_options(True)
    assert stored_crc(path) is None


def test_damage_and_lies_give_none_and_never_an_error(tmp_path: Path) -> None:
    content = Path(saved_tensor(tmp_path, VALUES)).read_bytes()
    bad = tmp_path / "bad.pth"
    for cut in range(0, len(content), 37):
        bad.write_bytes(content[:cut])
        assert stored_crc(str(bad)) is None
    for position in range(0, len(content), 11):
        bad.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        stored_crc(str(bad))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return print, ("called",)


@pytest.mark.parametrize(
    "program",
    [
        pickle.dumps(Evil(), 2),
        pickle.dumps([1], 2),
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # LONG_BINPUT 2^31-1: a table of 16 GB
        b"\x80\x02" + b"(" * 100_000 + b".",
        b"",
    ],
)
def test_a_pickle_of_anything_else_is_not_run(
    tmp_path: Path, program: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "x.pth", "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/data/0", b"abcd")
    assert stored_crc(str(tmp_path / "x.pth")) is None
    assert capsys.readouterr().out == ""
