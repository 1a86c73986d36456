"""Sees every torch function, tensor method and operator that is called while the model runs: those of
`mode="api"`, those that choose, and for traces all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from ...base.older_torch import hidden_operators
from .config import api_name
from .store import Frame, StepRecord, versions
from .trace import storage_of
from .values import Contents, Key, in_arguments, in_result

if TYPE_CHECKING:
    from .recorder import ModuleRecorder
    from .trace import Trace
    from .values import Memory

_QUESTIONS = """
    get size dim ndimension stride numel nelement element_size storage_offset is_contiguous is_floating_point
    is_complex is_same_size data_ptr untyped_storage len bool int index item tolist numpy repr str format hash
    iter contains type get_device is_tensor is_nonzero has_names reduce_ex deepcopy dir array
    requires_grad_ register_hook backward record_stream empty empty_like new_empty empty_strided
"""
_VIEWS = """
    view view_as reshape reshape_as transpose t permute swapaxes swapdims movedim unsqueeze squeeze expand
    expand_as unflatten flatten ravel detach getitem chunk split split_with_sizes tensor_split unbind narrow
    select diagonal real imag alias unfold view_as_real view_as_complex
"""
_UNINTERESTING = frozenset((_QUESTIONS + _VIEWS).split())
"""Functions that compute nothing: they ask, or give memory that is not filled, or another view of a
tensor.
"""


class ApiMode(TorchFunctionMode):
    """Records calls made by the running modules of the thread in which it was entered.

    What a function calls in turn belongs to that function: torch does not pass it to a mode.
    """

    def __init__(self, recorder: ModuleRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._hidden = hidden_operators(self._miss)

    def __enter__(self) -> ApiMode:
        self._hidden.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hidden.__exit__(*error)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        trace = self._trace()
        if trace is None:
            return self._recorded(func, args, kwargs)
        with torch._C.DisableTorchFunction():
            call = trace.function(func, args, kwargs)
        result = self._recorded(func, args, kwargs)
        with torch._C.DisableTorchFunction():
            trace.gave(call, args, kwargs, result)
        return result

    def _trace(self) -> Trace | None:
        """The trace of the module which runs."""
        step = self._recorder.step
        return step.stack[-1].trace if step is not None and step.stack else None

    def _miss(self, operator: object) -> None:
        """An operator runs that belongs to no function which this mode has seen."""
        if (trace := self._trace()) is not None:
            trace.fail(f"torch {torch.__version__} does not show what calls {operator}; from 2.4 on it does")

    def _recorded(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call, which is dumped if it is to be."""
        name = api_name(func)
        step = self._recorder.step if self._recorder.selection.knows(name) else None
        if step is None or (frame := self._frame_of(step, name)) is None:
            return func(*args, **kwargs)
        arguments = in_arguments(args, kwargs)
        if not arguments.tensors:  # arange, zeros, tensor: nothing that could have gone wrong before
            return func(*args, **kwargs)
        before = versions(arguments)
        with torch._C.DisableTorchFunction():
            memory = {
                key: self._recorder.store.storages.memory_of(tensor) for key, tensor in arguments.tensors
            }
            # The arguments as they are now. What cannot be copied here is tried again, and reported, when it
            # is saved.
            copies = Contents(caches=arguments.caches, opaque=[*arguments.opaque])
            for key, tensor in arguments.tensors:
                # A parameter is the same in every step: `dump_weight` saves it once.
                if isinstance(tensor, torch.nn.Parameter):
                    copies.opaque.append((key, "Parameter"))
                    continue
                try:
                    copies.tensors.append((key, tensor.detach().clone()))
                except Exception:  # noqa: BLE001
                    copies.tensors.append((key, tensor))
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            results = in_result(args[0] if name == "setitem_" else result)
            changed = name.endswith("_") or bool(kwargs.get("inplace")) or "out" in kwargs
            changed = changed or before != versions(arguments) or _differ(copies, arguments)
            if self._tells(frame, name, results) and (changed or not _are_views(results, arguments)):
                self._record(step, frame, name, copies, memory, results)
        return result

    def _tells(self, frame: Frame, name: str, results: Contents) -> bool:
        """Whether results are to be dumped. Of `max` that only gives a value nothing was chosen."""
        chosen = name != "max" or len(results.tensors) > 1
        return bool(results.tensors) and (chosen or self._recorder.selection.api(frame.name, name))

    def _frame_of(self, step: StepRecord, name: str) -> Frame | None:
        """The module that runs, if what this function computes in it is to be dumped."""
        if not step.stack or not name or name in _UNINTERESTING or _is_transforming():
            return None
        frame = step.stack[-1]
        dumped = frame.node is not None
        return frame if self._recorder.selection.function(frame.name, name, owner_is_dumped=dumped) else None

    def _record(
        self,
        step: StepRecord,
        frame: Frame,
        name: str,
        inputs: Contents,
        memory: Mapping[Key, Memory],
        results: Contents,
    ) -> None:
        """Save a call made by the module of `frame`; `memory` says what the inputs were copied from."""
        recorder = self._recorder
        tensor_part = recorder.store.config.tensor_part
        node = recorder.node(step, f"{frame.name}.{name}", frame.hooked.kind, function=True)
        if tensor_part != 1:
            recorder.save(step, node, "input", inputs, copied_from=memory)
        if tensor_part != 0:
            recorder.save(step, node, "output", results)
        recorder.store.statistics(step.directory, node)
        step.started.setdefault(node.folder)
        step.order.setdefault(node.folder, name)


def _is_transforming() -> bool:
    """Whether `torch.vmap` or another transform runs, in which tensors have no values of their own."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _differ(copies: Contents, contents: Contents) -> bool:
    """Whether an argument without a version has changed. Asked of tensors of inference mode only."""
    now = dict(contents.tensors)
    return any(now[key].is_inference() and not torch.equal(copy, now[key]) for key, copy in copies.tensors)


def _are_views(results: Contents, arguments: Contents) -> bool:
    """Whether the results only show the memory of arguments (`contiguous`, `to`, `dropout` of a trained
    model).
    """
    memories = {storage_of(tensor) for _, tensor in arguments.tensors} - {0}
    return bool(memories) and all(storage_of(tensor) in memories for _, tensor in results.tensors)
