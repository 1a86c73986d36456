"""torch_archive: files that torch.load reads as its own, made of parts, the same for the same values."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import pytest
import torch

from acc_pytest.tensors import torch_archive
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.torch_archive import encode
from tests.newer import torch_dtypes

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
