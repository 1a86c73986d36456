"""The files of an msprobe dump: `{root}/step{N}/{rank{R} | proc{PID}}/{dump.json, debug.json}`.

A directory is one of a rank where its JSON file starts as msprobe writes it. The names of directories only
say which step and rank it is: one that was copied elsewhere stands for step 0 and the only rank. Process
numbers differ from run to run, so processes are told apart by their order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import AccError
from ..tensors.file_bytes import opened
from ..tensors.msprobe_records import HEAD
from .listing import Listing

RECORDS = ("dump.json", "debug.json")
"""The files of records: `debug.json` is there alone, at level debug."""
TENSORS = "dump_tensor_data"
_STEP = re.compile(r"step(\d{1,9})", re.ASCII)
_RANK = re.compile(r"(rank|proc)(\d{1,19})", re.ASCII)
_HEAD = 4096


@dataclass(frozen=True, slots=True)
class MsprobeLayout:
    """The directories of each step, one for each rank in rank order, with the number of the step.

    `named` says that the user's path is that of one step.
    """

    root: Path
    steps: tuple[tuple[int, tuple[Path, ...]], ...]
    named: bool = False


def msprobe_at(path: Path, listing: Listing) -> MsprobeLayout | None:
    """The dump whose root, step or rank is `path`; `None` where it is neither."""
    if records_file(path, listing) is not None:
        number = _number(path.parent)
        root = path if number is None else path.parent.parent
        return MsprobeLayout(root, ((number or 0, (path,)),), number is not None)
    if ranks := _ranks(path, listing):
        number = _number(path)
        root = path if number is None else path.parent
        return MsprobeLayout(root, ((number or 0, ranks),), number is not None)
    steps = sorted(
        (number, ranks)
        for name in listing.directories(path)
        if (number := _number(Path(name))) is not None and (ranks := _ranks(path / name, listing))
    )
    return MsprobeLayout(path, tuple(steps)) if steps else None


def records_file(path: Path, listing: Listing) -> Path | None:
    """The file of records in the directory of a rank; `None` for another directory."""
    names = listing.files(path)
    return next((path / name for name in RECORDS if name in names and _is_records(path / name)), None)


def _ranks(step: Path, listing: Listing) -> tuple[Path, ...]:
    """The directories of the ranks of a step in rank order; the step itself where it has no others."""
    ranks = sorted(
        (match[1] == "proc", int(match[2]), name)
        for name in listing.directories(step)
        if (match := _RANK.fullmatch(name)) and records_file(step / name, listing) is not None
    )
    if not ranks and _number(step) is not None and records_file(step, listing) is not None:
        return (step,)
    return tuple(step / name for _, _, name in ranks)


def _number(path: Path) -> int | None:
    """The number of a step, by the name of its directory."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else None


def _is_records(path: Path) -> bool:
    try:
        with opened(str(path)) as (file, _):
            head = file.read(_HEAD)
    except AccError:
        return False
    return HEAD.match(head) is not None and b'"framework"' in head
