"""info_file: what is left of tensors that were converted, by us and by the scripts around the old tool."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.errors import CannotDecode, FormatError, NoPayload
from acc_pytest.tensors.dtypes import by_name
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.info_file import Info, info_of, read_info, write_fx_info, write_ge_info
from acc_pytest.tensors.msprobe_records import is_plain_name, records_in
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


# Records of msprobe: which tensors they hold, and what their statistics mean.


def tensor(dtype: str = "torch.float32", shape: Any = (2, 3), *stated: Any, **more: Any) -> dict[str, Any]:
    numbers = dict(zip(("Max", "Min", "Mean", "Norm"), (*stated, None, None, None, None)))
    return {"type": "torch.Tensor", "dtype": dtype, "shape": list(shape), **numbers, **more}


def written(home: Path, data: Any, **head: Any) -> str:
    file = home / "dump.json"
    said = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None, **head}
    file.write_text(json.dumps({**said, "data": data}, indent=1))
    return str(file)


def members(home: Path, value: Any) -> list[str]:
    name = "Module.m.M.forward.0"
    file = written(home, {name: {"input_args": [], "input_kwargs": {}, "output": value}})
    return [member.removeprefix(f"{name}.") for member in records_in(file).tensors]


def statistics(home: Path, *said: Any) -> Statistics | None:
    file = written(home, {"x.0.debug": tensor(*said)})
    return TensorRef(file, "x.0.debug").header().statistics


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([tensor()], ["output.0"]),
        ([{"a": [tensor(), None], "7": tensor()}], ["output.0.a.0", "output.0.7"]),
        (
            [{"type": tensor(), "dtype": tensor(), "shape": tensor()}],
            [f"output.0.{n}" for n in ("type", "dtype", "shape")],
        ),
        ([{"type": "int", "value": 3}, {"type": "slice", "value": [0, 2, None]}, None], []),
        ([tensor(shape=["2", 3])], []),
        ([tensor(shape=[-1])], []),
        ([tensor(shape=[True])], []),
        ([tensor(shape=[1] * 65)], []),
        ([{"class_type": "P2POp", "tensor": tensor(), "op": "send"}], ["output.0.tensor"]),
    ],
)
def test_a_tensor_is_told_by_type_and_shape_however_deep_it_lies(
    tmp_path: Path, value: Any, found: list[str]
) -> None:
    assert members(tmp_path, value) == found


def test_two_places_of_one_name_are_two_members(tmp_path: Path) -> None:
    first, second = members(tmp_path, [{"a.b": tensor(), "a": {"b": tensor()}}])
    assert first == "output.0.a.b"
    assert second.startswith("output.0.a.b#")


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (("torch.float64", [2], 2.0, 1.0), (2.0, 1.0, None, None)),
        (("torch.int64", [2], 7, -1), (7.0, -1.0, None, None)),
        (("torch.bool", [2], True, False), (1.0, 0.0, None, None)),
        (("torch.float16", [2], 65504.0, 65504.0, 65504.0, INF), (65504.0, 65504.0, 65504.0, None)),
        (("torch.float32", [2], INF, 1.0, INF, INF), (INF, 1.0, INF, INF)),
        (("torch.float32", [2], NAN, NAN, NAN, NAN), (None, None, NAN, NAN)),
        (("torch.float64", [2], NAN, NAN), (None, None, NAN, NAN)),
        (("torch.complex64", [2], 2.0, 1.0, 1.5), (2.0, 1.0, None, None)),
        (("torch.float32", [], -3.0, -3.0, -3.0, -3.0), (-3.0, -3.0, -3.0, 3.0)),
    ],
)
def test_statistics_mean_what_those_of_other_writers_mean(
    tmp_path: Path, said: tuple[Any, ...], expected: tuple[float | None, ...]
) -> None:
    found = statistics(tmp_path, *said)
    assert found is not None
    assert (found.max, found.min, found.mean, found.l2norm) == pytest.approx(expected, nan_ok=True)


def test_mean_and_norm_are_rounded_as_the_tensor_is(tmp_path: Path) -> None:
    # 8 bits of bfloat16; sums of 4 terms in float32 add 2 * 2^-24.
    wide = statistics(tmp_path, "torch.float32", [4], 1.0, 0.0, 0.5, 1.0)
    narrow = statistics(tmp_path, "torch.bfloat16", [4], 1.0, 0.0, 0.5, 1.0)
    assert wide is not None
    assert narrow is not None
    assert wide.rounding == 3 * 2**-24
    assert narrow.rounding == 2**-8 + 2 * 2**-24


def test_null_is_not_computed_and_never_zero(tmp_path: Path) -> None:
    file = written(tmp_path, {"x.0.debug": tensor("torch.float8_e4m3fn", [2])})
    header = TensorRef(file, "x.0.debug").header()
    assert header.payload == "description"
    assert header.dtype.name == "float8_e4m3fn"
    with pytest.raises(NoPayload, match="neither values nor statistics"):
        TensorRef(file, "x.0.debug").open()


def test_a_digest_alone_is_a_statistic(tmp_path: Path) -> None:
    file = written(tmp_path, {"x.0.debug": tensor(md5="0x00000000000000ab")})
    header = TensorRef(file, "x.0.debug").header()
    assert (header.payload, header.digest) == ("statistics", "0x00000000000000ab")


@pytest.mark.parametrize(
    "name",
    ["../a.pt", "/a.pt", "a/b.pt", "a\\b.pt", "a\0.pt", "a\ud800.pt", "a.bin", "x" * 300 + ".pt", "..", ""],
)
def test_only_plain_names_of_tensor_files_are_taken(tmp_path: Path, name: str) -> None:
    assert not is_plain_name(name)
    file = written(tmp_path, {"x.0.debug": tensor(data_name=name)})
    assert records_in(file).tensors["x.0.debug"].file == ""


def test_names_lose_what_cannot_be_printed(tmp_path: Path) -> None:
    file = written(tmp_path, {"a\ud800\n\x1b.0.debug": tensor()})
    assert list(records_in(file).tensors) == ["a___.0.debug"]


@pytest.mark.parametrize(
    "text",
    [
        '{"task": "tensor", "data": ',
        '{"task": 1, "data": []}',
        "[]",
        '{"task": "tensor"}',
        '{"task"' + "[" * 100_000,
    ],
)
def test_what_is_no_file_of_records_is_said_in_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "dump.json"
    file.write_text(text)
    with pytest.raises(FormatError, match=r"dump\.json: is"):
        records_in(str(file))


def test_placements_are_kept_for_each_dimension_of_the_mesh(tmp_path: Path) -> None:
    placements = [{"Shard": {"dim": 2}}, {"Replicate": {}}, {"Partial": {"reduce_op": "sum"}}, 3]
    file = written(tmp_path, {"x.0.debug": tensor(placements=placements)})
    found = records_in(file).tensors["x.0.debug"].placements
    assert found == ("Shard(2)", "Replicate", "Partial(sum)", "?")
