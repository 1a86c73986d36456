"""One run of the TorchAir table: graphs run with a fault, dumped as GE does, compared with FX, diagnosed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from acc_pytest.diagnosis.run import run as compared
from acc_pytest.diagnosis.summary import root_lines
from acc_pytest.dumps import open_dump
from acc_pytest.judging.tolerance import tolerance
from acc_pytest.lab.demo.torchair.make import STARTED
from acc_pytest.mapping.planner import plan
from acc_pytest.tensors.ge_message import OriginalOp
from acc_pytest.topology.ge_graph import Edge, GeNode
from tests.tensors.ge_writer import GeValue, write_record

from .torchair_faults import FED, SPOILINGS, applicable, other_values
from .torchair_kernels import run_kernel
from .torchair_programs import Program, Run, copy_texts

DTYPES = {"float32": torch.float32, "float16": torch.float16}
_FLOAT_CODES = (0, 1)
"""What a Cast to the type of the program says it casts to."""
_SECOND = 1_000_000
_NO_KERNEL = ("Data", "Const", "NetOutput")


@dataclass(frozen=True)
class Case:
    """A program in a type, fused or not, with the fault `kind` at `place` in `graph`, or clean."""

    program: str
    dtype: str
    fused: bool
    kind: str = ""
    graph: str = ""
    place: str = ""
    op_type: str = ""

    def __str__(self) -> str:
        where = f"{self.kind} in {self.place} ({self.graph})" if self.kind else "clean"
        return f"{self.program}, {self.dtype}{', fused' if self.fused else ''}: {where}"


@dataclass(frozen=True)
class Outcome:
    """What came of a case; see `tables.Examined`."""

    case: Case
    pairs: int
    red: bool
    roots: tuple[str, ...]
    right: tuple[bool, ...]
    void: bool
    first: str

    @property
    def hit(self) -> bool:
        """Whether the first root is the operator with the fault, or what the run was fed wrongly."""
        return bool(self.right) and self.right[0]

    @property
    def late(self) -> bool:
        return False

    @property
    def others(self) -> int:
        """Roots that have another name."""
        return len({name for name, right in zip(self.roots, self.right) if not right})


@dataclass(frozen=True, eq=False)
class Device:
    """A program in a type: what runs of each graph, in order, and how a dump of it is written."""

    program: Program
    dtype: torch.dtype
    fused: bool

    @cached_property
    def fusions(self) -> Mapping[str, Mapping[str, str]]:
        """By graph: the sum behind each scaled product, by the name of what becomes one with it."""
        found = {}
        for name, one in self.program.graphs.items():
            readers = one.graph.consumers
            pairs = {}
            for node in one.graph.nodes:
                behind = readers.get(Edge(node.name, 0), ())
                if self.fused and node.op_type == "Mul" and [n.op_type for n in behind] == ["Add"]:
                    pairs[node.name] = behind[0].name
            found[name] = pairs
        return found

    def execute(self, case: Case) -> list[dict[Edge, torch.Tensor]]:
        """The outputs of every operator, run by run, with the fault of `case` where it strikes."""
        runs: list[dict[Edge, torch.Tensor]] = []
        for one in self.program.runs:
            feeds = dict(one.feeds)
            for name, (before, source) in one.carried.items():
                feeds[name] = self._left_behind(runs[before], self.program.runs[before], source)
            if case.kind in FED and self._strikes_feed(case, one.graph, case.place):
                feeds[case.place] = other_values(feeds[case.place])
            runs.append(self._run(one, feeds, case))
        return runs

    def _strikes_feed(self, case: Case, graph: str, name: str) -> bool:
        return graph == case.graph and name == case.place

    def _left_behind(self, values: Mapping[Edge, torch.Tensor], run: Run, source: str) -> torch.Tensor:
        for node in self.program.graphs[run.graph].graph.nodes:
            if node.op_type == "Assign" and node.inputs[0] == Edge(source, 0):
                return values[Edge(node.name, 0)]
        raise AssertionError(source)

    def _run(self, run: Run, feeds: Mapping[str, torch.Tensor], case: Case) -> dict[Edge, torch.Tensor]:
        values: dict[Edge, torch.Tensor] = {}
        for node in self.program.graphs[run.graph].graph.nodes:
            if node.op_type == "NetOutput":
                continue
            if node.op_type == "Data":
                fed = feeds[node.name]
                made = [fed.to(self.dtype) if fed.is_floating_point() else fed]
            else:
                given = [None if edge is None else values[edge] for edge in node.inputs]
                made = run_kernel(node, given, self.dtype)
                if (case.graph, case.place) == (run.graph, node.name) and case.kind in SPOILINGS:
                    present = [one for one in given if one is not None]
                    made = SPOILINGS[case.kind].spoil(node, present, made)
            values.update({Edge(node.name, index): one for index, one in enumerate(made)})
        return values

    def idle(self, node: GeNode) -> bool:
        """Whether GE takes an operator out: a cast to the type that its input has."""
        return node.op_type == "Cast" and node.attrs["dst_type"] in _FLOAT_CODES

    def record_of(self, graph: str, name: str) -> str:
        """The operator that runs instead of one of the graph."""
        for first, second in self.fusions[graph].items():
            if name in (first, second):
                return first + second
        return name

    def write(self, root: Path, runs: Sequence[Mapping[Edge, torch.Tensor]]) -> None:
        """Dump all runs: texts, and a record for each operator that runs on the device."""
        root.mkdir(parents=True)
        copy_texts(self.program, root)
        for number, (run, values) in enumerate(zip(self.program.runs, runs)):
            for task, node in enumerate(self.program.graphs[run.graph].graph.nodes, start=1):
                if node.op_type not in _NO_KERNEL and not self.idle(node):
                    self._record(root / run.folder, run.graph, node, values, number * _SECOND + 10 * task)

    def _record(
        self, folder: Path, graph: str, node: GeNode, values: Mapping[Edge, torch.Tensor], time: int
    ) -> None:
        fusions = self.fusions[graph]
        if node.name in fusions:
            return
        nodes = self.program.graphs[graph].graph.by_name
        parts = [nodes[one] for one, other in fusions.items() if other == node.name]
        inner = {part.name for part in parts}
        edges = [
            self._real(nodes, edge)
            for part in (*parts, node)
            for edge in part.data_inputs
            if self._real(nodes, edge).producer not in inner
        ]
        outputs = [
            GeValue(values[Edge(node.name, index)], original_op=OriginalOp(node.name, index))
            for index in range(node.output_count)
        ]
        name = self.record_of(graph, node.name)
        op_type = "AutomaticBufferFusionOp" if parts else node.op_type
        moment = STARTED + time
        file = folder / f"{op_type}.{name}.{time % _SECOND}.6.{moment}"
        write_record(file, name, [values[edge] for edge in edges], outputs, dump_time=moment)

    def _real(self, nodes: Mapping[str, GeNode], edge: Edge) -> Edge:
        """What is read where an idle cast was taken out."""
        while self.idle(nodes[edge.producer]):
            edge = nodes[edge.producer].data_inputs[0]
        return edge


def spots(device: Device, dtype: str) -> Iterator[Case]:
    """Every fault at every operator and input of a program that can have it."""
    program = device.program
    plain = Case(program.name, dtype, device.fused)
    values = device.execute(plain)
    seen: set[tuple[str, str]] = set()
    for run, made in zip(program.runs, values):
        for node in program.graphs[run.graph].graph.nodes:
            if (run.graph, node.name) in seen or node.op_type in ("Const", "NetOutput") or device.idle(node):
                continue
            seen.add((run.graph, node.name))
            spot = replace(plain, graph=run.graph, place=node.name, op_type=node.op_type)
            yield from (replace(spot, kind=kind) for kind in _kinds(device, run, node, made, dtype))


def _kinds(
    device: Device, run: Run, node: GeNode, made: Mapping[Edge, torch.Tensor], dtype: str
) -> Iterator[str]:
    outputs = [made[Edge(node.name, index)] for index in range(node.output_count)]
    if node.op_type == "Data":
        fed = outputs[0]
        if fed.is_floating_point() and node.name not in run.carried and not _is_mask(fed):
            yield "other_weight" if (run.graph, node.name) in device.program.weights else "other_prompt"
        return
    given = [made[edge] for edge in node.data_inputs]
    yield from (kind for kind in SPOILINGS if applicable(kind, node, given, outputs, dtype))


def _is_mask(tensor: torch.Tensor) -> bool:
    return len(tensor.unique()) <= 2


def examine(case: Case, device: Device, directory: Path) -> Outcome:
    """Run, dump, compare and diagnose a case; its dump is removed."""
    root = directory / "msit_ge_dump"
    values = device.execute(case)
    device.write(root, values)
    golden = open_dump(str(device.program.golden))
    mapped = plan(golden, open_dump(str(root), golden=golden))
    rows, diagnosis = compared(mapped)
    shutil.rmtree(root)
    wanted = _wanted(case, device)
    right = tuple(
        bool({root.name, root.row.mine.name} & wanted) if case.kind in FED else root.name in wanted
        for root in diagnosis.roots
    )
    red = any(row.red or row.verdict == "inherited" for row in rows)
    return Outcome(
        case,
        len(rows),
        red,
        tuple(root.name for root in diagnosis.roots),
        right,
        bool(case.kind) and not red and _changes_nothing(case, device, values),
        next(iter(root_lines(diagnosis)), ""),
    )


def _wanted(case: Case, device: Device) -> frozenset[str]:
    """Names that the root of a case may have: the operator, or an input of the run where it is read."""
    if not case.kind:
        return frozenset()
    if case.kind not in FED:
        return frozenset({device.record_of(case.graph, case.place)})
    readers = device.program.graphs[case.graph].graph.consumers.get(Edge(case.place, 0), ())
    return frozenset({case.place, *(device.record_of(case.graph, node.name) for node in readers)})


def _changes_nothing(case: Case, device: Device, wrong: Sequence[Mapping[Edge, torch.Tensor]]) -> bool:
    """Whether no tensor that FX holds, and no result of a graph, changes by more than rounding may."""
    clean = device.execute(replace(case, kind=""))
    for run, one, other in zip(device.program.runs, clean, wrong):
        graph = device.program.graphs[run.graph].graph
        read = {Edge(node.name, k) for node in graph.nodes for k, fx in enumerate(node.fx_names) if fx}
        read |= {edge for node in graph.nodes if node.op_type == "NetOutput" for edge in node.data_inputs}
        if any(_differs(one[edge], other[edge]) for edge in read):
            return False
    return True


def _differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point():
        return not torch.equal(one, other)
    name = str(one.dtype).removeprefix("torch.")
    allowed = tolerance(name, name, 0, one.shape[-1] if one.ndim else 1, elements=one.numel()).value
    off, size = float((one.double() - other.double()).norm()), float(one.double().norm())
    return not math.isfinite(off) or off > allowed * size
