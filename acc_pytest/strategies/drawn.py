"""One drawn case: an operator, its parameters and inputs, readable when a test prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

_SHOWN = 16


@dataclass(frozen=True)
class DrawnCase:
    """What `acc_pytest.operators.compute` takes: an operator's name, its parameters, its inputs in order."""

    operator: str
    param: Mapping[str, Any]
    inputs: tuple[torch.Tensor | None, ...]

    def __repr__(self) -> str:
        """Everything that is small, the shapes of the rest: hypothesis prints this of a failing case."""
        inputs = ", ".join(_shown(tensor) for tensor in self.inputs)
        return f"DrawnCase({self.operator!r}, {dict(self.param)!r}, ({inputs}))"


def _shown(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    kind = str(tensor.dtype).removeprefix("torch.")
    values = f" {tensor.tolist()}" if tensor.numel() <= _SHOWN else ""
    return f"{kind}{list(tensor.shape)}{values}"
