"""The native kernels of this machine, for tests: none where none was built; that of ARM, emulated."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acc_pytest.metrics import kernel
from acc_pytest.metrics.measurement import Measurement
from acc_pytest.metrics.native.library import ISAS, library
from tests.metrics.metric_reference import measured

from .emulated import emulated


def by_isa(isa: str) -> Any:
    """The kernel of an instruction set; skips the test where there is none."""
    if isa == "aarch64":
        return emulated()
    if isa not in library().kernels:
        pytest.skip(library().reason or f"this processor has no {isa}")
    return library().kernels[isa]


def measured_by(
    chosen: Any, monkeypatch: pytest.MonkeyPatch, golden: torch.Tensor, mine: torch.Tensor
) -> Measurement:
    """What `measure` says of two tensors with this kernel; `None` is the one in Python."""
    with monkeypatch.context() as context:
        context.setattr(kernel, "chosen", lambda: chosen)
        return measured(golden, mine)


each_isa = pytest.mark.parametrize("isa", [*ISAS, "aarch64"])
