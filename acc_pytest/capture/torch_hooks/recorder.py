"""The hooks of one `register_hook`: they follow the modules of a step, and hand tensors to the store."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import _get_current_function_mode as _current_mode

from ...errors import AccError, CaptureError
from .api_mode import ApiMode
from .config import Selection
from .manifest import Manifest, calling_line
from .model import is_of_transformers, model_outline, nearest, weight_digests
from .store import CallFolder, Frame, Hooked, StepRecord, Store, versions
from .trace import Trace, TracedStep, Tracer
from .values import Contents, Key, Memory, in_arguments, in_cache, in_result

# A call of the root is a step: when it begins and ends, whatever ends it, and what is written then.
#
# Each thread has its own step and stack of running modules; modules that run in a thread in which the root
# was not called (replicas of DataParallel, a side thread) are not recorded.


class _Running(threading.local):
    frame: FrameType | None = None
    error: BaseException | None = None
    step: StepRecord | None = None
    mode: ApiMode | None = None
    mode_entered = False
    eager: Any = None


def _described(what: str, describe: Callable[[], Any]) -> Any:
    try:
        return describe()
    except Exception as error:  # noqa: BLE001 - must not end the user's run
        warnings.warn(f"{what} are not described: {type(error).__name__}: {error}", stacklevel=5)
        return None


class ModuleRecorder:
    """The state behind a handle: counts the calls of the root, and begins and ends the steps that are dumped.

    `before` and `after` are the hooks, and never raise for what a model computes.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        selection: Selection,
        module_names: frozenset[str],
        *,
        compiled: bool,
    ) -> None:
        self.store = store
        self.manifest = manifest
        self.selection = selection
        self.token = 0
        self.dumped: set[int] = set()
        self._described = False
        self._module_names = module_names
        self._compiled = compiled
        self._lock = threading.Lock()
        self._running = _Running()
        self._pending: AccError | None = None
        self._tracer = self._new_tracer()

    @property
    def step(self) -> StepRecord | None:
        """The step that this thread is in, if that is dumped."""
        running = self._running
        if running.step is not None and running.frame is not None and not _is_running(running.frame):
            self._abandon()  # an interrupt from the keyboard, which no hook sees, ended the call
        return running.step

    def start(self, store: Store, manifest: Manifest) -> None:
        """Begin a new dump, in which nothing is written yet."""
        self.store, self.manifest = store, manifest
        self.dumped = set()
        self._described = False
        self._tracer = self._new_tracer()

    def _new_tracer(self) -> Tracer | None:
        """The tracer of the code of a model whose class an outline cannot name."""
        root = self.manifest.root
        return Tracer(root) if self.selection.traces and not is_of_transformers(root.module) else None

    def begin(self, frame: FrameType) -> bool:
        """The root is called in `frame`: the next step begins, unless the root is running already and
        calls itself. Returns whether this is its outermost call.
        """
        running = self._running
        if running.frame is not None:
            if _is_running(running.frame):
                return False
            self._abandon()
        running.frame, running.error = frame, sys.exc_info()[1]
        # Whether the model is not run but looked at by a tracer, which would record what the hooks do.
        compiling = getattr(torch.compiler, "is_compiling", None)
        if not (torch._C._get_tracing_state() is not None or bool(compiling and compiling())):
            self._begin_step()
        return True

    def _begin_step(self) -> None:
        running = self._running
        if self._compiled and running.eager is None:
            # Fused graphs have no modules to look at, and would be compiled anew around every hook.
            running.eager = torch.compiler.set_stance("force_eager")
            running.eager.__enter__()
        with self._lock:
            token, self.token = self.token, self.token + 1
            is_chosen = token in self.store.config.tokens
            again = token in self.dumped
            if is_chosen and not again:
                self.dumped.add(token)
        if not is_chosen:
            return
        if again:
            warnings.warn(f"step {token} was dumped before and is not dumped again", stacklevel=4)
            return
        directory = str(self.store.home / str(token))
        running.step = StepRecord(token, directory, **self._of_the_model())
        if self._tracer is not None and not torch.is_autocast_enabled():
            running.step.traces = TracedStep(self._tracer)
        if self.selection.functions or running.step.traces is not None:
            if running.mode is None:
                running.mode = ApiMode(self)
            if not running.mode_entered:  # an interrupted call leaves it entered
                running.mode.__enter__()
                running.mode_entered = True

    def _of_the_model(self) -> dict[str, Any]:
        """The records of the model as the first step of a dump finds it; empty later."""
        with self._lock:
            if self._described:
                return {}
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return {}
            self._described = True
        root, config = self.manifest.root, self.store.config
        records: dict[str, Any] = {}
        if config.weight_digest:
            records["weights"] = _described("weights", lambda: weight_digests(root, self.store.storages))
        if config.outline:
            records["outline"] = _described(
                "modules", lambda: model_outline(root, traced=self._tracer is not None)
            )
        return records

    def end(self, *_: object) -> None:
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

    def _left(self) -> StepRecord | None:
        """Forget the call that this thread was in, and return its step if that was dumped."""
        running = self._running
        running.frame = running.error = None
        if running.mode_entered:
            current = _current_mode()
            if current is running.mode and current is not None:
                current.__exit__(None, None, None)
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

    def _finish(self, step: StepRecord) -> None:
        problem: AccError | None = None
        report = self.store.report
        try:
            self.store.writer.finish()
        except AccError as error:
            problem = error
        self.store.storages.forget_dead()
        try:
            if step.weights is not None:
                self.manifest.write_weights(*step.weights)
            if step.outline is not None:
                step.outline.with_read(self.manifest.root, step.order).write(self.store.home)
            if step.traces is not None and not step.failed:
                step.traces.write(Path(step.directory))
        except AccError as error:
            problem = problem or error
        if step.entries or step.order:
            report.steps += 1
            try:
                self.store.append_analysis(step.entries)
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

    # ---- hooks -----------------------------------------------------------------------------------

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
            if name not in self.manifest.calls:
                self.manifest.calls[name] = calling_line(sys._getframe())
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
            # The call has returned, or raised; the stack is that of the modules around it. `states` are what
            # the module left in caches.
            around = step.stack[-1].trace if step.stack else None
            for trace in (frame.trace, around):
                if trace is not None and failed:
                    trace.fail()
            if frame.trace is not None:
                frame.trace.end(result, states)
            if around is not None:
                around.returned(frame.entered, result)

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

    def _save_last(self, step: StepRecord) -> None:
        """The root returned: save what is known only now."""
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


def _is_running(frame: FrameType) -> bool:
    """Whether a frame still runs; the variables of one that does not are let go."""
    try:
        frame.clear()
    except RuntimeError:
        return True
    return False


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
    integers = frozenset(
        key
        for key, tensor in inputs.tensors
        if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    )
    step.is_fed = bool(integers)
    return integers if step.stack else integers | _masks(module, inputs)


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
