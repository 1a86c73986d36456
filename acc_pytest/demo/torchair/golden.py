"""The golden of the TorchAir demo: the model in float32, dumped by our FX backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import fx

from ...capture.fx_backend import fx_dump_backend
from ...threads import one_thread
from .model import prompt, seeded
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
