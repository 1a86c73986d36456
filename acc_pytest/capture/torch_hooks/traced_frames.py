"""The traces of the modules that are running: begun and ended with their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .step import Frame, StepRecord
from .trace import Trace
from .values import Key

_UNTRACED = (nn.Linear, nn.Embedding)
"""Modules of which an outline has no weights, or has a projection."""


def enter_traced(
    step: StepRecord, frame: Frame, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """A module is called, in the one on top of the stack."""
    if step.traces is None:
        return
    around = step.stack[-1].trace if step.stack else None
    if around is not None:
        frame.entered = around.enter(frame.name, args, kwargs)
    if not isinstance(module, _UNTRACED):
        frame.trace = Trace(step.traces, module, frame.name)
        frame.trace.begin(args, kwargs)


def leave_traced(
    step: StepRecord,
    frame: Frame,
    result: Any,
    parts: Sequence[tuple[Key, torch.Tensor]],
    *,
    failed: bool,
) -> None:
    """The call has returned, or raised; the stack is that of the modules around it. `parts` are what the
    module left in caches."""
    around = step.stack[-1].trace if step.stack else None
    for trace in (frame.trace, around):
        if trace is not None and failed:
            trace.fail()
    if frame.trace is not None:
        frame.trace.end(result, parts)
    if around is not None:
        around.returned(frame.entered, result)
