"""numpy_file: arrays mapped from .npy files, whatever their order, and no pickles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from acc_pytest.errors import CannotDecode, FormatError
from acc_pytest.tensors import dtypes, numpy_file
from acc_pytest.tensors.dtypes import DTYPES, by_atb_code, by_name, by_numpy, by_torch
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.safetensors_file import keys
from tests.newer import known, torch_dtype, torch_dtypes

UNSIGNED: list[Any] = [bits for bits in (8, 16, 32, 64) if known(by_name(f"uint{bits}"))]
PLAIN = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?", sizes=UNSIGNED),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
)


def saved(path: Path, array: np.ndarray, **options: bool) -> TensorRef:
    np.save(path, array, **options)
    return TensorRef(str(path))


@given(
    PLAIN.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))), st.booleans()
)
def test_every_plain_array_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, fortran: bool
) -> None:
    array = np.asarray(array, order="F" if fortran else "C")
    ref = saved(tmp_path_factory.getbasetemp() / "array.npy", array)
    opened = ref.open()
    native = array.astype(array.dtype.newbyteorder("="))
    assert (tuple(opened.shape), ref.header().dtype.name) == (array.shape, array.dtype.name)
    assert opened.contiguous().numpy().tobytes() == native.tobytes()


def test_a_fortran_array_is_a_view_of_the_file_not_a_copy(tmp_path: Path) -> None:
    opened = saved(tmp_path / "x.npy", np.asfortranarray(np.arange(6.0).reshape(2, 3))).open()
    assert opened.stride() == (1, 2)


def test_bfloat16_survives_numpys_forgetting_its_name(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0, 3.25], dtype=ml_dtypes.bfloat16)
    opened = saved(tmp_path / "x.npy", values).open()
    assert opened.dtype == torch.bfloat16
    assert opened.tolist() == [1.5, -2.0, 3.25]


def test_the_second_header_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array(file, np.arange(4, dtype="f4"), version=(2, 0))
    assert TensorRef(str(path)).open().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([b"a"]), np.zeros(2, "M8[s]"), np.zeros(2, "V1")]
)
def test_arrays_without_numbers_cannot_be_decoded(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(CannotDecode, match=r"x\.npy: dtype numpy"):
        saved(tmp_path / "x.npy", array).open()


def test_objects_are_refused_without_unpickling(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="never unpickled"):
        saved(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True).header()


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_structured_arrays_of_the_third_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="version \\(3, 0\\)"):
        saved(tmp_path / "x.npy", np.zeros(2, dtype=[("张", "f4")])).header()


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (8589934592,)}\n") + bytes(4),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}\n") + bytes(4),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775807, 3)}\n"),
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}\n") + bytes(5),
        header("{'descr': '<f4', 'shape': (1,)}\n") + bytes(4),
        header("{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,)}\n") + bytes(4),
        header("(" * 5000),
        header("__import__('os').mkdir('x')"),
    ],
)
def test_a_lying_or_damaged_header_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"x\.npy"):
        TensorRef(str(path)).open()


@pytest.mark.parametrize(
    ("array", "kind"), [([1.5], "f"), (["text"], "U"), ([None], "O")], ids=["numbers", "text", "objects"]
)
def test_the_stored_dtype_is_told_without_opening_anything(
    tmp_path: Path, array: list[object], kind: str
) -> None:
    np.save(tmp_path / "a.npy", np.array(array))
    dtype = numpy_file.stored_dtype(str(tmp_path / "a.npy"))
    assert dtype is not None
    assert dtype.kind == kind


@pytest.mark.parametrize(
    "header",
    [b"{'descr': [[[", b"{'descr': (1,2), 'fortran_order': 0, 'shape': 'x'}", b"\xff\xfe", b""],
)
def test_a_broken_header_has_no_stored_dtype(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert numpy_file.stored_dtype(str(path)) is None
    assert numpy_file.stored_dtype(str(tmp_path / "none.npy")) is None


# safetensors_file: our reader agrees with the library's writer and enforces the format's rules.


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


# dtypes: one table serves ATB codes, CSV names, torch, numpy and safetensors.


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
