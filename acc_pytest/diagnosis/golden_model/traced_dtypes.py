"""Dtypes in a trace of golden, for a copy that computes finer than mine or rounds as mine does.

A golden in float32 leaves open what a cast to float32 was written as. `x.float()` and `.to(torch.float32)`
raise what is lower; `.to(x.dtype)`, which often ends what they begin, lowers it again. So in the copy that
rounds as mine, a cast to the dtype of golden raises tensors in the dtype of mine, and lowers those in that
of golden, unless the code had asked no tensor for its dtype until then. That is a guess, so that there is a
flat copy too, in which such casts raise nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...capture.torch_hooks.values import Key
from ...dumps.torch_traces import StepTraces, traces_of
from ...errors import OperatorError
from ...operators.room import Room
from ...tensors.dtypes import by_name

_CASTS = ("to", "type")
_NAMED = {
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16,
}  # fmt: skip
"""Methods that cast to the dtype of their name."""
_OF_ONE_DTYPE = (
    "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "addmm", "addbmm", "baddbmm", "einsum",
    "linear", "bilinear", "conv1d", "conv2d", "conv3d", "tensordot", "inner", "scaled_dot_product_attention",
)  # fmt: skip
"""Functions that refuse factors of two dtypes."""
_INTO = ("index_add_", "index_copy_", "index_put_", "scatter_", "scatter_add_", "masked_scatter_")
"""Functions that write to their first argument what must have its dtype."""


@dataclass
class TraceRun:
    """The state that the modules of one copy of a model share: golden's process folder `home`, the step that
    is computed, and how. `dtype` is that of the copy. A `fine` one casts nothing to a coarser one, a `flat`
    one nothing to a finer one. `before` gives what modules of mine left in caches at the step before, by the
    name of the module and the key; `cached` has what the traces have left now. `room` is for calls.
    """

    home: str
    step: str = "0"
    dtype: torch.dtype = torch.float32
    fine: bool = True
    flat: bool = False
    modules: dict[str, nn.Module] = field(default_factory=dict)
    before: Callable[[str, Key], torch.Tensor] | None = None
    cached: dict[tuple[str, Key], torch.Tensor] = field(default_factory=dict)
    room: Room = field(default_factory=lambda: Room("a trace of golden", ()))

    def begin(
        self, step: str, before: Callable[[str, Key], torch.Tensor], path: str, tensors: Iterable[Any]
    ) -> None:
        """Start computing the module at `path` in a step; `tensors` are all that its room is measured by."""
        self.step, self.before = step, before
        self.cached.clear()
        self.room = Room(path, tensors, pairs=True)

    @property
    def traces(self) -> StepTraces:
        """The traces of the step. Raises `OperatorError` where golden's dump has none."""
        traces = traces_of(self.home, self.step)
        if traces is None:
            raise OperatorError(f"golden's dump has no traces of step {self.step}")
        return traces

    @property
    def golden(self) -> torch.dtype:
        """The dtype of golden's network."""
        return by_name(self.traces.dtype).torch_dtype()

    def constant(self, name: str) -> torch.Tensor:
        """A tensor that golden's code took from elsewhere. Raises `OperatorError` where it is not there."""
        ref = self.traces.tensors.get(name)
        if ref is None:
            raise OperatorError(f"golden's dump keeps no tensor {name}")
        tensor = ref.open().clone()
        raised = self.fine and tensor.is_floating_point()
        return tensor.to(torch.promote_types(tensor.dtype, self.dtype)) if raised else tensor


class CallDtypes:
    """The meaning of dtypes in a call of the function `name` with this first argument."""

    def __init__(self, run: TraceRun, name: str, first: Any) -> None:
        self._run = run
        self._name = name.rpartition(".")[2]
        self._tensor = first if isinstance(first, torch.Tensor) else None

    def of(self, name: str, *, fixed: bool = False) -> torch.dtype:
        """The dtype in this copy for one in the arguments; a `fixed` one stands in golden's code."""
        dtype, mine, golden = by_name(name).torch_dtype(), self._run.dtype, self._run.golden
        if not dtype.is_floating_point:
            return dtype
        if self._run.fine:
            return torch.promote_types(dtype, mine)
        if fixed:
            return dtype
        if self._run.flat and dtype is torch.float32:
            return mine
        if dtype is not golden or mine is golden:
            return dtype
        if golden is not torch.float32:
            return mine
        if self._tensor is None:  # made from nothing: positions are, other numbers are made like others
            return dtype if self._name in ("arange", "linspace") else mine
        lowers = self._name in _CASTS and self._tensor.dtype is dtype
        return mine if lowers else dtype

    def cast(self) -> torch.Tensor | None:
        """The result of a function that casts to the dtype of its name; `None` of all others."""
        dtype = _NAMED.get(self._name)
        if dtype is None or self._tensor is None:
            return None
        if self._run.fine:
            dtype = torch.promote_types(dtype, self._run.dtype)
        return self._tensor.to(dtype)

    def agreed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with the largest numbers of golden's dtype as those of this copy's, and with tensors of
        one dtype where the function asks for that."""
        floats = [value.dtype for value in (*args, *kwargs.values()) if _is_float(value)]
        dtype = None
        if self._name in _INTO and self._tensor is not None:
            dtype = self._tensor.dtype
        elif self._name in _OF_ONE_DTYPE and len(set(floats)) > 1:
            dtype = self._run.dtype
        return (
            [self._agreed(value, dtype) for value in args],
            {name: self._agreed(value, dtype) for name, value in kwargs.items()},
        )

    def _agreed(self, value: Any, dtype: torch.dtype | None) -> Any:
        if type(value) is float:
            golden_limits, limits = torch.finfo(self._run.golden), torch.finfo(self._run.dtype)
            return {golden_limits.max: limits.max, golden_limits.min: limits.min}.get(value, value)
        return value if dtype is None or not _is_float(value) else value.to(dtype)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
