"""mapped: tensors over files without reading them, sizes checked first."""

from __future__ import annotations

import errno
import os
import resource
import warnings
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import FormatError
from acc_pytest.tensors import file_bytes as module
from acc_pytest.tensors.file_bytes import byte_count, check_mapped, mapped, opened
from acc_pytest.tensors.ref import TensorRef


@pytest.mark.parametrize("offset", [0, 1, 7, 98, 4096, 4099])
@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_any_alignment_gives_the_values(tmp_path: Path, offset: int, count: int) -> None:
    values = torch.arange(count, dtype=torch.float64)
    path = tmp_path / "x"
    path.write_bytes(b"\xff" * offset + values.numpy().tobytes() + b"\xff")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(mapped(str(path), torch.float64, (count,), offset), values)


@pytest.mark.parametrize("count", [10, 100_000])
def test_writing_to_the_tensor_leaves_the_file_alone(tmp_path: Path, count: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(count))
    mapped(str(path), torch.uint8, (count,), 0).fill_(7)
    assert path.read_bytes() == bytes(count)


def test_scalars_and_empty_tensors_need_no_special_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(4))
    assert mapped(str(path), torch.float32, (), 0).shape == ()
    assert mapped(str(path), torch.float32, (0, 64), 4).shape == (0, 64)


def test_ten_gigabytes_are_opened_without_taking_memory(tmp_path: Path) -> None:
    path, size = tmp_path / "sparse", 10 << 30
    with open(path, "wb") as file:
        file.truncate(size + 98)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensor = mapped(str(path), torch.float16, (size // 2,), 98)
    assert tensor.shape == (size // 2,)
    assert tensor[-1] == 0
    # Kilobytes; one page was touched, the margin is for the allocator.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_tensor_beyond_the_end_is_refused_with_both_sizes(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(16))
    with pytest.raises(FormatError, match=rf"16 bytes at offset {offset}, the file has 16"):
        mapped(str(path), torch.float32, (4,), offset)


def test_directories_pipes_and_missing_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in ((tmp_path / "pipe", "pipe"), (tmp_path, "directory"), (tmp_path / "no", "No such")):
        with pytest.raises(FormatError, match=reason), opened(str(path)):
            pass
    with pytest.raises(FormatError, match="null"), opened("with\0null"):
        pass


@pytest.mark.parametrize("shape", [(-1,), (1,) * 65, (2**62, 4), (0, 2**62, 2**62)])
def test_shapes_no_tensor_can_have_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(FormatError, match="declares"):
        byte_count("file", shape, 32)


def test_bytes_are_counted_for_packed_types_too() -> None:
    assert byte_count("file", (3, 5), 4) == 8
    assert byte_count("file", (3, 0), 32) == 0
    assert byte_count("file", (), 16) == 2


def test_a_file_that_shrinks_meanwhile_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(8))
    real = os.fstat

    def taller(descriptor: int) -> os.stat_result:
        fields = list(real(descriptor))
        fields[6] = 16
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", taller)
    with pytest.raises(FormatError, match="became shorter"):
        mapped(str(path), torch.uint8, (16,), 0)


def opened_as(path: Path, kind: str) -> torch.Tensor:
    if kind == "pth":
        torch.save(torch.zeros(100_000), path.with_suffix(".pth"))
        return TensorRef(str(path.with_suffix(".pth"))).open()
    path.write_bytes(bytes(400_000))
    return mapped(str(path), torch.float32, (100_000,), 0)


@pytest.mark.parametrize("kind", ["bytes", "pth"])
def test_a_file_that_becomes_shorter_is_named_before_it_is_touched(tmp_path: Path, kind: str) -> None:
    tensor = opened_as(tmp_path / "x", kind)
    view = tensor.detach()[1:].reshape(-1)
    del tensor
    check_mapped()
    (path,) = tmp_path.iterdir()
    os.truncate(path, 5000)
    with pytest.raises(FormatError, match=rf"{path.name}: became shorter while it was read \(to 5000 bytes"):
        check_mapped()
    del view
    check_mapped()


@pytest.mark.parametrize("kind", ["bytes", "pth"])
def test_a_file_that_grows_is_replaced_or_deleted_stays_what_was_mapped(tmp_path: Path, kind: str) -> None:
    tensor = opened_as(tmp_path / "x", kind)
    (path,) = tmp_path.iterdir()
    with open(path, "ab") as file:
        file.write(bytes(1000))
    check_mapped()
    (tmp_path / "new").write_bytes(b"short")
    os.replace(tmp_path / "new", path)
    check_mapped()
    path.unlink()
    check_mapped()
    assert not tensor.any()


def test_a_handle_that_went_stale_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stale:
        def size(self) -> int:
            raise OSError(errno.ESTALE, "Stale file handle")

    stale = Stale()
    monkeypatch.setitem(module._mappings, stale, module.Mapped("/nfs/x.bin", 0, 1))  # type: ignore[misc]  # a stand-in
    with pytest.raises(FormatError, match="became unreadable while it was read: Stale file handle"):
        check_mapped()
