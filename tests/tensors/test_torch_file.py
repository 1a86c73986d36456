"""torch_file: one dense tensor per file, mapped, detached, and never unpickled in full."""

from __future__ import annotations

import math
import os
import pickle
import resource
import zipfile
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import FormatError, NoPayload
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.torch_file import pickle_advice


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
