"""Calls of msprobe dumps, made again from what was recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

from acc_pytest.dumps import open_dump
from acc_pytest.mapping.pair import Pair
from acc_pytest.mapping.planner import plan
from acc_pytest.reference.msprobe import MsprobeRecomputer
from acc_pytest.reference.recomputation import Recomputation, RecomputeBudget

BUDGET = RecomputeBudget(1 << 20, measured=True)


class Written:
    """A dump of level mix, written as msprobe writes it."""

    def __init__(self, root: Path) -> None:
        self._home = root / "step0" / "rank0"
        (self._home / "dump_tensor_data").mkdir(parents=True)
        self._data: dict[str, Any] = {}
        self._parents: dict[str, str | None] = {}
        self.root = root

    def call(self, name: str, output: Any, *args: Any, inside: str | None = None, **kwargs: Any) -> None:
        parameters = kwargs.pop("parameters", None)
        record = {
            "input_args": [self._value(f"{name}.input.{n}", arg) for n, arg in enumerate(args)],
            "input_kwargs": {
                key: self._value(f"{name}.kwargs.{key}", value) for key, value in kwargs.items()
            },
            "output": [
                self._value(f"{name}.output.{n}", one)
                for n, one in enumerate(output if isinstance(output, tuple) else (output,))
            ],
        }
        if parameters is not None:
            record["parameters"] = {
                key: self._value(f"{name}.parameters.{key}", value) for key, value in parameters.items()
            }
        self._data[name] = record
        self._parents[name] = inside

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            torch.save(value.clone(), self._home / "dump_tensor_data" / f"{name}.pt")
            stated = {"type": "torch.Tensor", "dtype": str(value.dtype), "shape": list(value.shape)}
            return stated | dict.fromkeys(("Max", "Min", "Mean", "Norm")) | {"data_name": f"{name}.pt"}
        if isinstance(value, list):
            return [self._value(f"{name}.{n}", item) for n, item in enumerate(value)]
        if isinstance(value, (torch.dtype, torch.device)):
            return {"type": f"torch.{type(value).__name__}", "value": str(value)}
        if isinstance(value, torch.Size):
            return {"type": "torch.Size", "value": list(value)}
        return None if value is None else {"type": type(value).__name__, "value": value}

    def recomputer(self, golden: Written | None = None, budget: RecomputeBudget = BUDGET) -> Recomputed:
        content = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
        (self._home / "dump.json").write_text(json.dumps({**content, "data": self._data}))
        (self._home / "construct.json").write_text(json.dumps(self._parents))
        mine = open_dump(str(self.root))
        made = plan(mine if golden is None else open_dump(str(golden.root)), mine)
        return Recomputed(MsprobeRecomputer(made.pairs, budget), made.pairs)

    def recomputed(
        self, golden: Written | None = None, budget: RecomputeBudget = BUDGET
    ) -> dict[str, Recomputation]:
        recomputer, pairs = self.recomputer(golden, budget)
        of = recomputer.of_pair if golden is None else recomputer.of_golden
        return {
            pair.mine.node: of(number)
            for number, pair in enumerate(pairs)
            if pair.mine.slot.startswith("output")
        }


class Recomputed(NamedTuple):
    recomputer: MsprobeRecomputer
    pairs: Sequence[Pair]


def seeded(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


X, W = seeded(6, 32), seeded(16, 32, seed=2)


@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_functions_are_right_on_their_own_inputs_and_wrong_with_another_result(
    tmp_path: Path, factor: float
) -> None:
    dump = Written(tmp_path)
    scores = X @ W.T
    dump.call("Functional.linear.0.forward", F.linear(X, W) * factor, X, W, None)
    soft = scores.softmax(-1, dtype=torch.float32)
    dump.call("Functional.softmax.0.forward", soft * factor, scores, dim=-1, dtype=torch.float32)
    dump.call("Tensor.__add__.0.forward", (X + 1) * factor, X, 1)
    dump.call("Torch.cat.0.forward", torch.cat([X, X], -1) * factor, [X, X], dim=-1)
    found = dump.recomputed()
    assert len(found) == 4
    wanted = "right" if factor == 1 else "wrong"
    assert {node: outcome.outcome for node, outcome in found.items()} == dict.fromkeys(found, wanted)


def test_modules_of_torch_are_computed_with_their_recorded_parameters(tmp_path: Path) -> None:
    dump = Written(tmp_path)
    ids = torch.tensor([0, 3, 5])
    dump.call("Module.embed.Embedding.forward.0", W[ids], ids, parameters={"weight": W})
    dump.call("Module.up.Linear.forward.0", F.linear(X, W), X, parameters={"weight": W})
    dump.call("Module.down.Linear.forward.0", F.linear(X, W, W[:, 0]), X, parameters={"weight": W})
    dump.call("Module.norm.LlamaRMSNorm.forward.0", X, X, parameters={"weight": W[0]})
    outcomes = {node.removeprefix("root."): found for node, found in dump.recomputed().items()}
    assert outcomes["embed"].outcome == outcomes["up"].outcome == "right"
    assert outcomes["down"].outcome == "wrong"
    assert "class LlamaRMSNorm" in outcomes["norm"].why


def test_golden_confirms_only_the_very_same_call(tmp_path: Path) -> None:
    mine, golden = Written(tmp_path / "mine"), Written(tmp_path / "golden")
    for dump, dim in ((mine, -1), (golden, -1)):
        dump.call("Functional.softmax.0.forward", X.softmax(dim), X, dim=dim)
    mine.call("Tensor.pow.0.forward", X**2, X, 2)
    golden.call("Tensor.pow.0.forward", X**3, X, 3)
    golden.recomputed()
    found = {node.rpartition(".")[2]: outcome for node, outcome in mine.recomputed(golden).items()}
    assert found["softmax"].outcome == "right"
    assert found["pow"].why == "golden makes another call"


def test_what_was_not_recorded_is_not_guessed(tmp_path: Path) -> None:
    dump = Written(tmp_path)
    dump.call("Functional.linear.0.forward", F.linear(X, W), X, W, None)
    data = dump._data["Functional.linear.0.forward"]
    del data["input_args"][1]["data_name"]
    dump.call("Tensor.__getitem__.0.forward", X[:2], X)
    dump._data["Tensor.__getitem__.0.forward"]["input_args"].append({"type": "slice", "value": [0, 2, None]})
    whys = {node.rpartition(".")[2]: found.why for node, found in dump.recomputed().items()}
    assert whys == {
        "linear": "only statistics of its input_args (1,) were recorded",
        "getitem": "an argument of it is not known",
    }


def test_sizes_types_and_devices_are_arguments_too(tmp_path: Path) -> None:
    dump = Written(tmp_path)
    dump.call("Tensor.reshape.0.forward", X.reshape(3, 64), X, torch.Size([3, 64]))
    dump.call("Tensor.to.0.forward", X.float(), X, torch.float32)
    dump.call("Torch.exp.0.forward", X.exp(), X, device=torch.device("cpu"))
    dump.call("Tensor.expand.0.forward", X[:1].expand(4, 32), X[:1], torch.Size([4, 32]))
    dump.call("Tensor.mul.0.forward", X * 2, X, 2)
    broken = [
        {"type": "torch.Size", "value": [3, "64"]},
        {"type": "torch.Size", "value": 192},
        {"type": "int", "value": "two"},
        {"type": "torch.dtype", "value": "torch.nn"},
        "plain",
    ]
    for number, argument in enumerate(broken, 1):
        dump.call(f"Tensor.mul.{number}.forward", X, X)
        dump._data[f"Tensor.mul.{number}.forward"]["input_args"].append(argument)
    found = {node.removeprefix("root."): each for node, each in dump.recomputed().items()}
    right = [name for name, each in found.items() if each.outcome == "right"]
    assert right == ["reshape", "to", "exp", "expand", "mul"]
    others = {each.why for name, each in found.items() if name not in right}
    assert others == {"an argument of it is not known"}


def test_of_several_results_each_is_compared_with_its_own(tmp_path: Path) -> None:
    for budget in (BUDGET, RecomputeBudget(1 << 20)):
        dump = Written(tmp_path / str(budget.measured))
        values, places = X.float().topk(3)
        dump.call("Torch.topk.0.forward", (values, places), X.float(), 3)
        recomputer, pairs = dump.recomputer(budget=budget)
        slots = {pair.mine.slot: recomputer.of_pair(number) for number, pair in enumerate(pairs)}
        assert {slot: found.outcome for slot, found in slots.items() if slot.startswith("output")} == {
            "output[0]": "right", "output[1]": "right",
        }  # fmt: skip
        assert slots["input[0]"].why == "input[0] is read, not written by it"


def test_a_call_is_asked_for_by_its_path(tmp_path: Path) -> None:
    dump = Written(tmp_path)
    dump.call("Tensor.exp.0.forward", X.exp(), X)
    dump.call("Tensor.mul.0.forward", X * 3, X, 2)
    recomputer, _ = dump.recomputer()
    assert recomputer.of_operator(0, "root.exp").outcome == "right"
    assert recomputer.of_operator(0, "root.mul").outcome == "wrong"
    assert recomputer.of_operator(0, "root.log").why == "no result of root.log is compared"
    assert recomputer.unlike(0, "root.exp") == ""
    assert "more than 100" in dump.recomputed(budget=RecomputeBudget(100))["root.exp"].why
