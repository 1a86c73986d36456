"""The processes that wrote a dump: their directories, and their ranks where the files say these."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .atb_files import AtbLayout
from .discovery import ATB_PARTS, Layout
from .listing import Listing
from .msprobe_files import MsprobeLayout
from .ranks import atb_worker, torch_worker
from .torch import TorchLayout, is_process_folder
from .torch_manifest import process_manifest

_RANK = re.compile(r"rank(\d{1,9})", re.ASCII)
_DEVICE = re.compile(r"[a-z]+")


@dataclass(slots=True)
class RankProcess:
    """A process of one place: its directories below the top (and below them, `{}` stands for its number),
    its rank and its device where its files say these, its process id."""

    directories: tuple[tuple[str, str], ...]
    rank: int | None
    device: int
    pid: int
    number: int = -1


def processes_of(layout: Layout, top: Path, listing: Listing) -> list[RankProcess]:
    """The processes in the order in which ranks are numbered; none where files say their ranks themselves."""
    if isinstance(layout, TorchLayout):
        processes = _of_torch(layout, top, listing)
    elif isinstance(layout, AtbLayout):
        processes = _of_atb(layout, top, listing)
    elif isinstance(layout, MsprobeLayout):
        processes = _of_msprobe(layout, top)
    else:
        return []
    if all(process.rank is not None for process in processes):
        return sorted(processes, key=lambda process: process.rank or 0)
    return sorted(processes, key=lambda process: (process.device, process.pid))


def _of_torch(layout: TorchLayout, top: Path, listing: Listing) -> list[RankProcess]:
    processes: list[RankProcess] = []
    for name in [layout.worker] if layout.worker else listing.directories(layout.home):
        if not is_process_folder(layout.home / name, listing):
            continue
        worker, directory = torch_worker(name), _relative(layout.home / name, top)
        device = _DEVICE.match(name)
        pattern = directory[: len(directory) - len(name)] + (device[0] if device else "npu") + "{0}_{1}"
        rank = process_manifest(layout.home / name).rank
        pid = worker.pid if worker is not None else len(processes)
        processes.append(RankProcess(((directory, pattern),), rank, worker.device if worker else -1, pid))
    return processes


def _of_atb(layout: AtbLayout, top: Path, listing: Listing) -> list[RankProcess]:
    processes = []
    homes = [layout.info / kind for kind in sorted(ATB_PARTS)]
    for name in [layout.worker] if layout.worker else listing.directories(layout.data):
        worker = atb_worker(name)
        if worker is None:
            continue
        directories = [
            (f"{_relative(layout.data, top)}/{name}", f"{_relative(layout.data, top)}/{{0}}_{{1}}")
        ]
        for home in homes:
            for called, pattern in ((name, "{0}_{1}"), (str(worker.pid), "{1}")):
                if home != layout.data and called in listing.directories(home):
                    directories.append(
                        (f"{_relative(home, top)}/{called}", f"{_relative(home, top)}/{pattern}")
                    )
        processes.append(RankProcess(tuple(directories), None, worker.device, worker.pid))
    return processes


def _of_msprobe(layout: MsprobeLayout, top: Path) -> list[RankProcess]:
    by_name: dict[str, list[tuple[str, str]]] = {}
    for step, ranks in layout.steps:
        for path in ranks:
            alone = _RANK.fullmatch(path.name) is None
            directory = _relative(path, top)
            name = "" if alone else path.name
            by_name.setdefault(name, []).append((directory, f"step{step}/rank{{0}}"))
    processes: list[RankProcess] = []
    for number, (name, directories) in enumerate(by_name.items()):
        rank = _RANK.fullmatch(name)
        processes.append(RankProcess(tuple(directories), None, int(rank[1]) if rank else -1, number))
    return processes


def _relative(path: Path, top: Path) -> str:
    name = os.path.relpath(path, top)
    return "" if name == "." else name
