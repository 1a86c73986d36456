"""Formats of files that operators leave: logs of DebugMode, tensors of captured graphs. Read by planning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from . import dumps, text_mutations
from .case import Format, Seed
from .dump_files import _SAMPLE, _name, _names, _planned
from .pickle_mutations import pickled
from .zip_mutations import zipped

_SIDES = ("golden", "mine")
_RANK = "worldsize1_global_rank0"


def formats() -> list[Format]:
    """All of them. A plan takes ten times what reading one file does."""
    return [
        Format("debug-log", _logs, text_mutations.mutated, _planned, sample=_SAMPLE),
        Format("captured-file", _captured, zipped(pickled), _planned, sample=_SAMPLE),
        Format("captured-names", _renamed, _name, _planned, renames=True, sample=_SAMPLE),
    ]


def _logs(directory: Path) -> list[Seed]:
    """Two runs of a model of two layers; mine is in another dtype, and one norm is wrong."""
    for name, dtype in zip(_SIDES, ("f32", "bf16")):
        (directory / name).mkdir(parents=True)
        text = "\n".join(line for _ in range(2) for line in _run(dtype))
        (directory / name / "log.txt").write_text(text)
    return [*dumps.seeds(directory, "log.txt")]


def _run(dtype: str) -> Iterator[str]:
    last = 0
    yield "[nn.Mod] M"
    for layer in range(2):
        yield f"  [nn.Mod] M.layers.{layer}"
        for name, norm in (("aten::mm", 3.25), ("aten::add.Tensor", 4.5), ("aten::split", 1e3)):
            given = f"t${last}: {dtype}[2, 6]"
            last += 1
            made = f"t${last}: {dtype}[2, 6]"
            hashes = f"{{'input_hash': (({norm!r}, None), {{'alpha': None}}), 'hash': {norm + layer!r}}}"
            if name == "aten::split":
                made, hashes = f"[t${last}: i64[], {made}]", "{'hash': [7, 2.0]}"
            yield f"    {name}({given}, [1, -1], alpha=2)  ->  {made}  # {hashes}"
        yield f"    aten::_to_copy(t${last}: {dtype}[2, 6], dtype=torch.float32)  ->  t${last + 1}: f32[2, 6]"


def _captured(directory: Path) -> list[Seed]:
    _write_captured(directory)
    return [*dumps.seeds(directory, "*.pt")]


def _renamed(directory: Path) -> list[Seed]:
    _write_captured(directory)
    return _names(directory, "mine")


def _write_captured(directory: Path) -> None:
    """Two calls of three nodes, by name and, as of old, by time."""
    for side in _SIDES:
        home = directory / side / _RANK
        home.mkdir(parents=True)
        for order, name in enumerate(("arg0_1", "add", "getitem_1", f"tensor_17000000000{42:05d}")):
            for call in range(2):
                path = home / f"{name}_device_0_{call}.pt"
                torch.save(torch.full((2, 3), float(order + call)), path)
                os.utime(path, ns=(order, order))
