"""Damage of every kind gives a typed error or a tensor of the declared size, and takes no memory for lies."""

from __future__ import annotations

import functools
import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.errors import AccError
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.ref import TensorRef

VALUES = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
SUFFIXES = (".bin", ".npy", ".safetensors", ".pth", ".pt", ".csv")
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
    elif suffix == ".bin":
        length = VALUES.numel() * 4
        header = f"$Version=1.0\n$Object.Count=1\n$Object.Length={length}\nformat=2\ndtype=0\ndims=2,3,4\n"
        return f"{header}$Object.data=0,{length}\n$End=1\n".encode() + VALUES.numpy().tobytes()
    else:
        torch.save(VALUES, buffer, _use_new_zipfile_serialization=suffix == ".pth")
    return buffer.getvalue()


def test_the_sound_files_are_sound(tmp_path: Path) -> None:
    for suffix in SUFFIXES[:-1]:
        path = tmp_path / f"x{suffix}"
        path.write_bytes(sound(suffix))
        assert torch.equal(TensorRef(str(path)).open(), VALUES)


def assert_error_or_tensor(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    ref = TensorRef(str(path), "Output/0" if path.suffix == ".csv" else "")
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
