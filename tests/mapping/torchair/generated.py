"""Random GE graphs with random FX tensors, so that a wrong match shows by its values.

Every FX tensor is noise of its own, nearly all of one shape, and a GE tensor is that noise in float16. What
GE does to a graph is done here at random: casts deleted, operators fused under names put together, cut or
made up, layout changes inserted, inputs left out, targets renamed, integers behind casts.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from acc_pytest.lab.demo.torchair.graph_text import write_graph
from acc_pytest.tensors.ge_message import OriginalOp
from acc_pytest.topology.ge_graph import Edge, GeDesc, GeGraph, GeNode
from tests.tensors.ge_writer import GeValue, write_record

GRAPH = "dynamo_original_graph_1_rank_0_pid_77_ts_20261120202451423567.txt"
GE_HOME = "worldsize1_global_rank0/20261120203000/0/graph_1/1/0"
FX_HOME = "worldsize1_global_rank0/graph_1/0"
_KINDS = ("Add", "Mul", "Gelu", "Sub")


@dataclass
class Op:
    """An operator of the graph. `inputs` are edges (`None`: absent), `outputs` values, `fx` their names."""

    name: str
    kind: str
    inputs: list[Edge | None]
    outputs: list[torch.Tensor]
    fx: list[str | None]


@dataclass
class Record:
    """An operator as it runs: its parts, and the edges and outputs of its record."""

    kind: str
    name: str
    parts: list[Op]
    inputs: list[Edge]
    outputs: list[Edge]
    origins: bool = False
    hard: bool = False
    null: int = -1


@dataclass
class Generated:
    """Both dumps. `expected` are the tensors of GE that must be found: operator, slot."""

    golden: Path
    mine: Path
    unfused: Path
    expected: set[tuple[str, str]] = field(default_factory=set)


class Generator:
    """`make` writes one pair of dumps, always the same for one seed."""

    def __init__(self, seed: int, nodes: int = 14) -> None:
        self._random = random.Random(seed)
        self._torch = torch.Generator().manual_seed(seed)
        self._nodes = nodes
        self._ops: list[Op] = []
        self._counts: dict[str, int] = {}
        self._values: dict[Edge, torch.Tensor] = {}
        self._fx: dict[str, dict[str, torch.Tensor]] = {}
        self._removed: dict[Edge, Edge] = {}

    def make(self, root: Path) -> Generated:
        found = Generated(root / "fx", root / "ge", root / "unfused")
        self._build()
        self._write_fx(found.golden / FX_HOME)
        for home in (found.mine, found.unfused):
            home.mkdir(parents=True)
            nodes = tuple(map(_node, self._ops))
            write_graph(GeGraph("graph_1", nodes), home / GRAPH)
        alone = [self._record(op) for op in self._ops if op.kind not in ("Data", "Const")]
        alone = [record for record in alone if Edge(record.name, 0) not in self._removed]
        self._write_ge(found.unfused / GE_HOME, alone, None)
        self._write_ge(found.mine / GE_HOME, self._fused(alone), found.expected)
        return found

    # The graph.

    def _build(self) -> None:
        held = [self._given(number) for number in range(3)]
        for number in range(self._nodes):
            make = self._random.choice(
                [self._plain, self._long, self._cast, self._pair, self._view, self._plain]
            )
            held += make(
                f"node_{number}" if number else "node", [self._random.choice(held) for _ in range(2)]
            )

    def _given(self, number: int) -> Edge:
        return self._op("Data", [], [self._noise()], [None], name=f"arg{number}_1")

    def _constant(self) -> Edge:
        return self._op("Const", [], [torch.tensor(self._random.random())], [None])

    def _op(
        self,
        kind: str,
        inputs: Sequence[Edge | None],
        outputs: Sequence[torch.Tensor],
        fx: Sequence[str | None],
        name: str = "",
    ) -> Edge:
        count = self._counts.get(kind, 0)
        self._counts[kind] = count + 1
        op = Op(name or (f"{kind}_{count}" if count else kind), kind, list(inputs), list(outputs), list(fx))
        self._ops.append(op)
        self._values.update({Edge(op.name, index): value for index, value in enumerate(outputs)})
        return Edge(op.name, 0)

    def _call(self, node: str, target: str, inputs: Iterable[Edge], outputs: Sequence[torch.Tensor]) -> str:
        tensors = {f"INPUT.{i}": self._values[edge] for i, edge in enumerate(inputs)}
        tensors |= {f"OUTPUT.{i}": value for i, value in enumerate(outputs)}
        self._fx[f"{node}-{target}"] = tensors
        return f"{node}-{target}.OUTPUT"

    def _noise(self, shape: tuple[int, ...] = (4, 6)) -> torch.Tensor:
        return torch.randn(shape, generator=self._torch)

    def _plain(self, node: str, inputs: list[Edge]) -> list[Edge]:
        """One operator; sometimes with a constant or an absent input between the others."""
        value = self._noise()
        kind = self._random.choice(_KINDS)
        name = self._call(node, f"aten.{kind.lower()}.Tensor", inputs, [value])
        between: list[Edge | None] = self._random.choice([[], [None], [self._constant()]])
        return [self._op(kind, [inputs[0], *between, inputs[1]], [value], [f"{name}.0"])]

    def _long(self, node: str, inputs: list[Edge]) -> list[Edge]:
        """Two operators; what the first makes is no tensor of FX."""
        value = self._noise()
        name = self._call(node, "aten.addmm.default", inputs, [value])
        first = self._op("MatMulV2", inputs, [self._noise()], [None])
        return [self._op("Add", [first, inputs[0]], [value], [f"{name}.0"])]

    def _cast(self, node: str, inputs: list[Edge]) -> list[Edge]:
        """The name is on a Cast of one type, which GE may delete."""
        value = self._noise()
        name = self._call(node, "aten.mul.Tensor", inputs, [value])
        made = self._op("Mul", inputs, [value], [None])
        cast = self._op("Cast", [made], [value], [f"{name}.0"])
        if self._random.random() < 0.7:
            self._removed[cast] = made
        return [cast]

    def _pair(self, node: str, inputs: list[Edge]) -> list[Edge]:
        """Two outputs; the second, of integers, has its name behind a Cast."""
        places = torch.randint(0, 99, (4, 6), generator=self._torch)
        value = self._noise()
        name = self._call(node, "aten.topk.default", inputs[:1], [value, places])
        top = self._op("TopKV2", [inputs[0], self._constant()], [value, places.int()], [f"{name}.0", None])
        self._op("Cast", [Edge(top.producer, 1)], [places], [f"{name}.1"])
        return [top]

    def _view(self, node: str, inputs: list[Edge]) -> list[Edge]:
        """FX ran a view, the graph says reshape; and the name is on the Reshape."""
        value = self._noise()
        self._call(node, "aten.view.default", inputs[:1], [value.reshape(24)])
        made = self._op("BiasAdd", inputs, [value], [None])
        flat = [f"{node}-aten.reshape.default.OUTPUT.0"]
        self._op("Reshape", [made, self._constant()], [value.reshape(24)], flat)
        return [made]

    # What GE makes of it.

    def _record(self, op: Op) -> Record:
        inputs = [self._seen(edge) for edge in op.inputs if edge is not None]
        return Record(
            op.kind, op.name, [op], inputs, [Edge(op.name, index) for index in range(len(op.outputs))]
        )

    def _seen(self, edge: Edge) -> Edge:
        """What arrives where a Cast was deleted: what the Cast would have read."""
        return self._removed.get(edge, edge)

    def _fused(self, alone: list[Record]) -> list[Record]:
        records = list(alone)
        readers: dict[Edge, list[Record]] = {}
        for record in alone:
            for edge in record.inputs:
                readers.setdefault(edge, []).append(record)
        for record in alone:
            after = readers.get(record.outputs[0], [])
            if len(after) != 1 or len(record.outputs) > 1 or len(after[0].parts) > 1 or record not in records:
                continue
            if len(record.parts) > 1 or after[0] not in records or self._random.random() < 0.5:
                continue
            fused = self._fuse(record, after[0])
            records[records.index(after[0])] = fused
            records.remove(record)
        for record in records:
            if self._random.random() < 0.15:
                record.null = self._random.randrange(len(record.inputs))
            elif self._random.random() < 0.1 and len(record.inputs) > 1:
                # A tensor on the black list: numbers of inputs and edges no longer agree.
                record.inputs = record.inputs[:1] + record.inputs[2:]
                record.hard = True
        return records

    def _fuse(self, first: Record, last: Record) -> Record:
        inputs = first.inputs + [edge for edge in last.inputs if edge != first.outputs[0]]
        parts = first.parts + last.parts
        how = self._random.choice(["joined", "joined", "cut", "made up", "kept"])
        name = {
            "joined": first.name + last.name,
            "cut": f"{first.name}_ub_fusion",
            "made up": f"Fused_op_{first.name}",
            "kept": first.name,
        }[how]
        kind = self._random.choice(["AutomaticBufferFusionOp", "ElementWise"])
        origins = how != "joined" or self._random.random() < 0.5
        return Record(kind, name, parts, inputs, last.outputs, origins, hard=how != "joined")

    # Files.

    def _write_fx(self, home: Path) -> None:
        home.mkdir(parents=True)
        for number, (call, tensors) in enumerate(self._fx.items()):
            time = 20261120202512000000 + number
            for name, value in tensors.items():
                np.save(home / f"{call}.{name}.{time}.npy", value.numpy())
            np.save(home / f"{call}.INPUT.7.{time}.npy", np.array(None, dtype=object), allow_pickle=True)

    def _write_ge(self, home: Path, records: list[Record], expected: set[tuple[str, str]] | None) -> None:
        home.mkdir(parents=True)
        for number, record in enumerate(records):
            self._write(home, number, record, expected)
            if expected is not None and self._random.random() < 0.2:
                value = _half(self._values[record.outputs[0]])
                name = f"trans_TransData_{number}"
                write_record(home / f"TransData.{name}.{number}.6.{_time(number)}", name, [value], [value])

    def _write(self, home: Path, number: int, record: Record, expected: set[tuple[str, str]] | None) -> None:
        inputs = [
            GeValue(_half(self._values[edge]), null=index == record.null)
            for index, edge in enumerate(record.inputs)
        ]
        origins = [
            OriginalOp(edge.producer, edge.index) if record.origins else None for edge in record.outputs
        ]
        outputs = [
            GeValue(_half(self._values[edge]), original_op=origin)
            for edge, origin in zip(record.outputs, origins)
        ]
        name = f"{record.kind}.{record.name}.{number}.6.{_time(number)}"
        write_record(home / name, record.name, inputs, outputs)
        if expected is None:
            return
        known = self._fx_tensors()
        expected.update(
            (record.name, f"output[{k}]") for k, edge in enumerate(record.outputs) if edge in known
        )
        if not record.hard:
            expected.update((record.name, f"input[{k}]") for k, e in enumerate(record.inputs) if e in known)

    def _fx_tensors(self) -> set[Edge]:
        """Outputs of the graph that are FX tensors, by a name of their own or behind a Cast or Reshape."""
        named = {Edge(op.name, index) for op in self._ops for index, name in enumerate(op.fx) if name}
        handed_on = {op.inputs[0] for op in self._ops if op.kind in ("Cast", "Reshape")}
        return named | {edge for edge in handed_on if edge is not None}


def _half(value: torch.Tensor) -> torch.Tensor:
    return value.half() if value.is_floating_point() else value


def _time(number: int) -> int:
    return 1763670000000000 + 10 * number


def _node(op: Op) -> GeNode:
    attrs: list[Mapping[str, object]] = [{"_fx_tensor_name": name} if name else {} for name in op.fx]
    descs = tuple(GeDesc(f"y{index}", attrs=one) for index, one in enumerate(attrs))
    inputs = tuple(GeDesc(f"x{index}") for index in range(len(op.inputs)))
    return GeNode(op.name, op.kind, tuple(op.inputs), {}, inputs, descs)
