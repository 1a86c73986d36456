"""What the hooks of one `register_hook` do: count calls of the model, follow the modules, hand tensors to the
store.

A call of the root is a step. Each thread has its own step and stack of running modules; modules that run in a
thread in which the root was not called (replicas of DataParallel, a side thread) are not recorded.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import _get_current_function_mode as _current_mode

from ...errors import AccError, CaptureError
from .api_mode import ApiMode
from .manifest import Manifest
from .memory import Memory
from .names import nearest
from .select import Selection
from .step import Frame, Hooked, Step, versions
from .store import Node, Store
from .values import Found, Key, in_arguments, in_cache, in_result
from .weights import weight_digests


class _Running(threading.local):
    frame: FrameType | None = None
    error: BaseException | None = None
    step: Step | None = None
    mode: ApiMode | None = None
    mode_entered = False
    eager: Any = None


class Recorder:
    """The state behind a handle. `before` and `after` are the hooks, and never raise for what a model
    computes.
    """

    def __init__(
        self, store: Store, manifest: Manifest, selection: Selection, known: frozenset[str], *, compiled: bool
    ) -> None:
        self.store = store
        self.manifest = manifest
        self.selection = selection
        self.token = 0
        self.written: set[int] = set()
        self._digested = False
        self._known = known
        self._compiled = compiled
        self._lock = threading.Lock()
        self._running = _Running()
        self._pending: AccError | None = None

    @property
    def step(self) -> Step | None:
        """The step that this thread is in, if that is dumped."""
        running = self._running
        if running.step is not None and running.frame is not None and not _is_running(running.frame):
            self._abandon()  # an interrupt from the keyboard, which no hook sees, ended the call
        return running.step

    def start(self, store: Store, manifest: Manifest) -> None:
        """Begin a new dump, in which nothing is written yet."""
        self.store, self.manifest = store, manifest
        self.written = set()
        self._digested = False

    # ---- the root: a step begins and ends --------------------------------------------------------

    def begin(self, frame: FrameType) -> None:
        """The root is called in `frame`: the next step begins, unless the root is running already and
        calls itself.
        """
        running = self._running
        if running.frame is not None:
            if _is_running(running.frame):
                return
            self._abandon()
        running.frame, running.error = frame, sys.exc_info()[1]
        if _traced():
            return
        if self._compiled and running.eager is None:
            # Fused graphs have no modules to look at, and would be compiled anew around every hook.
            running.eager = torch.compiler.set_stance("force_eager")
            running.eager.__enter__()
        with self._lock:
            token, self.token = self.token, self.token + 1
            wanted = token in self.store.config.tokens
            again = token in self.written
            if wanted and not again:
                self.written.add(token)
        if not wanted:
            return
        if again:
            warnings.warn(f"step {token} was dumped before and is not dumped again", stacklevel=3)
            return
        running.step = Step(token, str(self.store.home / str(token)), weights=self._weights())
        if self.selection.apis:
            if running.mode is None:
                running.mode = ApiMode(self)
            if not running.mode_entered:  # an interrupted call leaves it entered
                running.mode.__enter__()  # type: ignore[no-untyped-call]
                running.mode_entered = True

    def _weights(self) -> dict[str, Any] | None:
        """What is said of the weights as the first step of a dump finds them; nothing later."""
        with self._lock:
            if self._digested or not self.store.config.weight_digest:
                return None
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return None
            self._digested = True
        return weight_digests(self.manifest.root, self.store.storages)

    def end(self) -> None:
        """The root returned or raised: write what is left of the step and wait until all of it is on the
        disk.

        Raises `CaptureError` where something could not be written; after a call that raised itself, later.
        """
        running = self._running
        # torch calls this hook in the frame in which it called `begin`, or after an error in the one around.
        if running.frame is None or sys._getframe(2) not in (running.frame, running.frame.f_back):
            return
        error = sys.exc_info()[1]
        failed = error is not None and error is not running.error
        step = self._left()
        if step is None:
            return
        step.failed = failed
        try:
            if not failed:
                self._save_last(step)
            self._finish(step)
        except AccError as error:
            problem = CaptureError(f"step {step.token} is incomplete: {error}")
            if failed:
                self._pending = self._pending or problem
            else:
                raise problem from error

    def _left(self) -> Step | None:
        """Forget the call that this thread was in, and return its step if that was dumped."""
        running = self._running
        running.frame = running.error = None
        if running.mode_entered:
            current = _current_mode()  # type: ignore[no-untyped-call]
            if current is running.mode and current is not None:
                current.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                running.mode_entered = False
        if running.eager is not None:
            running.eager.__exit__(None, None, None)
            running.eager = None
        step, running.step = running.step, None
        return step

    def _abandon(self) -> None:
        """End a step that will not end by itself. What goes wrong is raised by `close`."""
        step = self._left()
        if step is None:
            return
        step.failed = True
        try:
            self._finish(step)
        except AccError as error:
            self._pending = self._pending or CaptureError(f"step {step.token} is incomplete: {error}")

    def _finish(self, step: Step) -> None:
        problem: AccError | None = None
        report = self.store.report
        try:
            self.store.writer.finish()
        except AccError as error:
            problem = error
        self.store.storages.forget_dead()
        if step.entries or step.order:
            report.steps += 1
            try:
                self.store.append_analysis(step.entries)
                if step.weights is not None:
                    self.manifest.write_weights(step.weights)
                complete = not step.failed and problem is None
                self.manifest.write_step(step, report.skipped, complete=complete)
            except AccError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def stop(self) -> None:
        """The hooks are taken off: a step that this thread is in will not end by itself."""
        self._abandon()
        self.close()

    def close(self) -> None:
        """Write what is left. Raises what went wrong in a call that raised itself, and was kept back."""
        try:
            self.store.writer.finish()
        except AccError as error:
            self._pending = self._pending or CaptureError(f"the dump is incomplete: {error}")
        problem, self._pending = self._pending, None
        if problem is not None:
            raise problem

    # ---- modules ---------------------------------------------------------------------------------

    def before(
        self, hooked: Hooked, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A module starts: its inputs are copied now, for it may change them in place."""
        step = self.step
        if step is None:
            return
        with torch._C.DisableTorchFunction():
            active = step.stack[-1].name if step.stack else ""
            name = hooked.names[0]
            if len(hooked.names) > 1:
                name = nearest(hooked.names, active, step.from_here[id(hooked), active])
                step.from_here[id(hooked), active] += 1
            selected = self.selection.module(name, module) and not self.store.config.dump_last_logits
            frame = Frame(hooked, name, None, [], sys.exc_info()[1])
            if selected:
                frame.node = self.node(step, name, hooked.kind)
                found = in_arguments(args, kwargs)
                frame.caches = found.caches
                if self.store.config.tensor_part != 1:
                    self.save(step, frame.node, "input", found)
            step.started.setdefault(frame.node.folder if frame.node else name)
            step.stack.append(frame)

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
            self._returned(step, frame, module, None if failed else result)

    def _returned(self, step: Step, frame: Frame, module: nn.Module, result: Any) -> None:
        config = self.store.config
        node = frame.node
        folder = node.folder if node else frame.name
        step.order.setdefault(folder, frame.hooked.kind)
        if config.dump_last_logits:
            found = in_result(result)
            if found.tensors and not frame.hooked.is_root:
                step.last = frame.name, frame.hooked.kind, found, versions(found)
            return
        if node is None:
            return
        if result is not None and config.tensor_part != 0:
            found = in_result(result)
            self.save(step, node, "output", found)
            self._save_caches(step, frame, module, found)
        self.store.statistics(step.directory, node)

    def _save_caches(self, step: Step, frame: Frame, module: nn.Module, found: Found) -> None:
        """A cache goes through every module. Each layer's part is saved once, by the module it belongs to,
        after it ran; what no module saved is saved by the root."""
        assert frame.node is not None
        own = getattr(module, "layer_idx", None)
        for key, cache in (*frame.caches, *found.caches):
            step.caches.setdefault(id(cache), (key, cache))
            if not frame.hooked.is_root and not isinstance(own, int):
                continue
            given = step.caches[id(cache)][0]
            name = (
                given if given and isinstance(given[0], str) else ("cache",)
            )  # a number would be an output's
            tensors: list[tuple[Key, torch.Tensor]] = []
            for layer, part, tensor in in_cache(cache):
                if (id(cache), layer, part) in step.cached or not (frame.hooked.is_root or layer == own):
                    continue
                step.cached.add((id(cache), layer, part))
                tensors.append(((*name, layer, *part) if frame.hooked.is_root else (*name, *part), tensor))
            step.entries += self.store.save(step.directory, frame.node, "output", tensors)

    def _save_last(self, step: Step) -> None:
        if step.last is None:
            return
        name, kind, found, before = step.last
        with torch._C.DisableTorchFunction():
            node = Node(name, kind, 0)
            self.save(step, node, "output", found)
            if before != versions(found):
                for entry in step.entries:
                    entry["note"] = "changed in place after the module returned"
            self.store.statistics(step.directory, node)
        step.last = None

    # ---- for modules and functions ---------------------------------------------------------------

    def node(self, step: Step, name: str, kind: str, *, function: bool = False) -> Node:
        """The next call of a module or function in this step, with a folder of its own."""
        key = f"{name}()" if function else name  # a module and a function may have one name
        call = step.calls[key]
        step.calls[key] += 1
        folder = name
        if call:
            folder = f"{name}.{call}" if function else f"{name}.call{call}"
        while (function or call) and folder in self._known:
            folder += "_"
        return Node(folder, kind, call)

    def save(
        self,
        step: Step,
        node: Node,
        side: str,
        found: Found,
        *,
        copied_from: Mapping[Key, Memory] | None = None,
    ) -> None:
        """Save what was found (`copied_from`: copies that nobody else has, of tensors that showed this
        memory), and list what cannot be saved.
        """
        step.entries += self.store.save(step.directory, node, side, found.tensors, copied_from=copied_from)
        for key, kind in found.others:
            entry = {"node": node.folder, "call": node.call, "side": side, "key": list(key)}
            step.entries.append(entry | {"file": "", "status": "not looked into", "note": f"a {kind}"})


def _is_running(frame: FrameType) -> bool:
    """Whether a frame still runs; the variables of one that does not are let go."""
    try:
        frame.clear()
    except RuntimeError:
        return True
    return False


def _traced() -> bool:
    """Whether the model is not run but looked at by a tracer, which would record what the hooks do."""
    compiling = getattr(torch.compiler, "is_compiling", None)  # torch 2.3
    return torch._C._get_tracing_state() is not None or bool(compiling and compiling())
