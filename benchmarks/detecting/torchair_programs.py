"""Programs of the TorchAir table: graphs as TorchAir wrote them, golden's dump, and what each run was fed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.ge import GeDump
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.torchair.graph import GraphIndex
from acc_pytest.mapping.torchair.operators import operators
from acc_pytest.topology.ge_graph import Edge, GeGraph

SHARED = Path(__file__).parents[3] / "shared" / "conformance" / "torchair"
REAL = {
    "mlp": ("real_programs/mlp/fx", "real_programs/mlp/ge32"),
    "attn": ("real_programs/attn/fx", "real_programs/attn/ge32"),
    "block": ("ge_and_fx/fx", "ge_and_fx/ge"),
}
"""Programs in ../shared: golden's dump, and a dump of GE whose graphs and inputs are taken."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A compiled graph: its text, and the file that holds it."""

    graph: GeGraph
    text: Path


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a graph: where its records go below the root of a dump, and its inputs by name.

    `carried` are inputs that an earlier run left in place: the number of that run, and the name there.
    """

    graph: str
    folder: Path
    feeds: Mapping[str, torch.Tensor]
    carried: Mapping[str, tuple[int, str]]


@dataclass(frozen=True, eq=False)
class Program:
    """`weights` are inputs that all runs of a graph have in common."""

    name: str
    golden: Path
    graphs: Mapping[str, Graph]
    runs: tuple[Run, ...]
    weights: frozenset[tuple[str, str]]


def programs(directory: Path, seed: int) -> dict[str, Program]:
    """Programs by name: the demo's with weights of `seed`, and the real ones where ../shared is at hand."""
    made = make_torchair_demo(directory / "demo", TorchairSpec(seed=seed))
    found = {"demo": _program("demo", made.golden, made.unfused)}
    for name, (golden, ge) in REAL.items():
        if (SHARED / golden).exists():
            found[name] = _program(name, SHARED / golden, SHARED / ge)
    return found


def copy_texts(program: Program, root: Path) -> None:
    """Put the texts of the graphs where TorchAir puts them."""
    for graph in program.graphs.values():
        shutil.copy(graph.text, root / graph.text.name)


def _program(name: str, golden: Path, ge: Path) -> Program:
    dump = open_dump(str(ge))
    assert isinstance(dump, GeDump)
    (rank,) = dump.ranks
    texts = sorted(ge.rglob("dynamo_original_*.txt"))
    graphs: dict[str, Graph] = {}
    runs: list[Run] = []
    for step in dump.steps:
        graph = dump.graph(step, rank)
        assert graph is not None
        if step.graph not in graphs:
            (text,) = (one for one in texts if step.graph in one.name)
            graphs[step.graph] = Graph(graph, text)
        entry = dump.entry(step, rank, dump.nodes(step, rank)[0])
        assert entry is not None
        folder = Path(entry.path).parent.relative_to(texts[0].parent)
        runs.append(Run(step.graph, folder, dict(_feeds(dump, graph, step, rank)), {}))
    linked = tuple(_linked(runs, graphs, number) for number in range(len(runs)))
    return Program(name, golden, graphs, linked, frozenset(_weights(linked)))


def _feeds(dump: GeDump, graph: GeGraph, step: object, rank: object) -> Iterator[tuple[str, torch.Tensor]]:
    """What arrived at the first reader of each input of the graph."""
    index = GraphIndex(graph)
    given = {node.name for node in graph.nodes if node.op_type == "Data"}
    seen: set[str] = set()
    for operator in operators(dump, step, rank, index):  # type: ignore[arg-type]
        edges = [edge for _, _, edge in index.arriving(operator.parts.nodes)]
        if len(edges) != len(operator.inputs):
            continue
        for edge, end in zip(edges, operator.inputs):
            if edge.producer in given - seen:
                seen.add(edge.producer)
                yield edge.producer, end.ref.open().clone()
    assert given - seen <= _unread(graph), given - seen


def _unread(graph: GeGraph) -> set[str]:
    return {node.name for node in graph.nodes if not graph.consumers.get(Edge(node.name, 0))}


def _linked(runs: list[Run], graphs: Mapping[str, Graph], number: int) -> Run:
    """A run with what an earlier one assigned to its inputs: a cache that lives on."""
    carried: dict[str, tuple[int, str]] = {}
    for before in range(number):
        written = [
            node.inputs[0].producer
            for node in graphs[runs[before].graph].graph.nodes
            if node.op_type == "Assign" and node.inputs[0] is not None
        ]
        own = [
            node.inputs[0].producer
            for node in graphs[runs[number].graph].graph.nodes
            if node.op_type == "Assign" and node.inputs[0] is not None
        ]
        carried.update({mine: (before, theirs) for mine, theirs in zip(own, written)})
    return replace(runs[number], carried=carried)


def _weights(runs: tuple[Run, ...]) -> Iterator[tuple[str, str]]:
    everywhere = [list(run.feeds.values()) for run in runs]
    for run in runs:
        for name, tensor in run.feeds.items():
            if tensor.is_floating_point() and all(
                any(one.shape == tensor.shape and torch.equal(one, tensor) for one in others)
                for others in everywhere
            ):
                yield run.graph, name
