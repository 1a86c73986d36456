"""FX against FX: what a call was given came from the call that wrote the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis


class Program:
    """`linear -> relu -> add(linear)`, one file an argument or result, as FX dumps are."""

    def __init__(self, home: Path, **faults: float) -> None:
        self._home = home / "msit_fx_dump" / "worldsize1_global_rank0" / "graph_1" / "0"
        self._home.mkdir(parents=True)
        self._time = 20260101000000000000
        random = numpy.random.default_rng(0)
        x, weight = (random.normal(size=(4, 4)).astype("float32") for _ in range(2))
        weight = weight + faults.get("weight", 0)
        linear = self.call("mm", "mm.default", x, weight, result=x @ weight + faults.get("mm", 0))
        relu = self.call("relu", "relu.default", linear, result=linear.clip(0) + faults.get("relu", 0))
        self.call("add", "add.Tensor", relu, linear, result=relu + linear)

    def call(self, name: str, target: str, *arguments: Any, result: Any) -> Any:
        self._time += 1000
        for number, argument in enumerate(arguments):
            numpy.save(self._home / f"{name}-aten.{target}.INPUT.{number}.{self._time}.npy", argument)
        numpy.save(self._home / f"{name}-aten.{target}.OUTPUT.0.{self._time}.npy", result)
        return result


def compared(tmp_path: Path, **faults: float) -> tuple[Plan, list[Row], Diagnosis]:
    Program(tmp_path / "golden")
    Program(tmp_path / "mine", **faults)
    made = plan(open_dump(str(tmp_path / "golden")), open_dump(str(tmp_path / "mine")))
    return made, *run(made)


def test_arguments_come_from_results_and_results_from_arguments(tmp_path: Path) -> None:
    made, rows, _ = compared(tmp_path)
    ids = [pair.id for pair in made.pairs]
    parents = {name: [ids[one] for one in above] for name, above in zip(ids, made.parents)}
    assert {row.verdict for row in rows} == {"pass"}
    assert parents["relu-aten.relu.default[in0]"] == ["mm-aten.mm.default"]
    assert set(parents["add-aten.add.Tensor"]) == {"add-aten.add.Tensor[in0]", "add-aten.add.Tensor[in1]"}
    assert parents["add-aten.add.Tensor[in1]"] == ["mm-aten.mm.default"]
    assert not made.by_order


@pytest.mark.parametrize("fault", ["mm", "relu"])
def test_the_call_whose_arguments_agree_is_the_only_root(tmp_path: Path, fault: str) -> None:
    _, _, diagnosis = compared(tmp_path, **{fault: 0.5})
    assert [root.name for root in diagnosis.roots] == [fault]


def test_another_weight_is_the_root_and_not_the_call_that_reads_it(tmp_path: Path) -> None:
    made, _, diagnosis = compared(tmp_path, weight=0.5)
    (root,) = diagnosis.roots
    assert made.pairs[root.number].mine.slot == "input[1]"
