"""A device that is none: `OperationTorch` on the CPU, computing with whatever a test wants to be wrong."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from acc_pytest.opcheck import backends
from acc_pytest.operators import operator_of

Compute = Callable[[str, Mapping[str, Any], Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def install(monkeypatch: pytest.MonkeyPatch, compute: Compute) -> None:
    """Let `acc_opcheck_backend operation_torch` run `compute(name, param, inputs)` here.

    `compute` returns new values of inputs that are written in place, after the outputs; they are written.
    """

    class OperationTorch:
        def __init__(self, name: str) -> None:
            self.name = name

        def set_param(self, text: str) -> None:
            self.param = json.loads(text)

        def execute(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            values = compute(self.name, self.param, tensors)
            writes = operator_of(self.name, self.param).writes
            count = len(values) - len(writes)
            for number, value in zip(writes, values[count:]):
                tensors[number].copy_(value)
            return values[:count]

    holder = types.SimpleNamespace(OperationTorch=types.SimpleNamespace(OperationTorch=OperationTorch))
    monkeypatch.setattr(backends, "_import", lambda package, backend: None)
    monkeypatch.setattr(backends, "_load_library", lambda backend: None)
    monkeypatch.setattr(backends, "_place", lambda device: "cpu")
    monkeypatch.setattr(torch, "classes", holder)
