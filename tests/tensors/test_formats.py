"""formats: a path finds its format by suffix, or by content where the suffix says nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from acc_pytest.errors import FormatError
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.formats import format_of
from acc_pytest.tensors.ref import TensorRef

VALUES = torch.tensor([[1.0, -2.0, 3.5]])


def as_torch(path: Path) -> None:
    torch.save(VALUES, path)


def as_legacy_torch(path: Path) -> None:
    torch.save(VALUES, path, _use_new_zipfile_serialization=False)


def as_numpy(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, VALUES.numpy())


def as_safetensors(path: Path) -> None:
    safetensors.torch.save_file({"only": VALUES}, path)


def as_atb(path: Path) -> None:
    atb_bin.write(path, VALUES)


WRITERS: dict[str, Callable[[Path], None]] = {
    ".bin": as_atb,
    ".pth": as_torch,
    ".pt": as_legacy_torch,
    ".npy": as_numpy,
    ".safetensors": as_safetensors,
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("name", ["tensor{}", "TENSOR{}", "no suffix", "tensor.0", "größer 张量{}"])
def test_every_format_opens_under_its_suffix_and_without(tmp_path: Path, suffix: str, name: str) -> None:
    path = tmp_path / name.format(suffix.upper() if name.isupper() else suffix)
    WRITERS[suffix](path)
    ref = TensorRef(str(path))
    assert ref.header().shape == (1, 3)
    assert torch.equal(ref.open(), VALUES)


def test_statistics_files_are_found_by_their_first_line(tmp_path: Path) -> None:
    path = tmp_path / "statistics"
    path.write_text("NodeName,NodeType,InputOutput,Index,DataType,Shape,Max,Min,Mean,L2Norm\n")
    assert format_of(str(path)).name == "statistics"


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + bytes(80), b"{}"])
def test_an_unknown_format_lists_the_supported_ones(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    with pytest.raises(
        FormatError, match=r"known tensor format; supported: ATB \(\.bin\), torch \(\.pth \.pt\), numpy"
    ):
        format_of(str(path))


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_wrong_suffix_is_a_clear_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"this is a text file\n" * 10)
    with pytest.raises(FormatError, match="x" + suffix):
        TensorRef(str(path)).open()
