"""dtypes: one table serves ATB codes, CSV names, torch, numpy and safetensors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from acc_pytest.errors import CannotDecode
from acc_pytest.tensors import dtypes
from acc_pytest.tensors.dtypes import DTYPES, by_atb_code, by_name, by_numpy, by_torch
from tests.newer import torch_dtype

# code, bytes of one element, name in torch: the table every ATB header is read by.
ATB = [
    (0, 4, "float32"),
    (1, 2, "float16"),
    (2, 1, "int8"),
    (3, 4, "int32"),
    (4, 1, "uint8"),
    (6, 2, "int16"),
    (7, 2, "uint16"),
    (8, 4, "uint32"),
    (9, 8, "int64"),
    (10, 8, "uint64"),
    (11, 8, "float64"),
    (12, 1, "bool"),
    (16, 8, "complex64"),
    (17, 16, "complex128"),
    (27, 2, "bfloat16"),
    (33, 4, "complex32"),
    (35, 1, "float8_e5m2"),
    (36, 1, "float8_e4m3fn"),
    (37, 1, "float8_e8m0fnu"),
]


@pytest.mark.parametrize(("code", "size", "name"), ATB)
def test_an_atb_code_means_this_torch_type_of_this_size(code: int, size: int, name: str) -> None:
    dtype, found = torch_dtype(name), by_atb_code(code)
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
    ("name", "torch_name"),
    [
        ("float", "float32"),
        ("bf16", "bfloat16"),
        ("double", "float64"),
        ("torch.float16", "float16"),
        ("torch.int64", "int64"),
        ("F8_E4M3", "float8_e4m3fn"),
        ("BF16", "bfloat16"),
        ("BOOL", "bool"),
        ("U16", "uint16"),
        ("C64", "complex64"),
        (" int32 ", "int32"),
    ],
)
def test_names_of_csv_files_torch_and_safetensors_are_known(name: str, torch_name: str) -> None:
    expected = torch_dtype(torch_name)
    assert by_name(name).torch_dtype() == expected


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
    torch_type = torch_dtype(dtype.name)
    following = (torch.ones(1).to(torch_type).view(bits) + 1).view(torch_type)
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
    monkeypatch.delattr(torch, "uint32", raising=False)
    with pytest.raises(CannotDecode, match=r"uint32 needs torch 2\.3"):
        by_atb_code(8).torch_dtype()


def test_layout_codes_and_names_answer_each_other() -> None:
    assert all(dtypes.layout_code(name) == code for code, name in dtypes.LAYOUTS.items())
    assert dtypes.layout_name(29) == "fractal_nz"
    assert dtypes.layout_name(99) == "undefined(99)"
    assert dtypes.layout_code("nchc") == 1
    assert dtypes.layout_code("nc1hc0") == 3
    assert dtypes.layout_code("no such layout") == -1
