"""A tensor read past its mapping has the same values, and is no other file than the one that was mapped."""

from __future__ import annotations

import errno
import math
import os
import resource
import warnings
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from acc_pytest.errors import AccError, FormatError
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import Measurement
from acc_pytest.metrics.native.library import VARIABLE
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors import file_bytes as module
from acc_pytest.tensors.file_bytes import byte_count, check_mapped, mapped, opened
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
from acc_pytest.tensors.whole_file import make_directory, whole_file

NUMEL = 100_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of bytes that differ, with a few before them."""
    values = torch.arange(NUMEL + 6, dtype=torch.int32)
    (tmp_path / "x.bin").write_bytes(values.numpy().tobytes())
    return tmp_path / "x.bin"


def over_mapping(path: Path, offset: int = 24) -> torch.Tensor:
    return mapped(str(path), torch.int32, (100, NUMEL // 100), offset)


def over_file(tensor: torch.Tensor) -> ReadSource:
    source = source_of(tensor)
    assert isinstance(source, ReadSource)
    return source


def test_values_are_those_of_the_mapping_wherever_a_tensor_begins(path: Path) -> None:
    room = bytearray(4 * NUMEL)
    whole = over_mapping(path)
    for tensor in (whole, whole[3:7], whole[-1], over_mapping(path, 8)):
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
        over_mapping(path).T,
        over_mapping(path) + 0,
        mapped(str(small), torch.int32, (16,), 0),
    )
    assert [type(source_of(tensor)) for tensor in tensors] == [TensorSource] * 4


def test_a_file_that_was_replaced_or_is_gone_is_what_was_mapped(path: Path) -> None:
    tensor = over_mapping(path)
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
    source = over_file(over_mapping(path))
    os.truncate(path, 5000)
    with pytest.raises(FormatError, match=r"x\.bin: became shorter while it was read"):
        source.in_memory(1000, 2000, bytearray(4000))


def test_its_file_is_closed_with_it(path: Path) -> None:
    tensor = over_mapping(path)
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


# mapped: tensors over files without reading them, sizes checked first.


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


# whole_file: a file is there whole or not at all.


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
