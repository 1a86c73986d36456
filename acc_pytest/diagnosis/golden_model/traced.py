"""The golden model as its dump traced it: each module runs what its code called (`dumps.torch_traces`).

It computes between the modules inside, which are called as any module is. Where a number that golden's code
read is another one now, or a shape, its code would have gone another way, and nothing is computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...capture.torch_hooks.names import ROOT
from ...capture.torch_hooks.values import Key, in_arguments
from ...dumps.torch_outline import Outline
from ...dumps.torch_traces import MODULE, traced_modules
from ...errors import OperatorError, RefusedCall
from ...guard import calling
from .traced_dtypes import CallDtypes, TraceRun
from .traced_functions import call_function, read_value

_DEEPEST = 64
"""Parts of the name of a module."""


class TracedModule(nn.Module):
    """A module that runs a trace. Its own names stay clear of those that golden's modules have."""

    def __init__(self, name: str, run: TraceRun) -> None:
        super().__init__()
        self.traced_name = name
        self.traced_run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of golden's code. Raises `OperatorError` where no trace has such arguments."""
        tensors = dict(in_arguments(args, kwargs).tensors)
        with (
            calling(f"running what golden's dump traced of {self.traced_name:.80}"),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # of torch, on how golden's code calls it
            return _RunOfTrace(self, self._trace(tensors), tensors).result()

    def _trace(self, tensors: Mapping[Key, torch.Tensor]) -> Mapping[str, Any]:
        """The trace of golden's call with tensors of these shapes, or of others if golden itself had several
        shapes do the same."""
        traces, name = self.traced_run.traces, self.traced_name
        candidates = {number: traces.traces[number] for number in sorted(traces.modules.get(name, ()))}
        if not candidates:
            raise OperatorError(f"golden's dump has no trace of {name} in step {self.traced_run.step}")
        for trace in candidates.values():
            if "void" in trace:
                raise OperatorError(f"the code of {name} cannot be run again: {trace['void']}")
        shapes = {
            key: list(tensor.shape)
            for key, tensor in tensors.items()
            if not _is_extra(key, candidates.values())
        }
        fitting = [number for number, trace in candidates.items() if _input_shapes(trace) == shapes]
        if not fitting and self._is_one_code(candidates, shapes):
            fitting = [next(iter(candidates))]
        if len(fitting) != 1:
            calls = "several calls of golden" if fitting else "no call of golden"
            raise OperatorError(f"{calls} had tensors of these shapes for {name}")
        return {**candidates[fitting[0]], "general": traces.is_general(fitting[0])}

    def _is_one_code(
        self, candidates: Mapping[int, Mapping[str, Any]], shapes: Mapping[Key, Sequence[int]]
    ) -> bool:
        """Whether all of golden's calls did the same, whatever the shapes, and these are no other ones."""
        traces, first = self.traced_run.traces, next(iter(candidates))
        alike = len({traces.forms[number] for number in candidates}) == 1
        return alike and traces.is_general(first) and _are_alike(_input_shapes(candidates[first]), shapes)

    def traced_takes(self, keys: Iterable[Key]) -> bool:
        """Whether golden's calls were given tensors by these keys, but for masks."""
        traces = self.traced_run.traces
        candidates = [traces.traces[number] for number in traces.modules.get(self.traced_name, ())]
        with calling(f"reading what golden's dump traced of {self.traced_name:.80}"):
            expected = {key for key in keys if not _is_extra(key, candidates)}
            return all(_input_shapes(trace).keys() == expected for trace in candidates)

    def traced_weight(self, name: str) -> torch.Tensor:
        """A parameter or buffer by its name below this module. Raises `OperatorError` if it has no values."""
        path, _, last = name.rpartition(".")
        module = self.traced_run.modules.get(".".join(filter(None, (self.traced_name, path))))
        weight = None if module is None else module._parameters.get(last, module._buffers.get(last))
        if weight is None or weight.is_meta:
            raise OperatorError(f"golden's dump has no values of {self.traced_name}.{name}")
        return weight


class _RunOfTrace:
    """One run of a trace."""

    def __init__(
        self, module: TracedModule, trace: Mapping[str, Any], tensors: Mapping[Key, torch.Tensor]
    ) -> None:
        self._module = module
        self._run = module.traced_run
        self._trace = trace
        self._inputs = tensors
        self._results: list[Any] = []

    def result(self) -> Any:
        """Raises `OperatorError` where the code goes another way than golden's."""
        for call in self._trace["calls"]:
            value = self._called(call)
            if "is" in call and _as_json(value) != call["is"]:
                raise OperatorError(f"the code goes another way than golden's: {call['name']} gives {value}")
            for key, shape in call.get("made", ()):
                if list(_entry_at(value, key).shape) != shape and not self._trace["general"]:
                    raise OperatorError(f"{call['name']} gives another shape than in golden, {shape}")
            self._results.append(value)
        for key, expression in self._trace.get("parts", ()):
            tensor = self._read(expression)
            if isinstance(tensor, torch.Tensor):
                self._run.cached[self._module.traced_name, tuple(key)] = tensor
        return self._read(self._trace["result"])

    def _called(self, call: Mapping[str, Any]) -> Any:
        name: str = call["name"]
        values = call["args"]
        first = self._read(values[0]) if values else None
        dtypes = CallDtypes(self._run, name, first)
        args = [first, *(self._read(expression, dtypes) for expression in values[1:])] if values else []
        kwargs = {key: self._read(expression, dtypes) for key, expression in call["kwargs"].items()}
        if name.startswith(MODULE):
            return self._run.modules[f"{self._module.traced_name}.{name.removeprefix(MODULE)}"](
                *args, **kwargs
            )
        cast = dtypes.cast()
        if cast is not None:
            return cast
        args, kwargs = dtypes.agreed(args, kwargs)
        with calling(f"calling {name:.80}"):
            try:
                with self._run.room:
                    return call_function(name, args, kwargs)
            except OperatorError as error:
                raise RefusedCall(f"a trace in golden's dump asks for what is refused: {error}") from error

    def _read(self, expression: Any, dtypes: CallDtypes | None = None) -> Any:
        return read_value(expression, lambda kind, inner: self._value(kind, inner, dtypes))

    def _before(self, key: Key) -> torch.Tensor:
        if self._run.before is None:
            raise OperatorError("what caches held before is not in the dump")
        return self._run.before(self._module.traced_name, key)

    def _value(self, kind: str, inner: Any, dtypes: CallDtypes | None) -> Any:
        if kind in ("dtype", "fixed_dtype"):
            call_dtypes = dtypes or CallDtypes(self._run, "", None)
            return call_dtypes.of(inner, fixed=kind == "fixed_dtype")
        if kind == "given":
            return self._inputs[tuple(inner)]
        if kind == "own":
            return self._module.traced_weight(inner)
        if kind == "kept":
            return self._run.constant(inner)
        if kind == "before":
            return self._before(tuple(inner))
        number, key = inner
        return _entry_at(self._results[number], key)


def _input_shapes(trace: Mapping[str, Any]) -> dict[Key, list[int]]:
    """The shapes of the tensors that golden's call was given."""
    return {tuple(key): shape for key, shape in trace.get("given", ())}


def _is_extra(key: Key, traces: Iterable[Mapping[str, Any]]) -> bool:
    """Whether it is a mask that golden's calls were not given: another attention takes one."""
    return "mask" in str(key[0]) and not any(key in _input_shapes(trace) for trace in traces)


def _are_alike(golden: Mapping[Key, Sequence[int]], mine: Mapping[Key, Sequence[int]]) -> bool:
    """Whether tensors are given at the same places, with as many dimensions."""
    golden_ranks, mine_ranks = ({key: len(shape) for key, shape in side.items()} for side in (golden, mine))
    return golden_ranks == mine_ranks


def _entry_at(value: Any, key: Key) -> Any:
    """The entry at a key of a result."""
    for entry in key:
        value = value[entry]
    return value


def _as_json(value: Any) -> Any:
    """A number, or lists of them, as JSON has it."""
    return [_as_json(element) for element in value] if isinstance(value, (list, tuple)) else value


def traced_model(outline: Outline, steps: Iterable[str]) -> nn.Module:
    """The modules of golden that are traced in one of these steps, those that they call, and linear layers;
    an empty module where nothing is traced."""
    run = TraceRun(outline.home)
    names = set(traced_modules(outline.home, steps))
    if not names:
        return nn.Module()
    names |= {name.rpartition(".")[0] for name in outline.weights} | set(outline.projections)
    if any(name.count(".") > _DEEPEST for name in names):
        raise OperatorError(f"golden's dump has modules that lie in more than {_DEEPEST} others")
    for name in sorted(around for traced in names for around in _all_around(traced)):
        if name in run.modules:
            continue
        module = _module_of(name, outline, run)
        run.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            run.modules[parent].add_module(last, module)
    for name, ref in outline.weights.items():
        path, _, last = name.rpartition(".")
        _assign(run.modules[path], last, ref.open().clone())
    return run.modules[ROOT]


def _all_around(name: str) -> list[str]:
    """The module and those around it."""
    segments = name.split(".")
    return [".".join(segments[:count]) for count in range(1, len(segments) + 1)]


def _module_of(name: str, outline: Outline, run: TraceRun) -> nn.Module:
    projection, outputs = outline.projections.get(name), outline.outputs.get(name)
    if projection is None or outputs is None:
        return TracedModule(name, run)
    inputs = projection.header().shape[-1]
    return nn.Linear(inputs, outputs, bias=f"{name}.bias" in outline.weights, device="meta")


def _assign(module: nn.Module, name: str, values: torch.Tensor) -> None:
    if isinstance(module, nn.Linear) and module._parameters.get(name) is None:
        return
    module._parameters.pop(name, None)
    if values.is_floating_point():
        module.register_parameter(name, nn.Parameter(values, requires_grad=False))
    else:
        module.register_buffer(name, values)
