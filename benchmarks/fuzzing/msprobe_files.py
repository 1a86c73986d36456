"""Formats of files in dumps of msprobe: records, who called whom, stacks, names. Each is read by planning."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from tests.dumps.msprobe_writer import RankWriter

from . import dumps, json_mutations
from .case import Format, Seed
from .dump_files import _SAMPLE, _name, _names, _planned


def formats() -> list[Format]:
    """All of them. A plan takes ten times what reading one file does."""
    return [
        Format("msprobe-records", _files("dump.json"), json_mutations.mutated, _planned, sample=_SAMPLE),
        Format(
            "msprobe-construct", _files("construct.json"), json_mutations.mutated, _planned, sample=_SAMPLE
        ),
        Format("msprobe-stack", _files("stack.json"), json_mutations.mutated, _planned, sample=_SAMPLE),
        Format("msprobe-names", _renamed, _name, _planned, renames=True, sample=_SAMPLE),
    ]


@functools.cache
def _dumps(shelf: Path) -> Path:
    """A folder with pairs of dumps: tensors, and statistics with digests. Mine has a wrong result."""
    for task in ("tensor", "statistics"):
        for side in ("golden", "mine"):
            for rank in (0, 1):
                home = shelf / f"msprobe-{task}" / side / "step0" / f"rank{rank}"
                _step(RankWriter(home, task=task, digests=task == "statistics"), wrong=side == "mine")
    return shelf


def _step(writer: RankWriter, *, wrong: bool) -> None:
    """A layer with a norm, a function in it, gradients, and a DTensor."""
    layer, norm = "Module.model.layers.0.Layer.forward.0", "Module.model.layers.0.norm.Norm.forward.0"
    function = "Tensor.__mul__.0.forward"
    x, weight = torch.arange(8.0).reshape(2, 4), torch.ones(4)
    y = x * (2 if wrong else 1.5)
    for name, parent in ((layer, None), (norm, layer), (function, norm)):
        writer.began(name, parent)
        writer.stacks[name] = ["File /opt/model.py, line 3, in forward, \n y = f(x)"]
    kwargs = {"mask": None, "scale": 2.5, "table": {"a": [x.half(), 3]}}
    writer.ended(function, {"input_args": [x, weight], "input_kwargs": {}, "output": [y]})
    shard = [{"Shard": {"dim": 1}}]
    parts = {"input_args": [x], "input_kwargs": kwargs, "output": [y], "parameters": {"weight": weight}}
    writer.ended(norm, parts, output=shard)
    result = [{"hidden": y, "rest": [y + 1, None]}]
    writer.ended(layer, {"input_args": [x], "input_kwargs": {}, "output": result, "parameters": {}})
    writer.gradients("Module.model.layers.0.norm.Norm.parameters_grad.0", {"weight": weight / 3})
    writer.ended(norm.replace("forward", "backward"), {"input": [y / 7], "output": [x / 7, None]})
    writer.write()


def _files(pattern: str) -> functools.partial[list[Seed]]:
    return functools.partial(_seeds, pattern)


def _seeds(pattern: str, directory: Path) -> list[Seed]:
    shelf = _dumps(directory.parent)
    homes = [shelf / f"msprobe-{task}" for task in ("tensor", "statistics")]
    return [seed for home in homes for seed in dumps.seeds(home, pattern)]


def _renamed(directory: Path) -> list[Seed]:
    return _names(_dumps(directory.parent) / "msprobe-tensor", "mine")
