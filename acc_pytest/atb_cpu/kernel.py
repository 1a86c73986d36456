"""One kernel of an operation, and functions for all that make one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .execution import Execution
from .graph import Tensors

Param = Mapping[str, Any]
Indexed = Mapping[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that ran: `name` is its directory's, `operation` and `param` are what Mki calls them.

    `before` and `after` are its inputs by index around the execution; of `declared` inputs those that
    are missing in them are null tensors. `stale` are the outputs before, `None` where nothing had been
    written.
    """

    name: str
    operation: str
    param: Param
    before: Indexed
    after: Indexed
    declared: int
    stale: tuple[torch.Tensor | None, ...]
    outputs: Tensors


def short(tensor: torch.Tensor) -> str:
    """F16, BF16, F32, I8, U32: the dtype in names of kernels."""
    dtype = tensor.dtype
    if dtype == torch.bfloat16:
        return "BF16"
    letter = "F" if dtype.is_floating_point else "U" if str(dtype).startswith("torch.u") else "I"
    return f"{letter}{tensor.element_size() * 8}"


def from_operation(done: Execution, name: str, operation: str, param: Param) -> Kernel:
    """A kernel that takes the operation's tensors as they are."""
    before, after = dict(enumerate(done.before)), dict(enumerate(done.after))
    return Kernel(name, operation, param, before, after, len(before), done.stale, done.outputs)


def elewise_param(kind: int, param: Param | None = None, scale: float = 0.0) -> dict[str, Any]:
    quant = (param or {}).get("quantParam") or {}
    return {
        "elewiseType": kind,
        "inputOffset": quant.get("inputOffset", 0),
        "inputScale": quant.get("inputScale", 1.0),
        "outTensorType": (param or {}).get("outTensorType", -1),
        "varAttr": scale,
    }
