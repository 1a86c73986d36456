"""numpy_file: arrays mapped from .npy files, whatever their order, and no pickles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from acc_pytest.errors import CannotDecode, FormatError
from acc_pytest.tensors import numpy_file
from acc_pytest.tensors.dtypes import by_name
from acc_pytest.tensors.ref import TensorRef
from tests.newer import known

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
