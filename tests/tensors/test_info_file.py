"""info_file: what is left of tensors that were converted, by us and by the scripts around the old tool."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from acc_pytest.errors import CannotDecode, FormatError, NoPayload
from acc_pytest.tensors.dtypes import by_name
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.info_file import Info, info_of, read_info, write_fx_info, write_ge_info
from acc_pytest.tensors.ref import TensorRef
from tests.newer import torch_dtype

FX = "add-aten.add.Tensor.OUTPUT.0.20261120202512053720_min_max.npy"
GE = "Add.Add_2.44.6.1706596912161941_min_max.npz"
VALUES = torch.tensor([[1.0, -2.0], [3.0, 2.0]], dtype=torch.float16)


def test_all_that_can_be_kept_of_an_fx_tensor_comes_back(tmp_path: Path) -> None:
    write_fx_info(tmp_path / FX, info_of(VALUES))
    assert read_info(tmp_path / FX)[""] == info_of(VALUES)
    header = TensorRef(str(tmp_path / FX)).header()
    assert (header.payload, header.shape, header.dtype.name) == ("statistics", (4,), "float16")
    assert header.statistics == Statistics(3, -2, 1, 18**0.5)
    with pytest.raises(NoPayload, match="holds only minimum and maximum"):
        TensorRef(str(tmp_path / FX)).open()


def test_all_tensors_of_a_record_come_back(tmp_path: Path) -> None:
    unknown = Info(Statistics(None, None, None, None))
    write_ge_info(tmp_path / GE, [info_of(VALUES), unknown], [info_of(torch.arange(3))])
    assert read_info(tmp_path / GE) == {
        "inputs/0": info_of(VALUES),
        "inputs/1": unknown,
        "outputs/0": info_of(torch.arange(3)),
    }
    assert TensorRef(str(tmp_path / GE), "outputs/0").header().dtype.name == "int64"
    with pytest.raises(FormatError, match=r"has no row 'outputs/1'; its rows: inputs/0, inputs/1, outputs/0"):
        TensorRef(str(tmp_path / GE), "outputs/1").header()


def test_statistics_alone_are_four_columns(tmp_path: Path) -> None:
    write_fx_info(tmp_path / FX, Statistics(3, -2, 1, None))
    assert np.load(tmp_path / FX).tolist()[:3] == [-2, 3, 1]
    assert np.load(tmp_path / FX).shape == (4,)
    assert read_info(tmp_path / FX)[""] == Info(Statistics(3, -2, 1, None))


def test_files_of_the_old_script_hold_minimum_and_maximum_in_the_tensors_type(tmp_path: Path) -> None:
    np.save(tmp_path / FX, np.array([-1, 2], dtype=np.float16))
    assert read_info(tmp_path / FX)[""] == Info(Statistics(2, -1, None, None), None, by_name("float16"))
    assert TensorRef(str(tmp_path / FX)).header().shape == ()
    np.savez(tmp_path / GE, inputs=np.array([[1.0, 2.0], [3.0, 4.0]]), outputs=np.array([]))
    assert list(read_info(tmp_path / GE)) == ["inputs/0", "inputs/1"]
    np.savez_compressed(tmp_path / GE, inputs=np.zeros((0, 2)), outputs=np.array([[5, 6]]))
    assert read_info(tmp_path / GE)["outputs/0"].statistics.max == 6


def test_a_type_without_a_code_is_left_out(tmp_path: Path) -> None:
    tensor = torch.ones(2).to(torch_dtype("float8_e4m3fnuz"))
    write_fx_info(tmp_path / FX, info_of(tensor))
    assert read_info(tmp_path / FX)[""].dtype is None
    assert read_info(tmp_path / FX)[""].numel == 2


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 2)])
def test_a_tensor_under_the_name_of_an_info_file_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / FX, np.zeros(shape))
    with pytest.raises(FormatError, match="instead of a row of 2 to 6 numbers per tensor"):
        read_info(tmp_path / FX)
    np.savez(tmp_path / GE, inputs=np.zeros(shape or 3), outputs=np.zeros((1, 2)))
    if shape != (2, 2):
        with pytest.raises(FormatError, match="inputs"):
            read_info(tmp_path / GE)


@pytest.mark.parametrize(
    "array",
    [np.array(["a", "b"]), np.zeros(2, np.complex64), np.zeros(2, ">f4"), np.asfortranarray(np.eye(2))],
)
def test_arrays_of_other_kinds_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / FX, array)
    with pytest.raises(FormatError, match=r"that info files never have"):
        read_info(tmp_path / FX)


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / GE, inputs=np.array([None, 1], dtype=object), outputs=np.zeros((1, 2)))
    with pytest.raises(FormatError, match="Python objects"):
        read_info(tmp_path / GE)


def test_an_archive_without_the_arrays_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / GE, inputs=np.zeros((1, 2)))
    with pytest.raises(FormatError, match=r"is not a valid \.npz info file: .*outputs\.npy"):
        read_info(tmp_path / GE)


def test_an_archive_that_unpacks_to_any_size_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / GE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inputs.npy", bytes(1 << 25))
        archive.writestr("outputs.npy", b"")
    with pytest.raises(FormatError, match="unpacks to more than"):
        read_info(tmp_path / GE)


def test_a_file_larger_than_any_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / FX, "wb") as file:
        file.truncate((1 << 24) + 1)
    with pytest.raises(FormatError, match="more than the 16777216 allowed"):
        read_info(tmp_path / FX)


def test_a_type_the_installed_torch_lacks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / FX, np.zeros(2, np.uint16))
    monkeypatch.delattr(torch, "uint16", raising=False)
    with pytest.raises(CannotDecode, match=r"needs torch 2\.3"):
        read_info(tmp_path / FX)


def test_wrong_numbers_are_not_known(tmp_path: Path) -> None:
    np.save(tmp_path / FX, np.array([1, 2, 3, 4, -5, np.inf]))
    assert read_info(tmp_path / FX)[""] == Info(Statistics(2, 1, 3, 4))


def test_a_row_among_wider_ones_is_of_the_narrowest_type_that_has_its_numbers(tmp_path: Path) -> None:
    """numpy makes one type of the rows of a record."""
    rows = np.array([[-0.1, 0.3], [np.float16(0.1), np.float16(0.2)]], dtype=np.float32)
    np.savez(tmp_path / GE, inputs=rows, outputs=rows.astype(np.float16))
    found = {member: info.dtype for member, info in read_info(tmp_path / GE).items()}
    names = {member: dtype.name if dtype is not None else "" for member, dtype in found.items()}
    assert names == {
        "inputs/0": "float32",
        "inputs/1": "float16",
        "outputs/0": "float16",
        "outputs/1": "float16",
    }


def test_minimum_and_maximum_alone_do_not_say_of_how_many_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / FX, np.array([-1, 2], dtype=np.float16))
    header = TensorRef(str(tmp_path / FX)).header()
    assert (header.shape, header.counted) == ((), False)
