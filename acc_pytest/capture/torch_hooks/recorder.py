"""The hooks of one `register_hook`: they follow the modules of a step, and hand tensors to the store."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .api_mode import ApiMode
from .memory import Memory
from .names import nearest
from .step import Frame, Hooked, StepRecord, versions
from .steps import Steps
from .store import CallFolder
from .trace import Trace
from .values import Contents, Key, in_arguments, in_cache, in_result


class ModuleRecorder(Steps):
    """The state behind a handle. `before` and `after` are the hooks, and never raise for what a model
    computes.
    """

    def before(
        self, hooked: Hooked, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A module starts: its inputs are copied now, because it may change them in place."""
        step = self.step
        if step is None:
            return
        with torch._C.DisableTorchFunction():
            active = step.stack[-1].name if step.stack else ""
            name = hooked.names[0]
            if len(hooked.names) > 1:
                name = nearest(hooked.names, active, step.calls_inside[id(hooked), active])
                step.calls_inside[id(hooked), active] += 1
            frame = Frame(hooked, name, None, [], sys.exc_info()[1])
            folder = self._inputs(step, frame, module, args, kwargs)
            enter_traced(step, frame, module, args, kwargs)
            step.started.setdefault(folder)
            step.stack.append(frame)

    def _inputs(
        self, step: StepRecord, frame: Frame, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        """Save what a module is called with: all of it where it is selected, what the run was fed anyway.
        Returns the node's folder.
        """
        config = self.store.config
        selected = self.selection.module(frame.name, module) and not config.dump_last_logits
        feeds = may_be_fed(step, frame.hooked, module)
        if not (selected or feeds):
            return frame.name
        inputs = in_arguments(args, kwargs)
        always = fed_inputs(step, module, inputs) if feeds else frozenset()
        if not (selected or always):
            return frame.name
        node = self.node(step, frame.name, frame.hooked.kind)
        node.always = always
        if selected:
            frame.node, frame.caches = node, inputs.caches
        if not selected or config.tensor_part == 1:
            inputs = Contents([(key, tensor) for key, tensor in inputs.tensors if key in always])
        self.save(step, node, "input", inputs)
        return node.folder

    def after(self, hooked: Hooked, module: nn.Module, result: Any) -> None:
        """A module returned (`result`) or raised."""
        error = sys.exc_info()[1]
        step = self._running.step
        if step is None:
            return
        while step.stack and step.stack[-1].hooked is not hooked:
            if not any(frame.hooked is hooked for frame in step.stack):
                return  # it started before the step did
            step.stack.pop()
        if not step.stack:
            return
        frame = step.stack.pop()
        failed = error is not None and error is not frame.error
        with torch._C.DisableTorchFunction():
            states = self._returned(step, frame, module, None if failed else result)
            leave_traced(step, frame, result, states, failed=failed)

    def _returned(
        self, step: StepRecord, frame: Frame, module: nn.Module, result: Any
    ) -> list[tuple[Key, torch.Tensor]]:
        """Save what a module returned, and what it left in caches, which is the result."""
        states: list[tuple[Key, torch.Tensor]] = []
        config = self.store.config
        node = frame.node
        folder = node.folder if node else frame.name
        step.order.setdefault(folder, frame.hooked.kind)
        if config.dump_last_logits:
            outputs = in_result(result)
            if outputs.tensors and not frame.hooked.is_root:
                step.last = frame.name, frame.hooked.kind, outputs, versions(outputs)
            return states
        if node is None:
            return states
        if result is not None and config.tensor_part != 0:
            outputs = in_result(result)
            self.save(step, node, "output", outputs)
            states = cache_states(step, frame, module, outputs)
            step.entries += self.store.save(step.directory, node, "output", states)
        self.store.statistics(step.directory, node)
        return states

    def _api_mode(self) -> ApiMode:
        return ApiMode(self)

    def _save_last(self, step: StepRecord) -> None:
        if step.last is None:
            return
        name, kind, outputs, before = step.last
        with torch._C.DisableTorchFunction():
            node, first_entry = CallFolder(name, kind, 0), len(step.entries)
            self.save(step, node, "output", outputs)
            if before != versions(outputs):
                for entry in step.entries[first_entry:]:
                    entry["note"] = "changed in place after the module returned"
            self.store.statistics(step.directory, node)
        step.last = None

    # ---- for modules and functions ---------------------------------------------------------------

    def node(self, step: StepRecord, name: str, kind: str, *, function: bool = False) -> CallFolder:
        """The next call of a module or function in this step, with a folder of its own."""
        key = f"{name}()" if function else name  # a module and a function may have one name
        call = step.calls[key]
        step.calls[key] += 1
        folder = name
        if call:
            folder = f"{name}.{call}" if function else f"{name}.call{call}"
        while (function or call) and folder in self._module_names:
            folder += "_"
        return CallFolder(folder, kind, call)

    def save(
        self,
        step: StepRecord,
        node: CallFolder,
        side: str,
        contents: Contents,
        *,
        copied_from: Mapping[Key, Memory] | None = None,
    ) -> None:
        """Save what was found (`copied_from`: copies that nobody else has, of tensors that showed this
        memory), and list what cannot be saved.
        """
        step.entries += self.store.save(step.directory, node, side, contents.tensors, copied_from=copied_from)
        for key, kind in contents.opaque:
            entry = {"node": node.folder, "call": node.call, "side": side, "key": list(key)}
            step.entries.append(entry | {"file": "", "status": "not looked into", "note": f"a {kind}"})


def cache_states(
    step: StepRecord, frame: Frame, module: nn.Module, result: Contents
) -> list[tuple[Key, torch.Tensor]]:
    """The tensors of caches that a module which returned `result` saves, as outputs of its own."""
    layer_idx = getattr(module, "layer_idx", None)
    tensors: list[tuple[Key, torch.Tensor]] = []
    for key, cache in (*frame.caches, *result.caches):
        step.caches.setdefault(id(cache), (key, cache))
        if not frame.hooked.is_root and not isinstance(layer_idx, int):
            continue
        cache_key = step.caches[id(cache)][0]
        name = (
            cache_key if cache_key and isinstance(cache_key[0], str) else ("cache",)
        )  # a number would be an output's
        for layer, state_key, tensor in in_cache(cache):
            if (id(cache), layer, state_key) in step.cached or not (
                frame.hooked.is_root or layer == layer_idx
            ):
                continue
            step.cached.add((id(cache), layer, state_key))
            tensors.append(
                ((*name, layer, *state_key) if frame.hooked.is_root else (*name, *state_key), tensor)
            )
    return tensors


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
    states: Sequence[tuple[Key, torch.Tensor]],
    *,
    failed: bool,
) -> None:
    """The call has returned, or raised; the stack is that of the modules around it. `states` are what the
    module left in caches."""
    around = step.stack[-1].trace if step.stack else None
    for trace in (frame.trace, around):
        if trace is not None and failed:
            trace.fail()
    if frame.trace is not None:
        frame.trace.end(result, states)
    if around is not None:
        around.returned(frame.entered, result)


_LARGEST_MASK = 1_000_000
"""Elements of a mask of floats up to which it is fed; one of integers or truth values always is."""


def may_be_fed(step: StepRecord, hooked: Hooked, module: nn.Module) -> bool:
    """Whether a call may show what the run was fed: that of the root, or of an embedding if that did not."""
    if not step.stack:
        return hooked.is_root
    return not step.is_fed and (isinstance(module, nn.Embedding) or "Embedding" in type(module).__name__)


def fed_inputs(step: StepRecord, module: nn.Module, inputs: Contents) -> frozenset[Key]:
    """The inputs of such a call that the run was fed.

    Of the root these are tensors of integers and truth values, and masks of floats. If it has none of
    integers (it is called with embeddings, or with an object that nobody looks into) they are those of the
    first embedding that has.
    """
    integers = _integers(inputs)
    step.is_fed = bool(integers)
    return integers if step.stack else integers | _masks(module, inputs)


def _integers(inputs: Contents) -> frozenset[Key]:
    return frozenset(
        key
        for key, tensor in inputs.tensors
        if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    )


def _masks(module: nn.Module, inputs: Contents) -> frozenset[Key]:
    """Tensors of floats that are called a mask by the caller or by `forward`."""
    floats = [
        (key, tensor)
        for key, tensor in inputs.tensors
        if tensor.dtype.is_floating_point and tensor.numel() <= _LARGEST_MASK
    ]
    names = _arguments(module) if any(isinstance(key[0], int) for key, _ in floats) else []
    return frozenset(key for key, _ in floats if any("mask" in name for name in _named(key, names)))


def _arguments(module: nn.Module) -> list[str]:
    try:
        parameters: Any = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # what is called has no signature in Python
        return []
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def _named(key: Key, arguments: list[str]) -> list[str]:
    first = key[0]
    names = [text for text in key if isinstance(text, str)]
    if isinstance(first, int) and first < len(arguments):
        names.append(arguments[first])
    return names
