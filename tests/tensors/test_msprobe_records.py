"""Records of msprobe: which tensors they hold, and what their statistics mean."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.errors import FormatError, NoPayload
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.msprobe_records import is_plain_name, records_in
from acc_pytest.tensors.ref import TensorRef


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
