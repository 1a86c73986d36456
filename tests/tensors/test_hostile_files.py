"""Damage of every kind gives a typed error or a tensor of the declared size, and takes no memory for lies."""

from __future__ import annotations

import functools
import io
import itertools
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.errors import AccError, FormatError
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.ge_file import GE_COLUMNS, members
from acc_pytest.tensors.ge_message import GeRecord, GeTensor, OriginalOp, by_ge_code, ge_layout_name
from acc_pytest.tensors.ge_record import read_record
from acc_pytest.tensors.ref import TensorRef
from tests.slow import slow
from tests.tensors.ge_writer import GeValue, serialise, write_record

VALUES = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
GE = ".1706596912161941"
SUFFIXES = (
    ".bin",
    ".npy",
    ".safetensors",
    ".pth",
    ".pt",
    GE,
    ".csv",
    "_ge.csv",
    "_min_max.npz",
    "_min_max.npy",
)
TENSORS = SUFFIXES[:6]
MEMBERS = {GE: "outputs/1", ".csv": "Output/0", "_ge.csv": "outputs/0", "_min_max.npz": "outputs/0"}
STATISTICS = (
    b"NodeName,NodeType,InputOutput,Index,DataType,Shape,Max,Min,Mean,L2Norm\n"
    b'root.a,A,Output,0,torch.float32,"(2, 3, 4)",4.5,-2.0,0.25,7.0\n'
)


@functools.cache
def sound(suffix: str) -> bytes:
    """A sound file of each format; `.pt` stands for the one before torch 1.6."""
    buffer = io.BytesIO()
    if suffix == ".npy":
        np.save(buffer, VALUES.numpy())
    elif suffix == ".safetensors":
        return safetensors.torch.save({"a": VALUES})
    elif suffix == ".csv":
        return STATISTICS
    elif suffix == "_ge.csv":
        return f"{GE_COLUMNS},Count,Max Value\nOutput,0,96,DT_FLOAT,ND,2x3x4,24,4.5\n".encode()
    elif suffix == "_min_max.npz":
        np.savez(buffer, inputs=np.zeros((1, 2)), outputs=np.array([[1.0, 2.0]]))
    elif suffix == "_min_max.npy":
        np.save(buffer, np.array([1.0, 2.0]))
    elif suffix == GE:
        return record()
    elif suffix == ".bin":
        length = VALUES.numel() * 4
        header = f"$Version=1.0\n$Object.Count=1\n$Object.Length={length}\nformat=2\ndtype=0\ndims=2,3,4\n"
        return f"{header}$Object.data=0,{length}\n$End=1\n".encode() + VALUES.numpy().tobytes()
    else:
        torch.save(VALUES, buffer, _use_new_zipfile_serialization=suffix == ".pth")
    return buffer.getvalue()


def record() -> bytes:
    """A GE record with a tensor in tiles, one without memory on the device, and one as it is."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_record(
            f"{folder}/x",
            "Add_1",
            [GeValue(VALUES, "fractal_nz"), GeValue(VALUES, null=True)],
            [GeValue(VALUES[0], dtype="int4", original_op=OriginalOp("Add")), VALUES],
            dump_time=1,
            attrs=[("a", "b")],
        )
        return Path(path).read_bytes()


def reference(path: Path) -> TensorRef:
    members = [member for suffix, member in MEMBERS.items() if path.name.endswith(suffix)]
    return TensorRef(str(path), members[-1] if members else "")


def test_the_sound_files_are_sound(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        path = tmp_path / f"x{suffix}"
        path.write_bytes(sound(suffix))
        if suffix in TENSORS:
            assert torch.equal(reference(path).open(), VALUES)
        else:
            assert reference(path).header().statistics is not None


def assert_error_or_tensor(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    ref = reference(path)
    try:
        header = ref.header()
        tensor = ref.open()
    except AccError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert str(path) in said
        return
    assert tuple(tensor.shape) == header.shape
    assert tensor.dtype == header.dtype.torch_dtype()
    # A tensor of the declared size whose every byte is there: summing it must not fault.
    tensor.reshape(-1).view(torch.uint8).sum() if tensor.numel() else None


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_flipped_cut_and_repeated_bytes_are_errors_or_tensors(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    content = bytearray(sound(suffix))
    places = st.integers(0, len(content) - 1)
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(places)] = data.draw(st.integers(0, 255))
    start, stop = data.draw(places), data.draw(st.integers(0, len(content)))
    changed = data.draw(
        st.sampled_from(
            [
                bytes(content),
                bytes(content[:stop]),
                bytes(content[:start] + content[stop:]),
                bytes(content * 2),
            ]
        )
    )
    assert_error_or_tensor(tmp_path_factory.getbasetemp() / f"hostile{suffix}", changed)


NUMBERS = st.one_of(
    st.integers(-2, 30), st.sampled_from([2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 10**30])
)


@given(st.lists(NUMBERS, max_size=5), NUMBERS, NUMBERS, NUMBERS, NUMBERS)
@settings(max_examples=150, deadline=None)
def test_atb_headers_that_lie_take_no_memory(
    tmp_path_factory: pytest.TempPathFactory, dims: list[int], code: int, total: int, offset: int, length: int
) -> None:
    header = (
        f"$Version=1.0\n$Object.Count=1\n$Object.Length={total}\ndtype={code}\n"
        f"dims={','.join(map(str, dims))}\n$Object.data={offset},{length}\n$End=1\n"
    )
    tracemalloc.start()
    try:
        assert_error_or_tensor(tmp_path_factory.getbasetemp() / "lie.bin", header.encode() + bytes(40))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_any_bytes_under_any_suffix_are_an_error_or_a_tensor(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    for suffix in (*SUFFIXES, ""):
        assert_error_or_tensor(tmp_path_factory.getbasetemp() / f"noise{suffix}", content)


def test_a_written_file_is_what_the_mutations_start_from(tmp_path: Path) -> None:
    atb_bin.write(tmp_path / "x.bin", VALUES)
    assert (tmp_path / "x.bin").read_bytes() == sound(".bin")


DIMS = st.lists(st.one_of(st.integers(0, 20), st.sampled_from([2**31, 2**40, 2**62, 2**64 - 1])), max_size=6)
TILED = [3, 4, 12, 29, 32, 33, 50, 54]
LYING = st.builds(
    lambda code, layout, shape, original, nbytes, address, groups: GeTensor(
        by_ge_code(code),
        ge_layout_name(layout),
        tuple(shape),
        None if original is None else tuple(original),
        nbytes,
        address,
        groups,
    ),
    st.integers(0, 42),
    st.one_of(st.sampled_from([0, 1, 2, 16]), st.sampled_from(TILED)),
    DIMS,
    st.one_of(st.none(), DIMS),
    st.one_of(st.integers(0, 600), st.sampled_from([2**31, 2**62, 2**63, 2**64 - 1])),
    st.sampled_from([0, 4096]),
    st.integers(0, 3),
)


@given(
    st.lists(LYING, min_size=1, max_size=4), st.integers(0, 700), st.lists(NUMBERS.filter(abs), max_size=2)
)
@settings(max_examples=80, deadline=None)
def test_ge_records_that_lie_take_no_memory(
    tmp_path_factory: pytest.TempPathFactory, tensors: list[GeTensor], held: int, buffers: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / f"lie{GE}"
    sizes = tuple(abs(size) % 2**64 for size in buffers)
    header = serialise(GeRecord("x", 1, tuple(tensors[:1]), tuple(tensors[1:]), buffers=sizes))
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(held))
    tracemalloc.start()
    try:
        for member in members(str(path)):
            ref = TensorRef(str(path), member)
            said = ""
            try:
                found, described = ref.open(), ref.header()
            except AccError as error:
                said = str(error)
            if said:
                assert str(path) in said
                continue
            assert (found.shape, found.dtype) == (described.shape, described.dtype.torch_dtype())
            # Padding is all that a logical tensor can lack; bits of a byte are all that it can have more.
            assert found.untyped_storage().nbytes() <= max(8 * held, 16)
            found.reshape(-1).view(torch.uint8).sum() if found.numel() else None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_every_flipped_bit_of_a_ge_record_is_an_error_or_a_tensor(tmp_path: Path) -> None:
    content = sound(GE)
    path = tmp_path / f"x{GE}"
    for byte, bit in itertools.product(range(int.from_bytes(content[:8], "little") + 12), range(8)):
        changed = bytearray(content)
        changed[byte] ^= 1 << bit
        assert_error_or_tensor(path, bytes(changed))


@pytest.mark.slow
def test_every_cut_of_a_ge_record_leaves_whole_tensors_or_errors(tmp_path: Path) -> None:
    content = sound(GE)
    path = tmp_path / f"x{GE}"
    for stop in range(len(content)):
        assert_error_or_tensor(path, content[:stop])
        if stop > len(content) - 96:
            with pytest.raises(FormatError, match=r"is truncated"):
                TensorRef(str(path), "outputs/1").open()
            assert TensorRef(str(path), "outputs/0").open().shape == (3, 4)


@pytest.mark.parametrize(
    "field", [b"\xa0\x01\x01", b"\x1a\x00", slow(b"\x1a\x02\x1a\x00"), slow(b"\x22\x04\x12\x02\x0a\x00")]
)
def test_a_header_of_millions_of_fields_ends_soon(tmp_path: Path, field: bytes) -> None:
    header = (b"\x10\x01" + field * (4 << 20))[: 4 << 20]
    path = tmp_path / f"x{GE}"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    start = time.process_time()
    with pytest.raises(AccError):
        read_record(path)
    # 100 000 fields at a few microseconds each; without the limit they are millions.
    assert time.process_time() - start < 10
