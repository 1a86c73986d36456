"""Devices that run an operator again, with stand-ins for the packages that only NPU machines have."""

from __future__ import annotations

import enum
import importlib
import json
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import AccError, LaunchError, MissingPackage, OperatorError
from acc_pytest.opcheck import backends
from acc_pytest.opcheck.backends import backend_named
from acc_pytest.opcheck.run import run_entry
from acc_pytest.opcheck.sources import entries_of_csv
from acc_pytest.opcheck.stand_alone import StandAlone, write_case
from acc_pytest.operators import compute


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
