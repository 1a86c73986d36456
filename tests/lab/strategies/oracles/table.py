"""The table of oracles: which function knows the outputs of which operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .expected import Expected

Param = Mapping[str, Any]
Inputs = Mapping[str, torch.Tensor]
Oracle = Callable[[Param, Inputs], Sequence[Expected]]

ORACLES: dict[str, Oracle] = {}


def oracle(name: str) -> Callable[[Oracle], Oracle]:
    """Register the decorated function, which takes complete parameters and inputs by name."""

    def add(function: Oracle) -> Oracle:
        ORACLES[name] = function
        return function

    return add
