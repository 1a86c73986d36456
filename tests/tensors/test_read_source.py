"""A tensor read past its mapping has the same values, and is no other file than the one that was mapped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import FormatError
from acc_pytest.tensors.mapped import mapped
from acc_pytest.tensors.read_source import ReadSource, source_of
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.source import TensorSource

NUMEL = 100_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of bytes that differ, with a few before them."""
    values = torch.arange(NUMEL + 6, dtype=torch.int32)
    (tmp_path / "x.bin").write_bytes(values.numpy().tobytes())
    return tmp_path / "x.bin"


def opened(path: Path, offset: int = 24) -> torch.Tensor:
    return mapped(str(path), torch.int32, (100, NUMEL // 100), offset)


def over_file(tensor: torch.Tensor) -> ReadSource:
    source = source_of(tensor)
    assert isinstance(source, ReadSource)
    return source


def test_values_are_those_of_the_mapping_wherever_a_tensor_begins(path: Path) -> None:
    room = bytearray(4 * NUMEL)
    whole = opened(path)
    for tensor in (whole, whole[3:7], whole[-1], opened(path, 8)):
        source = over_file(tensor)
        count = tensor.numel()
        for start, stop in ((0, count), (1, 2), (count // 3, count - 1)):
            assert torch.equal(source.copied(start, stop, room), source.read(start, stop))


def test_a_file_of_torch_is_read_too(tmp_path: Path) -> None:
    values = torch.randn(300, 100)
    torch.save(values, tmp_path / "x.pth")
    source = over_file(TensorRef(str(tmp_path / "x.pth")).open())
    assert torch.equal(source.copied(5, 20_000, bytearray(80_000)), values.reshape(-1)[5:20_000])


def test_what_lies_in_no_file_as_it_is_read_is_no_source_over_one(path: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.bin"
    small.write_bytes(bytes(64))
    tensors = (
        torch.zeros(NUMEL),
        opened(path).T,
        opened(path) + 0,
        mapped(str(small), torch.int32, (16,), 0),
    )
    assert [type(source_of(tensor)) for tensor in tensors] == [TensorSource] * 4


def test_a_file_that_was_replaced_or_is_gone_is_what_was_mapped(path: Path) -> None:
    tensor = opened(path)
    expected = tensor.clone()
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    os.replace(other, path)
    replaced = source_of(tensor)
    path.unlink()
    for source in (replaced, source_of(tensor)):
        assert type(source) is TensorSource
        assert torch.equal(source.read(0, NUMEL), expected.reshape(-1))


def test_a_file_that_becomes_shorter_is_named(path: Path) -> None:
    source = over_file(opened(path))
    os.truncate(path, 5000)
    with pytest.raises(FormatError, match=r"x\.bin: became shorter while it was read"):
        source.copied(1000, 2000, bytearray(4000))


def test_its_file_is_closed_with_it(path: Path) -> None:
    tensor = opened(path)
    before = len(os.listdir("/proc/self/fd"))
    source = over_file(tensor)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del source
    assert len(os.listdir("/proc/self/fd")) == before
