"""The modules of one step of mine, each computed by golden's module from what mine gave it.

A module is computed with the modules that it calls cut out: a call of one of them hands back what that
of mine gave. So what is judged of a module is its own code, whatever is wrong inside or before it, and each
is computed once. What its code hands to the modules that it calls is judged like a result of it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import nn

from ...capture.torch_hooks.values import Key, in_arguments, in_result
from ...dumps.base import Slot
from ...dumps.calls import NodeSlot
from ...errors import AccError, OperatorError
from ...guard import guarded
from .arguments import CallTemplate, of_dump, with_results
from .caches import cache_argument, continues, filled_cache, left_by, starts_anew, starts_at_zero, written
from .copies import ModelCopy
from .module_calls import BARE, ModuleCall
from .structure import changed, is_of_torch

Tensors = dict[NodeSlot, torch.Tensor]


class StepReplay:
    """The `calls` of one step of mine (`module_calls`), computed by both copies of the golden model.

    `before` are those of the step before, `None` where that was not dumped; empty for the first step.
    """

    def __init__(
        self,
        calls: Mapping[str, ModuleCall],
        before: Mapping[str, ModuleCall] | None,
        fine: ModelCopy,
        rounding: ModelCopy,
    ) -> None:
        self._calls = calls
        self._left = left_by(calls)
        self._before = None if before is None else left_by(before)
        self._first = before is not None and not before
        self._lost = False
        self._modules = frozenset(call.module for call in calls.values())
        self._fine = fine
        self._rounding = rounding
        self._templates: dict[ModuleCall, CallTemplate] = {}
        self._results: dict[ModuleCall, Any] = {}
        self._refusals: dict[ModuleCall, str] = {}

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
        """What the code of a call makes, by the finer copy and by the rounding one: its outputs, and the
        inputs of the calls in it. Raises `AccError`.
        """
        fine = self._run(self._fine, call)
        return fine, self._run(self._rounding, call)

    def in_halves(self, call: ModuleCall, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """A product whose two halves are rounded to `dtype` and added up; `None` of other modules."""
        module = self._fine.modules[call.module]
        if type(module) is not nn.Linear or len(call.inputs) != 1 or not dtype.is_floating_point:
            return None
        (ref,) = call.inputs.values()
        half = module.in_features // 2
        with torch.no_grad():
            given = self._fine.cast(ref.open())[..., :half]
            first = nn.functional.linear(given, module.weight[:, :half])
        return first.to(dtype) + (exact - first).to(dtype)

    def _run(self, copy: ModelCopy, call: ModuleCall) -> Tensors:
        module = copy.modules.get(call.module)
        if module is None:
            raise OperatorError(f"the model of --acc-model has no module {call.module}")
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            raise OperatorError(f"the weights of {call.module} are not there")
        args, kwargs = self._arguments(copy, call, module)
        run = _Run(copy, call, self._modules, self._templates, self._results, self._refusals)
        run.knows_past = self._knows_past
        with guarded(f"computing {call.path} again"), torch.no_grad(), run.cut(module):
            result = module(*args, **kwargs)
        run.check()
        made = {
            NodeSlot(call.path, Slot("output", key or BARE)): one for key, one in in_result(result).tensors
        }
        made |= run.handed | written(call, module, args, kwargs)
        return {place: tensor for place, tensor in made.items() if not tensor.is_meta}

    def _arguments(
        self, copy: ModelCopy, call: ModuleCall, module: nn.Module
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        template = self._template(call)
        mine = {key: copy.cast(ref.open()) for key, ref in call.inputs.items()}
        if template is not None:
            return template.filled(mine, copy.own, module)
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

    @cached_property
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
        """What golden's code hands the module of a call; `None` where no call around it was dumped."""
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
        whole = [key[0] for key in call.inputs if len(key) == 1]  # the rest of a tuple may be no tensor
        return len(inspect.signature(module.forward).parameters) == len(whole) == len(call.inputs)


class _Run:
    """One run of a module with the modules in it cut out."""

    def __init__(
        self,
        copy: ModelCopy,
        call: ModuleCall,
        dumped: frozenset[str],
        templates: dict[ModuleCall, CallTemplate],
        results: dict[ModuleCall, Any],
        refusals: dict[ModuleCall, str],
    ) -> None:
        self.handed: Tensors = {}
        self._copy = copy
        self._call = call
        self._dumped = dumped
        self._templates = templates
        self._results = results
        self._refusals = refusals
        self._stack = [call]
        self._counts: Counter[tuple[str, str]] = Counter()
        self._given: dict[int, torch.Tensor] = {}
        self.knows_past = True
        self._problem = ""

    @contextmanager
    def cut(self, module: nn.Module) -> Iterator[None]:
        """While it lasts, calls of modules in `module` come here."""
        inner = [one for one in module.modules() if one is not module]
        before = {one: one.__dict__.get("forward") for one in inner}
        for one in inner:
            one.__dict__["forward"] = self._instead(one, one.forward)
        try:
            yield
        finally:
            for one, forward in before.items():
                del one.__dict__["forward"]
                if forward is not None:
                    one.__dict__["forward"] = forward

    def check(self) -> None:
        """Raises `OperatorError` where golden's code called what mine did not."""
        if self._problem:
            raise OperatorError(self._problem)

    def _instead(self, module: nn.Module, forward: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            call = self._next(module)
            return (
                forward(*args, **kwargs)
                if call is None
                else self._of_mine(call, module, forward, args, kwargs)
            )

        return called

    def _next(self, module: nn.Module) -> ModuleCall | None:
        """The call of mine that a call of golden's code is; `None` for a module that mine did not dump."""
        around = self._stack[-1]
        names = [name for name in self._copy.names[id(module)] if name in self._dumped]
        if not names:
            return None
        calls = [call for call in around.called if call.module in names]
        place = self._counts[around.path, names[0]]
        self._counts[around.path, names[0]] += 1
        if place >= len(calls):
            self._problem = (
                f"the model of --acc-model calls {names[0]} in {around.path} more often than mine did"
            )
            return None
        return calls[place]

    def _of_mine(
        self, call: ModuleCall, module: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Note what is handed to a module, and hand back what that of mine gave."""
        self._note(call, forward, args, kwargs)
        outputs = {key: self._mine(ref.open()) for key, ref in call.outputs.items()}
        bare = call.bare or is_of_torch(module) or self._copy.bare.get(call.module, False)
        if bare and tuple(outputs) == (BARE,):
            return outputs[BARE]
        if call not in self._results:
            inputs = {key: self._copy.cast(ref.open()) for key, ref in call.inputs.items()}
            self._stack.append(call)
            args, kwargs = self._templates[call].filled(inputs, self._copy.own, module)
            result = forward(*args, **kwargs)
            self._stack.pop()
            self._copy.bare[call.module] = isinstance(result, torch.Tensor)
            self._results[call] = changed(result, _emptied(call), _as_it_is)
        return with_results(
            changed(self._results[call], lambda _, one: self._copy.own(one), _as_it_is), outputs
        )

    def _note(self, call: ModuleCall, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = in_arguments(args, kwargs)
        tensors = given.tensors
        if given.caches and not self.knows_past:
            self._problem = f"what the cache of {call.path} held before is not in the dump"
            self._refusals[call] = self._problem
        if self._stack[-1] is self._call:
            for key, tensor in tensors:
                if key in call.inputs:
                    self.handed[NodeSlot(call.path, Slot("input", key))] = tensor.clone()
        if call in self._templates:
            return
        for key, tensor in tensors:
            if key not in call.inputs and not (
                _is_fed(_named(key, forward), tensor) or id(tensor) in self._given
            ):
                self._refusals[call] = f"{_said(key)} of {call.path} was not dumped"
        self._templates[call] = CallTemplate.seen(args, kwargs, call.inputs.keys())

    def _mine(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that mine gave, remembered as such: handed on as it is, it is still one of mine."""
        given = self._copy.cast(tensor)
        self._given[id(given)] = given
        return given


def _emptied(call: ModuleCall) -> Any:
    """What becomes of the tensors of a result that is kept for its form: those of mine come from the dump."""
    return lambda key, tensor: tensor.new_empty(0) if (key or BARE) in call.outputs else tensor


def _as_it_is(cache: Any, key: Key) -> Any:
    return cache


def _named(key: Key, forward: Any) -> str:
    """The name of the argument that a key is of."""
    if isinstance(key[0], str):
        return key[0]
    return next(islice(inspect.signature(forward).parameters, key[0], None), "")


def _is_fed(name: str, tensor: torch.Tensor) -> bool:
    """Whether golden's own tensor may stand for one that mine has not: a mask or positions, made of what the
    run was fed."""
    return not tensor.is_floating_point() or "mask" in name


def _said(key: Key) -> str:
    return str(Slot("input", key))
