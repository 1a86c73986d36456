"""Where a release of TorchAir puts the texts of its graphs, and where the Graph Engine puts its records."""

from __future__ import annotations

from pathlib import Path

from .spec import TorchairSpec

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
