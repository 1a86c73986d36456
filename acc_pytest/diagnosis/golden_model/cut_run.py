"""One module of golden, computed alone: the modules that it calls give what those of mine gave."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ...capture.torch_hooks.values import Key, in_arguments
from ...dumps.base import Slot
from ...dumps.calls import NodeSlot
from ...errors import OperatorError
from ...older_torch import half_on_cpu
from ...tensors.ref import TensorRef
from ...topology.function_names import function_name
from ...vocabulary import CHOOSING
from .arguments import CallTemplate, with_results
from .copies import ModelCopy
from .module_calls import BARE, ModuleCall
from .structure import changed, is_of_torch

Tensors = dict[NodeSlot, torch.Tensor]


class _Choosing(TorchFunctionMode):
    """Tells a run what is chosen from."""

    def __init__(self, run: CutRun) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function_name(str(getattr(func, "__name__", "")))
        result = func(*args, **(kwargs or {}))
        if name in CHOOSING and args and (name != "max" or isinstance(result, tuple)):
            self._run.note_choice(name, args[0])
        return result


class CutRun:
    """One run of a module with the modules in it cut out."""

    def __init__(
        self,
        copy: ModelCopy,
        call: ModuleCall,
        dumped: frozenset[str],
        templates: dict[ModuleCall, CallTemplate],
        results: dict[ModuleCall, Any],
        refusals: dict[ModuleCall, str],
        opened: Callable[[TensorRef], torch.Tensor],
    ) -> None:
        self.handed: Tensors = {}
        self._copy = copy
        self._call = call
        self._dumped = dumped
        self._templates = templates
        self._results = results
        self._refusals = refusals
        self._opened = opened
        self._stack = [call]
        self._counts: Counter[tuple[str, str]] = Counter()
        self._mine_tensors: dict[int, torch.Tensor] = {}
        self.knows_past = True
        self._problem = ""

    @contextmanager
    def cut(self, module: nn.Module) -> Iterator[None]:
        """While it lasts, calls of modules in `module` come here, and what is chosen from is noted."""
        inner = [submodule for submodule in module.modules() if submodule is not module]
        before = {submodule: submodule.__dict__.get("forward") for submodule in inner}
        for submodule in inner:
            submodule.__dict__["forward"] = self._instead(submodule, submodule.forward)
        try:
            with half_on_cpu(), _Choosing(self):
                yield
        finally:
            for submodule, forward in before.items():
                del submodule.__dict__["forward"]
                if forward is not None:
                    submodule.__dict__["forward"] = forward

    def note_choice(self, function: str, values: torch.Tensor) -> None:
        """Note what the code of the module itself hands to a function that chooses. Dumps count these calls
        from the beginning of a step, so that of a later call of the module nothing is known."""
        if self._stack[-1] is not self._call or self._call.path != self._call.module:
            return
        number = self._counts[self._call.path, function]
        self._counts[self._call.path, function] += 1
        path = f"{self._call.path}.{function}{f'.{number}' if number else ''}"
        self.handed[NodeSlot(path, Slot("input", (0,)))] = values.clone()

    def check(self) -> None:
        """Raises `OperatorError` where golden's code called what mine did not."""
        if self._problem:
            raise OperatorError(self._problem)

    def check_all_ran(self) -> None:
        """Raises `OperatorError` where mine called in the module what golden's code did not."""
        for name, count in Counter(call.module for call in self._call.called).items():
            module = self._copy.modules.get(name)
            aliases = self._copy.names.get(id(module), ())
            first = next((alias for alias in aliases if alias in self._dumped), name)
            if module is not None and self._counts[self._call.path, first] < count:
                raise OperatorError(f"golden's code does not call {name} as often as mine did")

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
        outputs = {key: self._mine(self._opened(ref)) for key, ref in call.outputs.items()}
        bare = call.bare or is_of_torch(module) or self._copy.bare.get(call.module, False)
        if bare and tuple(outputs) == (BARE,):
            return outputs[BARE]
        if call not in self._results:
            inputs = {key: self._copy.cast(self._opened(ref)) for key, ref in call.inputs.items()}
            self._stack.append(call)
            args, kwargs = self._templates[call].filled(inputs, self._copy.lowered, module)
            result = forward(*args, **kwargs)
            self._stack.pop()
            self._copy.bare[call.module] = isinstance(result, torch.Tensor)
            self._results[call] = changed(result, _emptied(call), _as_it_is)
        return with_results(
            changed(self._results[call], lambda _, one: self._copy.lowered(one), _as_it_is), outputs
        )

    def _note(self, call: ModuleCall, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = in_arguments(args, kwargs)
        tensors = arguments.tensors
        if arguments.caches and not self.knows_past:
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
                _is_input(_named(key, forward), tensor) or id(tensor) in self._mine_tensors
            ):
                self._refusals[call] = f"{_slot_name(key)} of {call.path} was not dumped"
        self._templates[call] = CallTemplate.of_call(args, kwargs, call.inputs.keys())

    def _mine(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that mine gave, remembered as such: handed on as it is, it is still one of mine."""
        copied = self._copy.cast(tensor)
        self._mine_tensors[id(copied)] = copied
        return copied


def _emptied(call: ModuleCall) -> Any:
    """An empty tensor, for a result of which the form counts: the tensors of mine come from the dump."""
    return lambda key, tensor: tensor.new_empty(0) if (key or BARE) in call.outputs else tensor


def _as_it_is(cache: Any, key: Key) -> Any:
    return cache


def _named(key: Key, forward: Any) -> str:
    """The name of the argument that a key is of."""
    if isinstance(key[0], str):
        return key[0]
    return next(islice(inspect.signature(forward).parameters, key[0], None), "")


def _is_input(name: str, tensor: torch.Tensor) -> bool:
    """Whether golden's own tensor may stand for one that mine has not: a mask or positions, made of what the
    run was fed."""
    return not tensor.is_floating_point() or "mask" in name


def _slot_name(key: Key) -> str:
    return str(Slot("input", key))
