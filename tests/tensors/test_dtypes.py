"""dtypes: one table serves ATB codes, CSV names, torch, numpy and safetensors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from acc_pytest.errors import CannotDecode
from acc_pytest.tensors import dtypes
from acc_pytest.tensors.dtypes import DTYPES, by_atb_code, by_name, by_numpy, by_torch

# code, bytes of one element, torch type: the table every ATB header is read by.
ATB = [
    (0, 4, torch.float32),
    (1, 2, torch.float16),
    (2, 1, torch.int8),
    (3, 4, torch.int32),
    (4, 1, torch.uint8),
    (6, 2, torch.int16),
    (7, 2, torch.uint16),
    (8, 4, torch.uint32),
    (9, 8, torch.int64),
    (10, 8, torch.uint64),
    (11, 8, torch.float64),
    (12, 1, torch.bool),
    (16, 8, torch.complex64),
    (17, 16, torch.complex128),
    (27, 2, torch.bfloat16),
    (33, 4, torch.complex32),
    (35, 1, torch.float8_e5m2),
    (36, 1, torch.float8_e4m3fn),
    (37, 1, torch.float8_e8m0fnu),
]


@pytest.mark.parametrize(("code", "size", "dtype"), ATB)
def test_an_atb_code_means_this_torch_type_of_this_size(code: int, size: int, dtype: torch.dtype) -> None:
    found = by_atb_code(code)
    assert (found.itemsize, found.torch_dtype()) == (size, dtype)
    assert by_torch(dtype) is found
    assert dtype.itemsize == size


@pytest.mark.parametrize("code", [-1, 13, 29, 30, 34, 38, 39, 40, 41, 1234])
def test_a_code_without_numbers_behind_it_says_that_it_cannot_be_decoded(code: int) -> None:
    dtype = by_atb_code(code)
    assert dtype.kind == "raw"
    with pytest.raises(CannotDecode, match="no decoder"):
        dtype.torch_dtype()


def test_an_unknown_code_is_named_as_atb_names_it() -> None:
    assert str(by_atb_code(1234)) == "undefined(1234)"


@pytest.mark.parametrize("code", [29, 30, 38, 40])
def test_packed_types_have_no_whole_number_of_bytes(code: int) -> None:
    assert by_atb_code(code).itemsize is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float", torch.float32),
        ("bf16", torch.bfloat16),
        ("double", torch.float64),
        ("torch.float16", torch.float16),
        ("torch.int64", torch.int64),
        ("F8_E4M3", torch.float8_e4m3fn),
        ("BF16", torch.bfloat16),
        ("BOOL", torch.bool),
        ("U16", torch.uint16),
        ("C64", torch.complex64),
        (" int32 ", torch.int32),
    ],
)
def test_names_of_csv_files_torch_and_safetensors_are_known(name: str, dtype: torch.dtype) -> None:
    assert by_name(name).torch_dtype() == dtype


def test_a_name_nobody_knows_is_kept_and_cannot_be_decoded() -> None:
    assert by_name("float3_e1m1").name == "float3_e1m1"
    assert by_name("").name == "undefined"
    with pytest.raises(CannotDecode, match="float3_e1m1"):
        by_name("float3_e1m1").torch_dtype()


def test_no_name_or_code_stands_twice_in_the_table() -> None:
    names = [name for dtype in DTYPES for name in {dtype.name, dtype.atb_name, *dtype.aliases} if name]
    codes = [dtype.atb_code for dtype in DTYPES if dtype.atb_code is not None]
    assert len(names) == len(set(names))
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind == "float"], ids=str)
def test_the_unit_roundoff_is_half_the_spacing_above_one(dtype: dtypes.DType) -> None:
    bits = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[dtype.bits]
    following = (torch.ones(1).to(dtype.torch_dtype()).view(bits) + 1).view(dtype.torch_dtype())
    assert dtype.roundoff == (float(following.to(torch.float64)) - 1) / 2


@pytest.mark.parametrize("name", ["int8", "bool", "hifloat8"])
def test_exact_and_raw_types_have_no_roundoff(name: str) -> None:
    assert by_name(name).roundoff is None


@pytest.mark.parametrize("dtype", ["f4", ">f8", "i2", "u8", "?", "c16"])
def test_numpy_types_are_known_in_either_byte_order(dtype: str) -> None:
    known = by_numpy(np.dtype(dtype))
    assert known.name == np.dtype(dtype).name
    assert known.itemsize == np.dtype(dtype).itemsize


def test_bfloat16_is_known_with_and_without_its_name() -> None:
    assert by_numpy(np.dtype(ml_dtypes.bfloat16)).name == "bfloat16"
    assert by_numpy(np.dtype("V2")).name == "bfloat16"


@pytest.mark.parametrize("dtype", ["U3", "S4", "V1", "M8[s]", "f4,i4", "g"])
def test_other_numpy_types_are_raw(dtype: str) -> None:
    assert by_numpy(np.dtype(dtype)).kind == "raw"


def test_a_type_the_installed_torch_lacks_names_the_release_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch, "uint32")
    with pytest.raises(CannotDecode, match=r"uint32 needs torch 2\.3"):
        by_atb_code(8).torch_dtype()


def test_layout_codes_and_names_answer_each_other() -> None:
    assert all(dtypes.layout_code(name) == code for code, name in dtypes.LAYOUTS.items())
    assert dtypes.layout_name(29) == "fractal_nz"
    assert dtypes.layout_name(99) == "undefined(99)"
    assert dtypes.layout_code("nchc") == 1
    assert dtypes.layout_code("nc1hc0") == 3
    assert dtypes.layout_code("no such layout") == -1
