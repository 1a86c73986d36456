"""A tensor read past its mapping has the same values, and is no other file than the one that was mapped."""

from __future__ import annotations

import math
import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from acc_pytest.errors import FormatError
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import Measurement
from acc_pytest.metrics.native.library import VARIABLE
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.file_bytes import mapped
from acc_pytest.tensors.header import looking_once
from acc_pytest.tensors.read_source import (
    ReadSource,
    StoredSource,
    opened_source,
    source_of,
    whole_numbers,
)
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
            assert torch.equal(source.in_memory(start, stop, room).tensor(), source.read(start, stop))


def test_a_file_of_torch_is_read_too(tmp_path: Path) -> None:
    values = torch.randn(300, 100)
    torch.save(values, tmp_path / "x.pth")
    source = over_file(TensorRef(str(tmp_path / "x.pth")).open())
    assert torch.equal(source.in_memory(5, 20_000, bytearray(80_000)).tensor(), values.reshape(-1)[5:20_000])


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
        source.in_memory(1000, 2000, bytearray(4000))


def test_its_file_is_closed_with_it(path: Path) -> None:
    tensor = opened(path)
    before = len(os.listdir("/proc/self/fd"))
    source = over_file(tensor)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del source
    assert len(os.listdir("/proc/self/fd")) == before


# Tensors that were not opened

SAVED = {
    "fp16.npy": torch.float16,
    "fp32.npy": torch.float32,
    "fp16.pth": torch.float16,
    "bf16.pth": torch.bfloat16,
    "fp32.bin": torch.float32,
    "bf16.bin": torch.bfloat16,
    "bf16.safetensors": torch.bfloat16,
}


def saved(path: Path, tensor: torch.Tensor) -> TensorRef:
    """The tensor in a file of the format that its suffix says."""
    if path.suffix == ".npy":
        np.save(path, tensor.numpy())
    elif path.suffix == ".pth":
        torch.save(tensor, path)
    elif path.suffix == ".bin":
        atb_bin.write(path, tensor)
    else:
        save_file({"x": tensor}, path)
    return TensorRef(str(path), "x" if path.suffix == ".safetensors" else "")


def stored(ref: TensorRef) -> StoredSource:
    source = opened_source(ref)
    assert isinstance(source, StoredSource)
    return source


@pytest.mark.parametrize("shape", [(3, 5), (300, 200), (0, 4)], ids=["small", "large", "empty"])
@pytest.mark.parametrize("name", SAVED)
def test_a_tensor_that_lies_in_its_file_as_it_is_read_is_not_opened(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    values = torch.randn(shape).to(SAVED[name])
    source = stored(saved(tmp_path / name, values))
    assert (tuple(source.shape), source.dtype) == (shape, SAVED[name])
    flat, numel, room = values.reshape(-1), values.numel(), bytearray(4 * values.numel())
    for start, stop in ((0, numel), (numel // 3, numel - 1)) if numel else ():
        for found in (source.read(start, stop), source.in_memory(start, stop, room).tensor()):
            assert torch.equal(found, flat[start:stop])
    assert [source.element(at) for at in range(0, numel, 7)] == flat[::7].tolist()


WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
"""Types of whole numbers; of truth values any byte but 0 is one."""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("numel", [24, 30_000], ids=["small", "large"])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_read_and_measured_without_torch(name: str, numel: int, tmp_path: Path) -> None:
    """Their measurement is that of the tensors, to the rounding of float64 sums."""
    dtype = np.dtype(name)
    draw = np.random.default_rng(5)
    if name == "bool":
        golden = draw.integers(0, 2, numel).astype(bool)
        mine = golden ^ (draw.integers(0, 9, numel) == 0)
    else:
        limits = np.iinfo(dtype)
        golden = draw.integers(limits.min, limits.max, numel, dtype, endpoint=True)
        golden[:2] = limits.min, limits.max
        mine = np.where(draw.integers(0, 9, numel) == 0, golden ^ dtype.type(1), golden)
    refs = []
    for side, values in (("g", golden), ("m", mine)):
        np.save(tmp_path / f"{side}.npy", values)
        refs.append(TensorRef(str(tmp_path / f"{side}.npy")))
    g, m = map(stored, refs)
    assert whole_numbers(refs[0]) == g.elements() == golden.tolist()
    assert [g.element(at) for at in range(0, numel, 97)] == golden[::97].tolist()
    found = measure(g, m)
    assert found.mismatches == int((golden != mine).sum())
    assert not found.identical
    assert measure(g, stored(refs[0])).identical
    if not hasattr(torch, name):
        return
    tensors = (torch.from_numpy(values.view(f"i{dtype.itemsize}")) for values in (golden, mine))
    given = getattr(torch, name)
    expected = measure(*(TensorSource(one.view(given)) for one in tensors), double=True)
    for field in fields(Measurement):
        value, wanted = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(wanted, float):
            assert value == pytest.approx(wanted, rel=1e-11), field.name
        elif field.name != "moments":
            assert value == wanted, field.name


def test_a_byte_of_a_truth_value_may_be_any(tmp_path: Path) -> None:
    golden, mine = (saved(tmp_path / f"{side}.bin", torch.ones(4, dtype=torch.bool)) for side in "gm")
    content = Path(mine.path).read_bytes()
    Path(mine.path).write_bytes(content[:-4] + bytes([1, 2, 1, 255]))
    found = measure(stored(golden), stored(mine))
    assert (found.mismatches, found.mine_max, found.identical) == (0, 1.0, False)


def test_its_elements_are_those_of_torch(tmp_path: Path) -> None:
    """All that two bytes may be, NaN and infinity among them."""
    for dtype in (torch.float16, torch.bfloat16):
        bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
        source = stored(saved(tmp_path / "x.pth", bits.view(dtype)))
        expected = bits.view(dtype).tolist()
        assert [repr(source.element(at)) for at in range(len(expected))] == [*map(repr, expected)]


@pytest.mark.parametrize("name", ["transposed.npy", "swapped.npy", "doubles.npy", "expanded.pth"])
def test_every_other_tensor_is(name: str, tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = tmp_path / name
    if name == "transposed.npy":
        np.save(path, np.asfortranarray(values))
    elif name == "swapped.npy":
        np.save(path, values.astype(">f4"))
    elif name == "doubles.npy":
        np.save(path, values.astype(np.float64))
    else:
        torch.save(torch.from_numpy(values[:, :1]).expand(3, 4), path)
        values = values[:, :1].repeat(4, axis=1)
    source = opened_source(TensorRef(str(path)))
    assert not isinstance(source, StoredSource)
    assert source.read(0, 12).tolist() == values.reshape(-1).tolist()


def test_a_file_that_was_cut_since_its_header_was_read_is_named(tmp_path: Path) -> None:
    """Before it is opened, and while it is read."""
    ref = saved(tmp_path / "cut.bin", torch.ones(200, 300))
    source = stored(ref)
    with looking_once():
        ref.header()
        os.truncate(ref.path, 50_000)
        with pytest.raises(FormatError, match=r"cut\.bin: is truncated: needs 240000 bytes"):
            opened_source(ref)
    with pytest.raises(FormatError, match=r"cut\.bin: became shorter while it was read"):
        source.in_memory(0, 60_000, bytearray(240_000))


def test_the_file_of_a_large_one_is_closed_with_it(tmp_path: Path) -> None:
    ref = saved(tmp_path / "x.npy", torch.ones(200, 300))
    before = len(os.listdir("/proc/self/fd"))
    source = stored(ref)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del source
    assert len(os.listdir("/proc/self/fd")) == before


def test_it_is_measured_as_the_tensor_is(tmp_path: Path) -> None:
    """Every digit, by the native kernel, in Python and in float64."""
    torch.manual_seed(4)
    for number, shape in enumerate([(7,), (40, 30), (300, 200), (3, 1 << 19)]):
        golden = torch.randn(shape).half()
        mine = (golden.float() + 1e-3 * torch.randn(shape)).bfloat16()
        golden.view(-1)[3] = math.nan
        refs = [saved(tmp_path / f"{side}{number}.pth", one) for side, one in (("g", golden), ("m", mine))]
        for kernel in ("auto", "python"):
            for double in (False, True):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv(VARIABLE, kernel)
                    expected = measure(TensorSource(golden), TensorSource(mine), double=double)
                    found = measure(*map(stored, refs), double=double)
                assert repr(found) == repr(expected)
