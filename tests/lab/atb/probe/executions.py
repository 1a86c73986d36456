"""Executions of small operations, made by hand."""

from __future__ import annotations

from pathlib import Path

import torch

from acc_pytest.lab.atb.graph import Call, Execution, Operation, graph, operation

MULS = operation(
    "ElewiseOperation",
    {"elewiseType": 2, "mulsParam": {"varAttr": 2.0}, "outTensorType": -1},
    ("x",),
    ("output",),
)
X = torch.tensor([[1.0, -2.0]], dtype=torch.float16)


def leaf(
    path: tuple[str, ...] = ("1_Layer", "0_ElewiseOperation"),
    made: Operation = MULS,
    before: tuple[torch.Tensor, ...] = (X,),
    outputs: tuple[torch.Tensor, ...] = (X * 2,),
    stale: tuple[torch.Tensor | None, ...] | None = None,
    after: tuple[torch.Tensor, ...] | None = None,
) -> Execution:
    """A leaf that doubled `X`, unless told otherwise."""
    old = (None,) * len(outputs) if stale is None else stale
    return Execution(0, path, made, before, before if after is None else after, old, outputs)


def layer(path: tuple[str, ...] = ("1_Layer",)) -> Execution:
    """The graph around `leaf`."""
    block = graph("Layer", ("x",), ("y",), Call(MULS, ("x",), ("y",)))
    return Execution(0, path, block, (X,), (X,), (None,), (X * 2,))


def files(root: Path) -> set[str]:
    """All files below `root`, links included."""
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() or p.is_symlink()}
