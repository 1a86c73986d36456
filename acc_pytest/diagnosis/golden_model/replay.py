"""The modules of one step of mine, each computed by golden's module from what mine gave it.

A module is computed with the modules that it calls cut out: a call of one of them hands back what that
of mine gave. So what is judged of a module is its own code, whatever is wrong inside or before it, and each
is computed once. What its code hands to the modules that it calls is judged like a result of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...capture.torch_hooks.values import Key, in_result
from ...dumps.base import Slot
from ...dumps.calls import NodeSlot
from ...errors import AccError, OperatorError
from ...guard import calling
from ...tensors.ref import TensorRef, readable
from .arguments import CallTemplate, of_dump
from .caches import cache_argument, cached, continues, filled_cache, left_by, starts_anew, starts_at_zero
from .copies import ModelCopy, Nudge
from .cut_run import CutRun, Tensors
from .experts import experts_of_mine
from .module_calls import BARE, ModuleCall
from .traced import TracedModule
from .without_values import refusing_mixtures

_OPEN = 64
"""Files that are kept open: those of a layer, which is computed twice, and each of its tensors judged."""


class StepReplay:
    """The `calls` of one step of mine (`module_calls`), computed by both copies of the golden model.

    `before` are those of the step before, `None` where that was not dumped; empty for the first step.
    `opened` opens a tensor of mine, and remembers the last. `step` is what golden's traces call the step.
    """

    def __init__(
        self,
        calls: Mapping[str, ModuleCall],
        before: Mapping[str, ModuleCall] | None,
        fine: ModelCopy,
        rounding: ModelCopy,
        step: str = "0",
    ) -> None:
        self._calls = calls
        self._left = left_by(calls)
        self._before = None if before is None else left_by(before)
        self._calls_before = before
        self._first = before is not None and not before
        self._lost = False
        self._modules = frozenset(call.module for call in calls.values())
        self._fine = fine
        self._rounding = rounding
        self._step = step
        self._templates: dict[ModuleCall, CallTemplate] = {}
        self._results: dict[ModuleCall, Any] = {}
        self._refusals: dict[ModuleCall, str] = {}
        self.opened = functools.lru_cache(maxsize=_OPEN)(TensorRef.open)

    def maker_of(self, path: str, slot: Slot) -> ModuleCall:
        """The call whose code made a tensor. Raises `OperatorError` for what the run was fed."""
        call = self._calls.get(path)
        if call is None:
            raise OperatorError(f"{path} is no module that ran")
        if slot.kind == "output":
            return call
        if call.inside is None:
            raise OperatorError(f"{slot} of {path} is what the run was fed")
        return call.inside

    def computed(self, call: ModuleCall) -> tuple[Tensors, Tensors]:
        """The results of a call's code by the finer copy and by the rounding one: its outputs, and the inputs
        of the calls in it. Raises `AccError`.
        """
        fine = self._run(self._fine, call)
        return fine, self._run(self._rounding, call)

    def is_traced(self, call: ModuleCall) -> bool:
        """Whether the module of a call runs a trace."""
        return isinstance(self._fine.modules.get(call.module), TracedModule)

    def nudged(self, call: ModuleCall, draw: int) -> Tensors:
        """The results of a call's code, computed finely, for inputs that are off by roundings of mine, other
        ones for each `draw`. Raises `AccError`."""
        generator = torch.Generator().manual_seed(draw)
        nudge = Nudge(torch.finfo(self._rounding.dtype).eps / 2, generator)
        return self._run(replace(self._fine, nudge=nudge), call)

    def flat(self, call: ModuleCall) -> Tensors:
        """The results of a trace that rounds as mine does, where nothing is raised to a finer dtype on the
        way; nothing for modules that are none of a trace. Raises `AccError`."""
        module = self._rounding.modules.get(call.module)
        if not isinstance(module, TracedModule):
            return {}
        module.traced_run.flat = True
        try:
            return self._run(self._rounding, call)
        finally:
            module.traced_run.flat = False

    def in_halves(self, call: ModuleCall, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """A product whose two halves are rounded to `dtype` and added up; `None` of other modules."""
        module = self._fine.modules[call.module]
        if not isinstance(module, nn.Linear) or len(call.inputs) != 1 or not dtype.is_floating_point:
            return None
        (ref,) = call.inputs.values()
        half = module.in_features // 2
        with torch.no_grad():
            rows = self._fine.cast(self.opened(ref))[..., :half]
            first = nn.functional.linear(rows, module.weight[:, :half])
        return first.to(dtype) + (exact - first).to(dtype)

    def _run(self, copy: ModelCopy, call: ModuleCall) -> Tensors:
        module = copy.modules.get(call.module)
        if module is None or type(module) is nn.Module:
            raise OperatorError(f"the model of --acc-model has no module {call.module}")
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            raise OperatorError(f"the weights of {call.module} are not there")
        args, kwargs = self._arguments(copy, call, module)
        run = CutRun(copy, call, self._modules, self._templates, self._results, self._refusals, self.opened)
        run.knows_past = self._knows_past
        computing = calling(f"computing {call.path} again")
        as_mine = experts_of_mine(module, call)
        if isinstance(module, TracedModule):
            before = functools.partial(self._left_before, copy)
            module.traced_run.begin(self._step, before, call.path, self._tensors_of(call, module))
        with computing, torch.no_grad(), run.cut(module), refusing_mixtures(module), as_mine:
            result = module(*args, **kwargs)
        run.check()
        if isinstance(module, TracedModule):
            run.check_all_ran()
        tensors = {
            NodeSlot(call.path, Slot("output", key or BARE)): output
            for key, output in in_result(result).tensors
        }
        tensors |= run.handed | cached(call, module, args, kwargs) | _traced_caches(call, module)
        return {place: tensor for place, tensor in tensors.items() if not tensor.is_meta}

    def _tensors_of(self, call: ModuleCall, module: nn.Module) -> Iterator[Any]:
        """The weights of a module, and the tensors of mine that its call and those in it took and gave."""
        yield from module.parameters(recurse=False)
        yield from module.buffers(recurse=False)
        for inner_call in (call, *call.called):
            for ref in (*inner_call.inputs.values(), *inner_call.outputs.values()):
                header = readable(ref)
                if header is not None:
                    yield header

    def _left_before(self, copy: ModelCopy, name: str, key: Key) -> torch.Tensor:
        """The tensor that a module of mine left in a cache at the step before. Raises `OperatorError`."""
        call = None if self._calls_before is None else self._calls_before.get(name)
        if call is None or key not in call.outputs:
            raise OperatorError(f"what {name} left in caches at the step before is not in the dump")
        return copy.cast(self.opened(call.outputs[key]))

    def _arguments(
        self, copy: ModelCopy, call: ModuleCall, module: nn.Module
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        template = self._template(call)
        mine = {key: copy.cast(self.opened(ref)) for key, ref in call.inputs.items()}
        if template is not None:
            return template.filled(mine, copy.lowered, module)
        args, kwargs = of_dump(mine, module.forward, call.path)
        return args, kwargs | self._past(copy, call, module)

    def _past(self, copy: ModelCopy, call: ModuleCall, module: nn.Module) -> dict[str, Any]:
        """The cache that a model was called with, if it was."""
        name = cache_argument(module)
        if call.inside is not None or not name or not self._before or not continues(self._before, self._left):
            return {}
        cache = filled_cache(module, self._before, copy.modules, copy.cast)
        self._lost |= cache is None
        return {} if cache is None else {name: cache}

    @functools.cached_property
    def _at_zero(self) -> bool:
        return starts_at_zero(self._calls)

    @property
    def _knows_past(self) -> bool:
        """Whether the step began without a cache, or with one that can be made again."""
        if self._first or self._at_zero:
            return True
        if self._before is None or self._lost:
            return False
        return continues(self._before, self._left) or starts_anew(self._before, self._left)

    def _template(self, call: ModuleCall) -> CallTemplate | None:
        """The arguments of a call by golden's code; `None` where no call around it was dumped."""
        module = self._fine.modules.get(call.module)
        if isinstance(module, TracedModule):
            module.traced_run.step = self._step
            if module.traced_takes(call.inputs):
                return None  # what is no tensor is in its trace
        if call.inside is not None and call not in self._templates:
            try:
                self._run(self._fine, call.inside)
            except AccError:
                if self._is_plain(call):
                    return None
                raise
            if call not in self._templates:
                raise OperatorError(f"the model of --acc-model does not call {call.path} there")
        if call in self._refusals:
            raise OperatorError(self._refusals[call])
        return self._templates.get(call)

    def _is_plain(self, call: ModuleCall) -> bool:
        """Whether a module surely takes just the tensors that mine dumped, and calls no other module."""
        module = self._fine.modules.get(call.module)
        if module is None or next(module.children(), None) is not None:
            return False
        names = [key[0] for key in call.inputs if len(key) == 1]  # the rest of a tuple may be no tensor
        return len(inspect.signature(module.forward).parameters) == len(names) == len(call.inputs)


def _traced_caches(call: ModuleCall, module: nn.Module) -> Tensors:
    """The tensors that the trace of a call has left in caches."""
    if not isinstance(module, TracedModule):
        return {}
    entries = module.traced_run.cached.items()
    return {
        NodeSlot(call.path, Slot("output", key)): tensor
        for (name, key), tensor in entries
        if name == call.module
    }
