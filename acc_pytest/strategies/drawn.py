"""One drawn case: an operator, its parameters and inputs, readable when a test prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

_MAX_VALUES = 16


@dataclass(frozen=True)
class DrawnCase:
    """The arguments of `acc_pytest.operators.compute`: an operator's name, parameters, inputs in order."""

    operator: str
    param: Mapping[str, Any]
    inputs: tuple[torch.Tensor | None, ...]

    def __repr__(self) -> str:
        """The values of small tensors, the shapes of large ones: hypothesis prints this of a failing case."""
        inputs = ", ".join(_text(tensor) for tensor in self.inputs)
        return f"DrawnCase({self.operator!r}, {dict(self.param)!r}, ({inputs}))"


def _text(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    kind = str(tensor.dtype).removeprefix("torch.")
    values = f" {tensor.tolist()}" if tensor.numel() <= _MAX_VALUES else ""
    return f"{kind}{list(tensor.shape)}{values}"
