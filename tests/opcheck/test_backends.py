"""Devices that run an operator again, with stand-ins for the packages that only NPU machines have."""

from __future__ import annotations

import enum
import importlib
import json
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import AccError, LaunchError, MissingPackage, OperatorError, SettingsError
from acc_pytest.opcheck import backends
from acc_pytest.opcheck.backends import backend_named
from acc_pytest.opcheck.run import OFF_VALUES, run_entry, without_optimizations
from acc_pytest.opcheck.settings import OpcheckSettings
from acc_pytest.opcheck.stand_alone import StandAlone, write_case
from acc_pytest.operators import compute, operator_of
from acc_pytest.reference.prepare import prepare
from acc_pytest.reference.sources import entries_of_csv
from acc_pytest.reporting.row import Row


class Kind(enum.IntEnum):
    ADD = 8
    SUB = 15


class Muls:
    var_attr = 0.0


class ElewiseParam:
    def __init__(self) -> None:
        self.elewise_type = Kind.ADD
        self.muls_param = Muls()


class SetValueParam:
    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.strides: list[int] = []


class Operation:
    """Computes what the parameters say, and one element of a subtraction wrong."""

    def __init__(self, param: Any) -> None:
        self.param = param

    def forward(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if isinstance(self.param, SetValueParam):
            box = tuple(slice(a, b) for a, b in zip(self.param.starts, self.param.ends))
            tensors[0][box] = tensors[1]
            return []
        assert isinstance(self.param.elewise_type, Kind)
        x, y = tensors
        if self.param.elewise_type == Kind.ADD:
            return [x + y]
        result = x - y
        result[1] += 7
        return [result]


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for torch_npu and torch_atb; the device is the CPU."""
    module = types.SimpleNamespace(
        ElewiseParam=ElewiseParam, SetValueParam=SetValueParam, Operation=Operation
    )
    packages = {"torch_npu": types.SimpleNamespace(), "torch_atb": module}
    monkeypatch.setattr(importlib, "import_module", packages.__getitem__)
    monkeypatch.setattr(backends, "_place", lambda device: "cpu")


X, Y = torch.arange(3.0), torch.ones(3)


@pytest.mark.parametrize("name", ["torch_atb", "operation_torch"])
def test_without_an_npu_one_sentence_says_what_is_missing(name: str) -> None:
    with pytest.raises(MissingPackage, match=f"backend {name}: needs an NPU and torch_npu") as raised:
        backend_named(name)
    assert isinstance(raised.value, AccError)


@pytest.mark.usefixtures("npu")
def test_keys_become_attributes_and_numbers_members_of_enumerations() -> None:
    run = backend_named("torch_atb")
    param = {"elewiseType": 8, "mulsParam": {"varAttr": 1.0}}
    (y,) = run("ElewiseOperation", param, [X, Y])
    assert torch.equal(y, X + Y)


@pytest.mark.usefixtures("npu")
def test_what_torch_atb_has_not_is_said() -> None:
    run = backend_named("torch_atb")
    with pytest.raises(OperatorError, match="torch_atb has no SplitParam"):
        run("SplitOperation", {}, [X])
    with pytest.raises(OperatorError, match="have no quant_param"):
        run("ElewiseOperation", {"elewiseType": 8, "quantParam": {}}, [X, Y])


@pytest.mark.usefixtures("npu")
@pytest.mark.parametrize(("kind", "verdict"), [(8, "pass"), (15, "fail")])
def test_outputs_of_the_device_are_judged_and_not_those_of_the_dump(
    tmp_path: Path, kind: int, verdict: str
) -> None:
    wrong = torch.full((3,), 100.0)
    csv = write_case(StandAlone("ElewiseOperation", {"elewiseType": kind}, [X, Y], [wrong], {}), tmp_path)
    (entry,) = entries_of_csv(csv, "one")
    assert [row.verdict for row in run_entry(entry)] == ["fail"]
    (row,) = run_entry(entry, backend=backend_named("torch_atb"))
    assert row.verdict == verdict
    assert "judged is what the device computed" in row.note
    assert not row.mine.path
    assert row.worst.index in ("", "[1]", "1", "(1,)") if verdict == "fail" else True


@pytest.mark.usefixtures("npu")
def test_what_the_device_writes_in_place_is_judged(tmp_path: Path) -> None:
    param = {"starts": [1], "ends": [3], "strides": [1]}
    inputs = [X, torch.ones(2)]
    (after,) = compute("SetValueOperation", param, inputs)
    csv = write_case(StandAlone("SetValueOperation", param, inputs, [], {0: after + 1}), tmp_path)
    (entry,) = entries_of_csv(csv, "one")
    assert "fail" in [row.verdict for row in run_entry(entry)]
    rows = run_entry(entry, backend=backend_named("torch_atb"))
    assert [row.verdict for row in rows] == ["pass"]
    assert torch.equal(X, torch.arange(3.0))


@pytest.mark.usefixtures("npu")
def test_operation_torch_takes_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def set_param(self, text: str) -> None:
            self.param = json.loads(text)

        def execute(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
            return compute(self.name, self.param, tensors)

    with pytest.raises(LaunchError, match=r"set_env\.sh"):
        backend_named("operation_torch")
    library = tmp_path / "lib" / "libatb_speed_torch.so"
    library.parent.mkdir()
    library.write_bytes(b"")
    monkeypatch.setenv("ATB_SPEED_HOME_PATH", str(tmp_path))
    loaded: list[str] = []
    classes = types.SimpleNamespace(
        load_library=loaded.append, OperationTorch=types.SimpleNamespace(OperationTorch=Fake)
    )
    monkeypatch.setattr(torch, "classes", classes)
    (y,) = backend_named("operation_torch")("RepeatOperation", {"multiples": [2]}, [X])
    assert torch.equal(y, X.repeat(2))
    assert loaded == [str(library)]


# Optimisations of attention switched off one at a time: which of them is to blame is said.


PARAM = {"headNum": 2, "kvHeadNum": 2, "qkScale": 0.5, "calcType": 3, "maskType": 1, "clampType": 1}
PARAM |= {"clampMin": -1.0, "clampMax": 1.0}


def attention_csv(home: Path, param: Mapping[str, Any] = PARAM) -> Path:
    """Causal packed attention of one sequence of four tokens, clamped."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 16).half() for _ in range(3))
    mask = torch.full((4, 4), -10000.0).triu(1).half()
    inputs = [q, k, v, mask, torch.tensor([4], dtype=torch.int32)]
    outputs = compute("SelfAttentionOperation", param, inputs)
    return write_case(StandAlone("SelfAttentionOperation", param, inputs, outputs, {}, "3_1"), home)


def rows_of(csv: Path, backend: Any) -> list[Row]:
    (entry,) = entries_of_csv(csv, "one")
    return run_entry(entry, OpcheckSettings((), optimization=True), backend)


def wrong_where(key: str, value: int) -> Any:
    """A device that is wrong by a quarter under a certain parameter."""

    def device(name: str, param: Mapping[str, Any], inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        (y,) = compute(name, param, inputs)
        return (y + 0.25 if param.get(key) == value else y,)

    return device


def test_the_parameter_that_makes_the_device_right_is_the_suspect(tmp_path: Path) -> None:
    first, *copies = rows_of(attention_csv(tmp_path), wrong_where("maskType", 1))
    assert first.verdict == "fail"
    assert "with maskType=0 the device's result passes: suspect the optimisation maskType" in first.sentence
    assert "suspect the optimisation maskType" in first.reason
    assert [(row.case["optimization_closed"], row.verdict) for row in copies] == [
        ("maskType", "pass"),
        ("clampType", "fail"),
    ]
    assert [row.case["op_id"] for row in copies] == ["3_1_1", "3_1_2"]
    assert copies[0].name == "SelfAttentionOperation_3_1[maskType=0]"
    assert copies[1].sentence.startswith("with clampType=0: ")
    assert len({row.number for row in (first, *copies)}) == 3


def test_no_parameter_is_blamed_for_a_device_that_is_always_wrong(tmp_path: Path) -> None:
    first, *copies = rows_of(attention_csv(tmp_path), wrong_where("headNum", 2))
    assert {row.verdict for row in copies} == {"fail"}
    assert "fails with maskType=0, clampType=0 as well: no optimisation explains it" in first.sentence


def test_a_device_that_is_wrong_without_an_optimisation_is_red_too(tmp_path: Path) -> None:
    first, *copies = rows_of(attention_csv(tmp_path), wrong_where("clampType", 0))
    assert first.verdict == "pass"
    assert "passes as dumped, and not with clampType=0" in first.note
    assert [row.red for row in copies] == [False, True]


def test_what_the_device_cannot_compute_without_an_optimisation_is_skipped_with_the_reason(
    tmp_path: Path,
) -> None:
    def device(name: str, param: Mapping[str, Any], inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        if not param["clampType"]:
            raise RuntimeError("error 561103")
        return compute(name, param, inputs)

    first, mask, clamp = rows_of(attention_csv(tmp_path), device)
    assert [first.verdict, mask.verdict] == ["pass", "pass"]
    assert clamp.skipped
    assert "not tried with clampType=0" in clamp.sentence
    assert "error 561103" in clamp.sentence


def test_operands_go_with_the_parameter_that_asks_for_them(tmp_path: Path) -> None:
    (entry,) = entries_of_csv(attention_csv(tmp_path), "one")
    case = prepare(entry)
    copies = {off.parameter: off.case for off in without_optimizations(case)}
    assert list(copies) == ["maskType", "clampType"]
    names = operator_of(case.name, copies["maskType"].param).inputs
    assert "mask" not in names
    assert copies["maskType"].inputs == (*case.inputs[:3], case.inputs[4])
    assert copies["clampType"].inputs == case.inputs
    assert len(copies["maskType"].declared_inputs) == 4


def test_other_operators_have_no_optimisations(tmp_path: Path) -> None:
    x = torch.ones(2)
    csv = write_case(StandAlone("RepeatOperation", {"multiples": [1]}, [x], [x], {}), tmp_path)
    assert [row.verdict for row in rows_of(csv, compute)] == ["pass"]


@pytest.mark.parametrize("operator", OFF_VALUES)
def test_the_table_names_parameters_that_the_operator_has(operator: str) -> None:
    defaults = operator_of(operator).defaults()
    assert {key: defaults[key] for key in OFF_VALUES[operator]} == OFF_VALUES[operator]


def test_there_is_nothing_to_run_again_without_a_device() -> None:
    with pytest.raises(SettingsError, match="needs an NPU; add -o acc_opcheck_backend"):
        OpcheckSettings.from_values({"opcheck": ("x.csv",), "opcheck_optimization": True})
