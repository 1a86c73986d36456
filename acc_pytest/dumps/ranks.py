"""The process directories of a dump that are ranks of one run, in their order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DumpError, SeveralDumps

if TYPE_CHECKING:
    from .base import Dump

TIMESTAMP = re.compile(r"_?\d{8}_\d{6}$")
"""The ending of the root of one run: `_20261120_213122`."""

_NUMBERED = frozenset({"ge", "fx"})
_ATB = re.compile(r"^(-?\d+)_(\d+)$")
_TORCH = re.compile(r"^([a-z]+):?(\d*)_(\d+)$")
_TORCH_PID_FIRST = re.compile(r"^(\d+)_(?:([a-z]+):?)?(\d*)$")


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """A process directory: device number (-1 where unknown), process id, directory name."""

    device: int
    pid: int
    name: str


def atb_worker(name: str) -> Worker | None:
    """`{device}_{pid}` of ATB dumps."""
    match = _ATB.match(name)
    return Worker(int(match.group(1)), int(match.group(2)), name) if match else None


def torch_worker(name: str) -> Worker | None:
    """`npu0_{pid}`, `cpu_{pid}`, and the older `{pid}_npu0`, `{pid}_npu:0`, `{pid}_0` of torch dumps."""
    if match := _TORCH.match(name):
        return Worker(int(match.group(2) or -1), int(match.group(3)), name)
    if match := _TORCH_PID_FIRST.match(name):
        return Worker(int(match.group(3) or -1), int(match.group(1)), name)
    return None


def select(
    workers: Sequence[Worker], *, parent: Path, root: Path, named: str, parallel: bool
) -> tuple[list[Worker], list[str]]:
    """The ranks among `workers` in numeric order, and sentences about those left out.

    A root whose name carries a timestamp belongs to one run, so all its processes are ranks. Elsewhere
    runs pile up: two processes on one device are ranks only where the model has communication operations
    (`parallel`; every process may see its own device as 0), otherwise they are two runs, and `named` (the
    process directory in the user's path, or empty) picks one. Raises `DumpError` when it names none.
    """
    ordered = sorted(workers)
    devices = dict.fromkeys(worker.device for worker in ordered)
    if len(devices) == len(ordered) or parallel or TIMESTAMP.search(root.name):
        return ordered, []
    chosen = next((worker for worker in ordered if worker.name == named), None)
    if chosen is None:
        raise SeveralDumps(
            f"{parent}: holds the dumps of several runs (several processes on one device); "
            "give the directory of one of them:",
            (str(parent / worker.name) for worker in ordered),
        )
    nearest = {
        device: min(
            (w for w in ordered if w.device == device), key=lambda worker: abs(worker.pid - chosen.pid)
        )
        for device in devices
    } | {chosen.device: chosen}
    selected = sorted(nearest.values())
    dropped = ", ".join(worker.name for worker in ordered if worker not in selected)
    return selected, [f"left out as other runs beside {named}: {dropped}"]


def keep_rank(golden: Dump, mine: Dump, number: int) -> None:
    """Leave one rank of both dumps, which are changed. Raises `DumpError` where that cannot be compared.

    Where one side ran on fewer ranks its tensors are put together of all shards of the other side, so that
    one rank of these says nothing. Ranks of GE and FX dumps are numbered alike and never put together.
    """
    for name, dump in (("golden", golden), ("mine", mine)):
        if number not in {rank.index for rank in dump.ranks}:
            available = ", ".join(str(rank.index) for rank in dump.ranks) or "none"
            raise DumpError(
                f"--acc-rank {number}: {name} {dump.root} has no such rank; choose one of {available}"
            )
    if len(golden.ranks) != len(mine.ranks) and golden.kind not in _NUMBERED:
        raise DumpError(
            f"--acc-rank {number}: golden ran on {len(golden.ranks)} ranks and mine on {len(mine.ranks)}, so "
            "shards of all ranks make up each tensor; leave --acc-rank out"
        )
    for dump in {id(dump): dump for dump in (golden, mine)}.values():
        left = ", ".join(str(rank.index) for rank in dump.ranks if rank.index != number)
        dump.ranks = tuple(rank for rank in dump.ranks if rank.index == number)
        if left:
            dump.notes += (f"{dump.name}: --acc-rank {number} leaves out the ranks {left}",)
