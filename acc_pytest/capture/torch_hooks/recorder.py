"""What the hooks of one `register_hook` do: follow the modules of a step, and hand tensors to the store."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .api_mode import ApiMode
from .caches import own_parts
from .fed import fed, may_be_fed
from .memory import Memory
from .names import nearest
from .step import Frame, Hooked, StepRecord, versions
from .steps import Steps
from .store import CallFolder
from .traced_frames import enter_traced, leave_traced
from .values import Contents, Key, in_arguments, in_result


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
                name = nearest(hooked.names, active, step.from_here[id(hooked), active])
                step.from_here[id(hooked), active] += 1
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
        always = fed(step, module, inputs) if feeds else frozenset()
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
            parts = self._returned(step, frame, module, None if failed else result)
            leave_traced(step, frame, result, parts, failed=failed)

    def _returned(
        self, step: StepRecord, frame: Frame, module: nn.Module, result: Any
    ) -> list[tuple[Key, torch.Tensor]]:
        """Save what a module returned, and what it left in caches, which is the result."""
        parts: list[tuple[Key, torch.Tensor]] = []
        config = self.store.config
        node = frame.node
        folder = node.folder if node else frame.name
        step.order.setdefault(folder, frame.hooked.kind)
        if config.dump_last_logits:
            outputs = in_result(result)
            if outputs.tensors and not frame.hooked.is_root:
                step.last = frame.name, frame.hooked.kind, outputs, versions(outputs)
            return parts
        if node is None:
            return parts
        if result is not None and config.tensor_part != 0:
            outputs = in_result(result)
            self.save(step, node, "output", outputs)
            parts = own_parts(step, frame, module, outputs)
            step.entries += self.store.save(step.directory, node, "output", parts)
        self.store.statistics(step.directory, node)
        return parts

    def _api_mode(self) -> ApiMode:
        return ApiMode(self)

    def _save_last(self, step: StepRecord) -> None:
        if step.last is None:
            return
        name, kind, outputs, before = step.last
        with torch._C.DisableTorchFunction():
            node, fed_entries = CallFolder(name, kind, 0), len(step.entries)
            self.save(step, node, "output", outputs)
            if before != versions(outputs):
                for entry in step.entries[fed_entries:]:
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
        while (function or call) and folder in self._known:
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
        for key, kind in contents.others:
            entry = {"node": node.folder, "call": node.call, "side": side, "key": list(key)}
            step.entries.append(entry | {"file": "", "status": "not looked into", "note": f"a {kind}"})
