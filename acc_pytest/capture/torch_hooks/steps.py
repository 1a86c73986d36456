"""A call of the root is a step: when it begins and ends, whatever ends it, and what is written then.

Each thread has its own step and stack of running modules; modules that run in a thread in which the root was
not called (replicas of DataParallel, a side thread) are not recorded.
"""

from __future__ import annotations

import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import _get_current_function_mode as _current_mode

from ...errors import AccError, CaptureError
from .api_mode import ApiMode
from .manifest import Manifest
from .outline import is_of_transformers, model_outline
from .select import Selection
from .step import StepRecord
from .store import Store
from .tracing import TracedStep, Tracer
from .weights import weight_digests


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


class Steps(ABC):
    """Counts the calls of the root, and begins and ends the steps that are dumped."""

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

    @abstractmethod
    def _api_mode(self) -> ApiMode:
        """The mode that sees the functions that are called in a step."""

    @abstractmethod
    def _save_last(self, step: StepRecord) -> None:
        """The root returned: save what is known only now."""

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
        if not _traced():
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
                running.mode = self._api_mode()
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
                self.manifest.write_weights(step.weights)
            if step.outline is not None:
                self.manifest.write_outline(step.outline.with_read(self.manifest.root, step.order))
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
