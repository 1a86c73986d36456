"""`make_torchair_demo`: the FX dump of a model, then its graphs in float16 as the Graph Engine runs them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import fx, nn

from ....base.threads import one_thread
from ....capture.fx_backend import fx_dump_backend
from ....errors import DumpError, SettingsError
from ....tensors.ge_message import OriginalOp
from ....topology.ge_graph import Edge, GeDesc, GeGraph, GeNode
from .graph_text import write_graph
from .lowering import GE_NAMES, GeOperator, Lowering, Values, compiled, execute
from .records import WrittenTensor, hashed_name, write_record

DTYPE = torch.float16
_SIDES = {"golden": "msit_fx_dump", "mine": "msit_ge_dump", "unfused": "msit_ge_dump"}
_SECOND = 1_000_000


def make_torchair_demo(directory: Path, spec: TorchairSpec) -> TorchairPaths:
    """Write `golden/msit_fx_dump`, `mine/msit_ge_dump` and `unfused/msit_ge_dump` below a directory.

    FX times aside, the same `spec` gives the same bytes. Directories of an earlier demo are replaced. Raises
    `SettingsError` when the fault names no operator that runs, and `DumpError` when one of the three
    directories holds anything but a demo.
    """
    golden, mine, unfused = (directory / side / name for side, name in _SIDES.items())
    for path in (golden, mine, unfused):
        parent = path.parent
        foreign = (
            [entry.name for entry in parent.iterdir() if entry.name != path.name] if parent.exists() else []
        )
        if foreign:
            raise DumpError(
                f"{parent}: holds {foreign[0]!r}, which is not from a demo; choose an empty directory"
            )
        shutil.rmtree(path, ignore_errors=True)
    faulty: list[str] = []
    for rank in range(spec.ranks):
        for number, graph in enumerate(run_golden(golden, spec, rank), start=1):
            operators = Lowering().run(graph.graph)
            faulty += _run_mine(mine, spec, (rank, number), graph, operators, fused=True)
            _run_mine(unfused, spec, (rank, number), graph, operators, fused=False)
    if spec.fault is not None and not faulty:
        raise SettingsError(f"demo: operator {spec.fault.operator!r} does not run at the place of the fault")
    return TorchairPaths(golden, mine, unfused, tuple(faulty))


@one_thread()
def _run_mine(
    root: Path,
    spec: TorchairSpec,
    place: tuple[int, int],
    graph: Compiled,
    operators: Sequence[GeOperator],
    *,
    fused: bool,
) -> list[str]:
    """Run a graph as often as golden did; returns the faulty operators, which only the fused graph has."""
    running = compiled(operators, fused=fused)
    struck: list[str] = []
    rank, number = place
    for step, run in enumerate(graph.runs):
        inputs = graph.inputs(run)
        if step == 0:
            shapes = execute(operators, inputs, DTYPE, _sound)
            write_text(text(root, spec.release, rank, number), f"graph_{number}", operators, shapes)

        def spoil(operator: GeOperator, results: Values, step: int = step) -> Values:
            if not fused or spec.fault is None:
                return results
            if not spec.fault.strikes(operator.name, number, step, rank):
                return results
            struck.append(operator.name)
            return [result * 1.3 if result.is_floating_point() else result + 1 for result in results]

        values = execute(running, inputs, DTYPE, spoil)
        folder = records(root, spec, rank, number, step)
        write_records(StepFolder(folder, STARTED + (100 * number + step) * _SECOND), running, values)
    return struck


def _sound(_operator: GeOperator, results: Values) -> Values:
    return results


_DAY = "20261120"
_PID = 21111


def text(root: Path, release: str, rank: int, graph: int) -> Path:
    """The file of a graph's text."""
    time = f"{_DAY}2024{50 + graph}423567"
    if release in ("7.0", "oldest"):
        return root / f"dynamo_original_graph_{time}.txt"
    return root / f"dynamo_original_graph_{graph}_rank_{rank}_pid_{_PID + rank}_ts_{time}.txt"


def records(root: Path, spec: TorchairSpec, rank: int, graph: int, step: int) -> Path:
    """The directory of the records of one run. Each graph has a time of its own, as since 2026."""
    device, model = str(rank), f"graph_{graph}"
    time = f"{_DAY}2030{graph:02}"
    if spec.release == "oldest":
        return root / f"dump_{_DAY}_203000" / device / f"{model}_0" / str(graph) / str(step)
    if spec.release == "7.2":
        root = root / f"worldsize{spec.ranks}_global_rank{rank}"
    return root / time / device / model / str(graph) / str(step)


LAYOUTS = {"7.2": "7.2", "7.1": "7.1", "7.0": "7.1", "oldest": "oldest"}
"""The FX backend's name for the tree of a release."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A graph that was compiled, and the directory of each of its runs."""

    graph: fx.Graph
    runs: tuple[Path, ...]

    def inputs(self, run: Path) -> dict[str, torch.Tensor]:
        """The inputs of the graph by placeholder: the argument of the first node that takes it."""
        tensors = {}
        for node in self.graph.nodes:
            if node.op != "placeholder":
                continue
            reader = next(iter(node.users))
            stem = f"{reader.name}-{reader.target}.INPUT.{reader.args.index(node)}"
            (file,) = run.glob(f"{stem}.*.npy")
            tensors[node.name] = torch.from_numpy(np.load(file))
        return tensors


@one_thread()
def run_golden(root: Path, spec: TorchairSpec, rank: int) -> list[Compiled]:
    """Run the model of one rank; returns its graphs in the order of their compilation."""
    graphs: dict[fx.Graph, list[Path]] = {}

    def register(node: fx.Node) -> fx.Node:
        graphs.setdefault(node.graph, [])
        return node

    torch._dynamo.reset()  # a graph that another call compiled would be taken instead
    backend = fx_dump_backend(
        root, filter=register, layout=LAYOUTS[spec.release], rank=rank, world_size=spec.ranks
    )
    model = torch.compile(seeded(spec.seed), backend=backend, dynamic=False)
    folders = _folders(root)
    with torch.no_grad():
        for number, tokens in enumerate(spec.tokens):
            for step in range(spec.steps):
                model(prompt(tokens, 1000 * spec.seed + 100 * rank + 10 * number + step + 1))
                (folder,) = _folders(root) - folders
                folders.add(folder)
                list(graphs.values())[number].append(folder)
    return [Compiled(graph, tuple(runs)) for graph, runs in graphs.items()]


def _folders(root: Path) -> set[Path]:
    return {file.parent for file in root.rglob("*.npy")}


HIDDEN = 16
INNER = 36
HEADS = 2
BEST = 2


class Model(nn.Module):
    """`[tokens, HIDDEN]` to weights per head, and the largest values of each head with their places."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, INNER)
        self.down = nn.Linear(INNER, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.gate = nn.Parameter(torch.empty(HIDDEN))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.norm(self.down(nn.functional.gelu(self.up(x))) + x)
        first, second = hidden.split(HIDDEN // 2, dim=-1)
        heads = (torch.cat([second, first], dim=-1) * self.gate).view(x.shape[0], HEADS, -1)
        values, places = heads.topk(BEST, dim=-1)
        return heads.softmax(dim=-1), values, places


def seeded(seed: int) -> Model:
    """The model with weights that depend on the seed alone, exact in float16 (both sides start equal)."""
    model = Model().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            scale = parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 0.25
            offset = 1.0 if name in ("norm.weight", "gate") else 0.0
            parameter.copy_((offset + values * scale).half())
    return model


def prompt(tokens: int, seed: int) -> torch.Tensor:
    """An input, exact in float16."""
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed)).half().float()


# A TorchAir demo: the release whose layout it has, its size, and the fault of mine.


RELEASES = ("7.2", "7.1", "7.0", "oldest")
"""Releases by which the layout changed: ranks have directories since 7.2, texts carry rank and process since
7.1, `oldest` is what ait v0.2 and the TorchAir of early 2024 wrote."""


@dataclass(frozen=True, slots=True)
class GeFault:
    """A mistake in one operator of mine: what it computes is 30 % too large, and places are off by one.

    `operator` is its name as it runs (`Gelu`, `Mul_1Add_1`); `graph`, `step` and `rank` narrow it down.
    """

    operator: str
    graph: int | None = None
    step: int | None = None
    rank: int | None = None

    def strikes(self, operator: str, graph: int, step: int, rank: int) -> bool:
        """Whether the fault makes this execution of the operator wrong."""
        filters = ((self.graph, graph), (self.step, step), (self.rank, rank))
        return operator == self.operator and all(chosen in (None, number) for chosen, number in filters)


@dataclass(frozen=True, slots=True)
class TorchairSpec:
    """A pair of dumps to make. `tokens` has one compiled graph's input length each, `steps` runs of each.

    Raises `SettingsError` for a layout that nobody knows, or that cannot hold what is asked for.
    """

    release: str = "7.2"
    ranks: int = 1
    tokens: tuple[int, ...] = (5, 2)
    steps: int = 2
    seed: int = 7
    fault: GeFault | None = None

    def __post_init__(self) -> None:
        if self.release not in RELEASES:
            raise SettingsError(f"demo: release must be one of {', '.join(RELEASES)}, got {self.release!r}")
        if self.ranks < 1 or self.steps < 1 or not self.tokens or min(self.tokens) < 1:
            raise SettingsError("demo: ranks, steps, graphs and their tokens must be >= 1")
        if len(set(self.tokens)) != len(self.tokens):
            raise SettingsError(
                f"demo: tokens must all differ (inputs of one length make one graph), got {self.tokens}"
            )
        if self.ranks > 1 and self.release != "7.2":
            raise SettingsError(f"demo: release {self.release} mixes ranks in one directory; choose 7.2")


@dataclass(frozen=True, slots=True)
class TorchairPaths:
    """The paths of the dumps: FX (golden), GE with fusion (mine), and GE without it, which has no fault.

    `faulty` names the operators that hold the fault, one per rank, graph and step: `Gelu`.
    """

    golden: Path
    mine: Path
    unfused: Path
    faulty: tuple[str, ...] = field(default=())


# GE dumps of the demo on disk: the text of a graph, and a record for every operator that ran.
#
# Everything that makes real dumps awkward is there once: tensors without memory on the device, a file name
# that was too long, a Data operator dumped for each of its readers, tensors in fractal format.


STARTED = 1_763_670_000_000_000
"""Microseconds since 1970 at which the demo's operators begin to run."""
WITHOUT_MEMORY = (("Transpose", "input", 1), ("Transpose_1", "input", 1))
"""Constants that the operator has taken in, so that the device keeps nothing."""
LONG_NAME = "SoftmaxV2"
_STREAM = 6


@dataclass(frozen=True, slots=True)
class StepFolder:
    """One run of one graph on one rank: where its records go, and when it began."""

    folder: Path
    started: int


def write_text(
    path: Path, name: str, operators: Sequence[GeOperator], values: Mapping[Edge, torch.Tensor]
) -> None:
    """The text of a graph as TorchAir gave it to the Graph Engine, before its passes."""
    fx = {Edge(operator.name, index): text for operator in operators for index, text in operator.fx.items()}
    nodes = []
    for operator in operators:
        inputs = tuple(
            GeDesc(f"x{place}") if edge is None else _described(f"x{place}", edge, values, fx)
            for place, edge in enumerate(operator.inputs)
        )
        outputs = tuple(
            _described(f"y{index}" if index else "y", Edge(operator.name, index), values, fx)
            for index in range(operator.outputs)
        )
        nodes.append(
            GeNode(operator.name, operator.type, operator.inputs, operator.attributes, inputs, outputs)
        )
    write_graph(GeGraph(name, tuple(nodes)), path)


def _described(name: str, edge: Edge, values: Mapping[Edge, torch.Tensor], fx: Mapping[Edge, str]) -> GeDesc:
    attributes = {"_fx_tensor_name": fx[edge]} if edge in fx else {}
    tensor = values[edge]
    return GeDesc(name, GE_NAMES[tensor.dtype], tuple(tensor.shape), "ND", attributes)


def write_records(
    step: StepFolder, operators: Sequence[GeOperator], values: Mapping[Edge, torch.Tensor]
) -> None:
    """A record for each operator that runs on the device; constants and the end of the graph do not."""
    by_name = {operator.name: operator for operator in operators}
    for task, operator in enumerate(operators, start=1):
        if operator.type in ("Const", "NetOutput"):
            continue
        inputs = [
            _value(
                values[edge], by_name[edge.producer], null=(operator.name, "input", place) in WITHOUT_MEMORY
            )
            for place, edge in enumerate(operator.edges)
        ]
        outputs = [
            _value(values[Edge(operator.name, index)], operator, index) for index in range(operator.outputs)
        ]
        readers = sum(Edge(operator.name, 0) in reader.edges for reader in operators)
        for copy in range(readers if operator.type == "Data" else 1):
            time = step.started + 10 * task + copy
            name = f"{operator.type}.{operator.name}.{task}.{_STREAM}.{time}"
            write_record(_place(step.folder, operator, name), operator.name, inputs, outputs, time)


def _value(
    tensor: torch.Tensor, producer: GeOperator, index: int | None = None, *, null: bool = False
) -> WrittenTensor:
    """A tensor as `producer` left it; as an output, `index` is its number."""
    tiled = producer.storage != "ND" and tensor.is_floating_point()
    origin = None
    if index is not None and producer.type != "TransData":
        origin = OriginalOp(producer.parts[-1] if producer.parts else producer.name, index)
    return WrittenTensor(tensor, tiled, null, origin)


def _place(folder: Path, operator: GeOperator, name: str) -> Path:
    if operator.name != LONG_NAME:
        return folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "mapping.csv").open("a", encoding="utf-8") as file:
        file.write(f"{hashed_name(name)},{name}\n")
    return folder / hashed_name(name)
