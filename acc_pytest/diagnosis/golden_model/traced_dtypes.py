"""What dtypes mean in a trace of golden, for a copy that computes finer than mine or rounds as mine does.

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
    """What the modules of one copy of a model share: golden's process folder `home`, the step that is
    computed, and how. `dtype` is that of the copy. A `fine` one casts nothing to a coarser one, a `flat` one
    nothing to a finer one. `before` gives what modules of mine left in caches at the step before, by the name
    of the module and the key; `parts` is what the traces have left there now. `room` is for what is called.
    """

    home: str
    step: str = "0"
    dtype: torch.dtype = torch.float32
    fine: bool = True
    flat: bool = False
    modules: dict[str, nn.Module] = field(default_factory=dict)
    before: Callable[[str, Key], torch.Tensor] | None = None
    parts: dict[tuple[str, Key], torch.Tensor] = field(default_factory=dict)
    room: Room = field(default_factory=lambda: Room("a trace of golden", ()))

    def begin(
        self, step: str, before: Callable[[str, Key], torch.Tensor], path: str, held: Iterable[Any]
    ) -> None:
        """The module at `path` is computed in a step; its results, and what it hands to others, are `held`
        against those of a dump."""
        self.step, self.before = step, before
        self.parts.clear()
        self.room = Room(path, held, pairs=True)

    @property
    def traces(self) -> StepTraces:
        """Those of the step. Raises `OperatorError` where golden's dump has none."""
        found = traces_of(self.home, self.step)
        if found is None:
            raise OperatorError(f"golden's dump has no traces of step {self.step}")
        return found

    @property
    def golden(self) -> torch.dtype:
        """That of golden's network."""
        return by_name(self.traces.dtype).torch_dtype()

    def kept(self, name: str) -> torch.Tensor:
        """A tensor that golden's code took from elsewhere. Raises `OperatorError` where it is not there."""
        ref = self.traces.tensors.get(name)
        if ref is None:
            raise OperatorError(f"golden's dump keeps no tensor {name}")
        tensor = ref.open().clone()
        raised = self.fine and tensor.is_floating_point()
        return tensor.to(torch.promote_types(tensor.dtype, self.dtype)) if raised else tensor


class CallDtypes:
    """What dtypes mean in a call of the function `name` with this first argument."""

    def __init__(self, run: TraceRun, name: str, first: Any) -> None:
        self._run = run
        self._name = name.rpartition(".")[2]
        self._tensor = first if isinstance(first, torch.Tensor) else None

    def of(self, name: str, *, fixed: bool = False) -> torch.dtype:
        """What a dtype in the arguments is in this copy; a `fixed` one stands in golden's code."""
        wanted, mine, golden = by_name(name).torch_dtype(), self._run.dtype, self._run.golden
        if not wanted.is_floating_point:
            return wanted
        if self._run.fine:
            return torch.promote_types(wanted, mine)
        if fixed:
            return wanted
        if self._run.flat and wanted is torch.float32:
            return mine
        if wanted is not golden or mine is golden:
            return wanted
        if golden is not torch.float32:
            return mine
        if self._tensor is None:  # made from nothing: positions are, other numbers are made like others
            return wanted if self._name in ("arange", "linspace") else mine
        lowers = self._name in _CASTS and self._tensor.dtype is wanted
        return mine if lowers else wanted

    def cast(self) -> torch.Tensor | None:
        """The result of a function that casts to the dtype of its name; `None` of all others."""
        wanted = _NAMED.get(self._name)
        if wanted is None or self._tensor is None:
            return None
        if self._run.fine:
            wanted = torch.promote_types(wanted, self._run.dtype)
        return self._tensor.to(wanted)

    def agreed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with the largest numbers of golden's dtype as those of this copy's, and with tensors of
        one dtype where the function asks for that."""
        floats = [one.dtype for one in (*args, *kwargs.values()) if _is_float(one)]
        wanted = None
        if self._name in _INTO and self._tensor is not None:
            wanted = self._tensor.dtype
        elif self._name in _OF_ONE_DTYPE and len(set(floats)) > 1:
            wanted = self._run.dtype
        return (
            [self._agreed(one, wanted) for one in args],
            {name: self._agreed(one, wanted) for name, one in kwargs.items()},
        )

    def _agreed(self, value: Any, wanted: torch.dtype | None) -> Any:
        if type(value) is float:
            golden, own = torch.finfo(self._run.golden), torch.finfo(self._run.dtype)
            return {golden.max: own.max, golden.min: own.min}.get(value, value)
        return value if wanted is None or not _is_float(value) else value.to(wanted)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
