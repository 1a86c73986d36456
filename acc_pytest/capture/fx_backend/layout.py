"""The paths of the files of a graph: the directory trees of the TorchAir releases.

Up to 7.1.0 the number in the path is that of the step plus one, all ranks share the tree, and a graph is
known by the time it was compiled; since 7.2.0 the number is the step, ranks have directories, and graphs
have numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ...errors import CaptureError


@dataclass(frozen=True, slots=True)
class GraphRun:
    """One run of one graph on one rank."""

    rank: int
    world_size: int
    graph: int
    compiled: str
    step: int


def _since_7_2(run: GraphRun) -> Path:
    return Path(f"worldsize{run.world_size}_global_rank{run.rank}", f"graph_{run.graph}", str(run.step))


def _up_to_7_1(run: GraphRun) -> Path:
    return Path("data_dump", str(run.step + 1), f"gm_{run.compiled}_dump")


def _oldest(run: GraphRun) -> Path:
    return Path(f"gm_{run.compiled}_dump", str(run.step + 1))


LAYOUTS: Mapping[str, Callable[[GraphRun], Path]] = {
    "7.2": _since_7_2,
    "7.1": _up_to_7_1,
    "oldest": _oldest,
}
"""By the release that they came with (7.1: 7.1.0 and before; oldest: before March 2024)."""


def layout_of(name: str) -> Callable[[GraphRun], Path]:
    """The layout of a name. Raises `CaptureError`."""
    try:
        return LAYOUTS[name]
    except (KeyError, TypeError):
        raise CaptureError(
            f"layout {name!r} is unknown; give one of {', '.join(map(repr, LAYOUTS))}"
        ) from None


def timestamp() -> str:
    """Now (UTC) in the 20 digits of TorchAir."""
    return datetime.now(tz=timezone.utc).strftime("%Y%m%d%H%M%S%f")
