"""The golden of the TorchAir demo: the model in float32, dumped by our FX backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import fx, nn

from ...capture.fx_backend import fx_dump_backend
from ...threads import one_thread
from .spec import TorchairSpec

LAYOUTS = {"7.2": "7.2", "7.1": "7.1", "7.0": "7.1", "oldest": "oldest"}
"""What the FX backend calls the tree of a release."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A graph that was compiled, and the directory of each of its runs."""

    graph: fx.Graph
    runs: tuple[Path, ...]

    def inputs(self, run: Path) -> dict[str, torch.Tensor]:
        """What the graph was called with, by placeholder: the argument of the first node that takes it."""
        found = {}
        for node in self.graph.nodes:
            if node.op != "placeholder":
                continue
            reader = next(iter(node.users))
            stem = f"{reader.name}-{reader.target}.INPUT.{reader.args.index(node)}"
            (file,) = run.glob(f"{stem}.*.npy")
            found[node.name] = torch.from_numpy(np.load(file))
        return found


@one_thread()
def run_golden(root: Path, spec: TorchairSpec, rank: int) -> list[Compiled]:
    """Run the model of one rank; returns its graphs in the order of their compilation."""
    graphs: dict[fx.Graph, list[Path]] = {}

    def seen(node: fx.Node) -> fx.Node:
        graphs.setdefault(node.graph, [])
        return node

    torch._dynamo.reset()  # a graph that another call compiled would be taken instead
    backend = fx_dump_backend(
        root, filter=seen, layout=LAYOUTS[spec.release], rank=rank, world_size=spec.ranks
    )
    model = torch.compile(seeded(spec.seed), backend=backend, dynamic=False)
    known = _folders(root)
    with torch.no_grad():
        for number, tokens in enumerate(spec.tokens):
            for step in range(spec.steps):
                model(prompt(tokens, 1000 * spec.seed + 100 * rank + 10 * number + step + 1))
                (folder,) = _folders(root) - known
                known.add(folder)
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
