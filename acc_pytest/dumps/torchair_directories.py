"""The fields of a directory of a TorchAir dump, read off its absolute path from the right.

    GE  [worldsize{W}_global_rank{R}/]{time}/{device}/{model}/{model id}/{step}        the rank since PTA 7.2
    FX  worldsize{W}_global_rank{R}/graph_{n}/{step}                                     since PTA 7.2
        data_dump/{step + 1}/gm_{time}_dump  and, before 2024-03,  gm_{time}_dump/{step + 1}

Any level may be missing, and the user may point at any of them: only the levels above a file count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANK = re.compile(r"^worldsize(\d+)_global_rank(\d+)$")
_GM = re.compile(r"^gm_(\d{14,20})_dump$")
_GRAPH_DIRECTORY = re.compile(r"^graph_(\d+)(?:_\d+)*$")
_TIME = re.compile(r"^\d{14}$")
_OLD_ROOT = re.compile(r"^dump_\d{8}_\d{6}$")
_LONGEST_STEP = 12
_LONGEST_DEVICE = 4


@dataclass(frozen=True, slots=True)
class TorchairDirectory:
    """The fields of the path of a directory; `None` and empty for levels that are not there.

    `graph` is the model's directory (`graph_1`, `gm_20261120..._dump`), `number` the graph's number, `step`
    the inference iteration, already without the off-by-one of old FX dumps.
    """

    step: int | None = None
    graph: str = ""
    number: int | None = None
    model_id: int | None = None
    device: int | None = None
    time: str = ""
    rank: int | None = None
    world: int | None = None


def is_level(name: str) -> bool:
    """Whether a directory of this name may lie inside a dump, so that the rest of the dump is above it."""
    patterns = (_RANK, _GM, _GRAPH_DIRECTORY, _TIME, _OLD_ROOT)
    return name.isdecimal() or name == "data_dump" or any(pattern.match(name) for pattern in patterns)


def ge_directory(path: str) -> TorchairDirectory:
    """Read the levels of a directory that holds GE records."""
    levels = path.split("/")
    world, rank = _rank(levels)
    step = _number(levels, _LONGEST_STEP)
    model_id = _number(levels, _LONGEST_STEP)
    time = _time(levels)
    if step is None:
        return TorchairDirectory(time=time, rank=rank, world=world)
    if model_id is None and _is_model(levels):
        # A model without a step counter: the only number below its name is its id.
        step, model_id = None, step
    elif model_id is None and time:
        # Operators that run outside of any model lie directly below the device.
        return TorchairDirectory(None, device=step, time=time, rank=rank, world=world)
    model = levels.pop() if levels and _may_be_model(levels[-1]) else ""
    if model_id is None and not _GRAPH_DIRECTORY.match(model):
        # A step directory on its own: what is above it is no model.
        return TorchairDirectory(step, rank=rank, world=world)
    device = _number(levels, _LONGEST_DEVICE)
    number = _GRAPH_DIRECTORY.match(model)
    return TorchairDirectory(
        step, model, int(number.group(1)) if number else None, model_id, device, _time(levels), rank, world
    )


def fx_directory(path: str) -> TorchairDirectory:
    """Read the levels of a directory that holds FX tensors."""
    levels = path.split("/")
    world, rank = _rank(levels)
    last, before = levels[-1], levels[-2] if len(levels) > 1 else ""
    if _GM.match(last):
        name, step = last, int(before) - 1 if before.isdecimal() else 0
    elif not last.isdecimal() or len(last) >= _LONGEST_STEP:
        name, step = last, 0
    else:
        name, step = before, int(last) - bool(_GM.match(before))
    graph = _GRAPH_DIRECTORY.match(name)
    number = int(graph.group(1)) if graph else None
    name = name if graph or _GM.match(name) else ""
    return TorchairDirectory(max(step, 0), name, number, rank=rank, world=world)


def rank_of(name: str) -> int | None:
    """The rank that the name of a directory says (`worldsize2_global_rank1`), or `None`."""
    return _rank([name])[1]


def _rank(levels: list[str]) -> tuple[int | None, int | None]:
    for level in reversed(levels):
        if match := _RANK.match(level):
            return int(match.group(1)), int(match.group(2))
    return None, None


def _number(levels: list[str], longest: int) -> int | None:
    """Take the last level off `levels` where it is a number shorter than `longest` digits."""
    if levels and levels[-1].isdecimal() and len(levels[-1]) < longest:
        return int(levels.pop())
    return None


def _time(levels: list[str]) -> str:
    """The last level where it is a time."""
    return levels[-1] if levels and _TIME.match(levels[-1]) else ""


def _may_be_model(name: str) -> bool:
    return bool(_GRAPH_DIRECTORY.match(name)) or not is_level(name)


def _is_model(levels: list[str]) -> bool:
    """Whether the last level is the name of a model: one of TorchAir's, or one right below a device."""
    if not levels:
        return False
    if _GRAPH_DIRECTORY.match(levels[-1]):
        return True
    parent = levels[-2] if len(levels) > 1 else ""
    return parent.isdecimal() and len(parent) < _LONGEST_DEVICE and not _TIME.match(levels[-1])
