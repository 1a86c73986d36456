"""`make_torchair_demo`: the FX dump of a model, then its graphs in float16 as the Graph Engine runs them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import fx, nn

from ...capture.fx_backend import fx_dump_backend
from ...errors import DumpError, SettingsError
from ...threads import one_thread
from .lowering import Lowering
from .operators import GeOperator, Values, execute
from .passes import compiled
from .spec import TorchairPaths, TorchairSpec
from .write import STARTED, StepFolder, write_records, write_text

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
        _clear(path)
    faulty: list[str] = []
    for rank in range(spec.ranks):
        for number, graph in enumerate(run_golden(golden, spec, rank), start=1):
            operators = Lowering().run(graph.graph)
            faulty += _run_mine(mine, spec, (rank, number), graph, operators, fused=True)
            _run_mine(unfused, spec, (rank, number), graph, operators, fused=False)
    if spec.fault is not None and not faulty:
        raise SettingsError(f"demo: operator {spec.fault.operator!r} does not run at the place of the fault")
    return TorchairPaths(golden, mine, unfused, tuple(faulty))


def _clear(path: Path) -> None:
    parent = path.parent
    foreign = [entry.name for entry in parent.iterdir() if entry.name != path.name] if parent.exists() else []
    if foreign:
        raise DumpError(
            f"{parent}: holds {foreign[0]!r}, which is not from a demo; choose an empty directory"
        )
    shutil.rmtree(path, ignore_errors=True)


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
