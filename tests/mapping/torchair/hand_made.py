"""Tiny dumps of GE and FX, written operator by operator, for tests of one rule each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.lab.demo.torchair.graph_text import write_graph
from acc_pytest.mapping.pair import Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.topology.ge_graph import Edge, GeConstant, GeDesc, GeGraph, GeNode
from tests.tensors.ge_writer import GeValue, write_record

TIME = 1763670000000000
TS20 = 20261120202512000000
Values = Sequence[torch.Tensor | GeValue]


def tensor(number: float, shape: tuple[int, ...] = (2, 3)) -> torch.Tensor:
    """A tensor that no other number makes."""
    return torch.arange(float(np.prod(shape))).reshape(shape) + 100 * number


def edge(text: str) -> Edge | None:
    if not text:
        return None
    producer, _, index = text.partition(":")
    return Edge(producer, int(index or 0))


def op(name: str, inputs: str = "", *fx: str, kind: str = "") -> GeNode:
    """An operator that reads `inputs` (`Add_1 Mul:1 -`, `-` is absent); `fx` are names of its outputs."""
    edges = [edge("" if word == "-" else word) for word in inputs.split()]
    outputs = [GeDesc("y", attrs={"_fx_tensor_name": one} if one else {}) for one in fx or ("",)]
    return GeNode(name, kind or name.partition("_")[0], tuple(edges), {}, (), tuple(outputs))


def constant(name: str, *values: int) -> GeNode:
    """A Const that holds integers."""
    held = GeConstant(GeDesc("", "DT_INT64", (len(values),), "ND"), np.array(values, dtype="<i8").tobytes())
    return GeNode(name, "Const", (), {"value": held}, (), (GeDesc("y"),))


class Ge:
    """A GE dump of one rank."""

    def __init__(self, root: Path, *, rank: int = 0, world: int = 1) -> None:
        self.root = root
        self._rank, self._world = rank, world
        self._count = 0

    def graph(self, *nodes: GeNode, number: int = 1) -> Ge:
        self.root.mkdir(parents=True, exist_ok=True)
        name = f"dynamo_original_graph_{number}_rank_{self._rank}_pid_7_ts_{TS20}.txt"
        write_graph(GeGraph(f"graph_{number}", nodes), self.root / name)
        return self

    def home(self, graph: int = 1, step: int = 0) -> Path:
        rank = f"worldsize{self._world}_global_rank{self._rank}"
        return self.root / rank / f"20261120203000/0/graph_{graph}/{graph}/{step}"

    def ran(
        self,
        name: str,
        inputs: Values,
        outputs: Values,
        *,
        kind: str = "",
        real: str = "",
        graph: int = 1,
        step: int = 0,
        fields: str = "",
    ) -> Path:
        self._count += 1
        file = f"{kind or name.partition('_')[0]}.{name}.{self._count}.6.{TIME + self._count}{fields}"
        path = self.home(graph, step) / file
        write_record(path, real or name, inputs, outputs)
        return path


class Fx:
    """An FX dump of one rank; `ran` writes one call."""

    def __init__(self, root: Path, *, rank: int = 0, world: int = 1) -> None:
        self.root = root
        self._rank, self._world = rank, world
        self._count = 0

    def ran(
        self, call: str, inputs: Mapping[str, object], *outputs: object, graph: int = 1, step: int = 0
    ) -> Fx:
        """`call` is `node-target`; `inputs` are by position (`0`, `0.1`) or `KWARG.name`."""
        rank = f"worldsize{self._world}_global_rank{self._rank}"
        home = self.root / rank / f"graph_{graph}/{step}"
        home.mkdir(parents=True, exist_ok=True)
        self._count += 1
        files = {key if key.startswith("KWARG") else f"INPUT.{key}": value for key, value in inputs.items()}
        files |= {f"OUTPUT.{index}": value for index, value in enumerate(outputs)}
        for key, value in files.items():
            array = value.numpy() if isinstance(value, torch.Tensor) else np.array(value)
            np.save(home / f"{call}.{key}.{TS20 + self._count}.npy", array, allow_pickle=True)
        return self


def mapped(golden: Path, mine: Path, level: str = "all") -> Plan:
    return plan(open_dump(str(golden)), open_dump(str(mine)), level=level)


def pairs(found: Plan) -> list[str]:
    """What meets what, in order: `Add output[0] = add-aten.add.Tensor output[0]`."""
    return [_shown(pair) for pair in found.pairs]


def _shown(pair: Pair) -> str:
    return f"{pair.mine.node} {pair.mine.slot} = {pair.golden.node} {pair.golden.slot}"


def reasons(found: Plan, node: str) -> list[str]:
    """Why tensors of a node are alone."""
    return [
        f"{alone.slot}: {alone.reason}" if alone.slot else alone.reason
        for alone in found.unmapped
        if alone.node == node
    ]
