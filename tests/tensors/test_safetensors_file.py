"""safetensors_file: our reader agrees with the library's writer and enforces the format's rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from acc_pytest.errors import CannotDecode, FormatError
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.safetensors_file import keys
from tests.newer import torch_dtypes

TYPES = torch_dtypes(
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "bool"),
    *("uint64", "uint32", "uint16", "uint8"),
)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_what_the_library_writes_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {"a": torch.arange(6).reshape(2, 3).to(dtype), "empty": torch.empty(0, 4, dtype=dtype)}
    tensors["scalar"] = tensors["a"][0, 1].clone()
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    assert set(keys(str(path))) == set(tensors)
    for key, tensor in tensors.items():
        opened = TensorRef(str(path), key).open()
        assert (opened.dtype, opened.shape) == (dtype, tensor.shape)
        assert torch.equal(opened.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_a_single_tensor_needs_no_key_and_several_do(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"only": torch.ones(2)}, path)
    assert TensorRef(str(path)).open().tolist() == [1, 1]
    safetensors.torch.save_file({f"t{i}": torch.ones(2) for i in range(12)}, path)
    with pytest.raises(FormatError, match=r"holds 12 tensors, name one; its tensors: t0, .*, \.\.\."):
        TensorRef(str(path)).header()
    with pytest.raises(FormatError, match="has no tensor 'gone'"):
        TensorRef(str(path), "gone").header()


def written(path: Path, header: Any, payload: bytes = b"") -> TensorRef:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)
    return TensorRef(str(path), "a")


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "payload", "reason"),
    [
        ({"a": entry(), "b": entry(offsets=(8, 12))}, 12, "no holes or overlaps"),
        ({"a": entry(), "b": entry(offsets=(2, 6))}, 6, "no holes or overlaps"),
        ({"a": entry()}, 5, "end at byte"),
        ({"a": entry()}, 3, r"its tensors end at byte 73, the file has 72; was it truncated\?"),
        ({"a": entry(shape=(2,))}, 4, "takes 8 bytes"),
        ({"a": entry(shape=(2**62, 4))}, 4, "larger than any file"),
        ({"a": entry("F4", (3,), (0, 4))}, 4, "takes 2 bytes"),
        ({"a": entry("new", (3,), (4, 0))}, 4, "ends before it begins"),
        ({"a": entry(shape=(-1,))}, 4, "wrong type"),
        ({"a": entry(shape=(True,))}, 4, "wrong type"),
        ({"a": entry(shape="1")}, 4, "wrong type"),
        ({"a": entry(dtype=3)}, 4, "wrong type"),
        ({"a": entry(offsets=(0, 4.0))}, 4, "wrong type"),
        ({"a": entry(offsets=(0,))}, 4, "lacks"),
        ({"a": 3}, 4, "lacks"),
        ({"a": {}}, 4, "lacks"),
        ([], 0, r"its safetensors header is not a JSON object"),
        (b'{"a":1,"a":2}', 0, "appears twice"),
        (b'{"a":', 0, r"its safetensors header is not valid JSON"),
        (b"[" * 100_000, 0, r"its safetensors header is not valid JSON"),
        (b"\xff\xfe", 0, "not valid JSON"),
    ],
)
def test_headers_against_the_formats_rules_are_refused(
    tmp_path: Path, header: Any, payload: int, reason: str
) -> None:
    with pytest.raises(FormatError, match=reason):
        written(tmp_path / "x.safetensors", header, bytes(payload)).open()


@pytest.mark.parametrize("content", [b"", b"1234567", (2**63).to_bytes(8, "little") + b"{}"])
def test_a_header_longer_than_the_file_is_refused_before_it_is_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="the format allows 100000000"):
        keys(str(path))


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2"])
def test_packed_types_have_a_header_and_cannot_be_decoded(tmp_path: Path, dtype: str) -> None:
    size = 2 if dtype == "F4" else 3
    ref = written(tmp_path / "x.safetensors", {"a": entry(dtype, (4,), (0, size))}, bytes(size))
    assert ref.header().shape == (4,)
    with pytest.raises(CannotDecode, match=r"x\.safetensors:a: dtype"):
        ref.open()
