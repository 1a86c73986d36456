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
from ...dumps.torch_fields import is_module
from ...dumps.torch_outline import Outline
from ...dumps.torch_traces import MODULE, traced_modules
from ...errors import OperatorError
from ...guard import calling
from .traced_dtypes import CallDtypes, TraceRun
from .traced_functions import call_function, read_value

_LARGEST = 1 << 40
"""Elements of a weight that only has a shape."""


class TracedModule(nn.Module):
    """A module that runs a trace. Its own names stay clear of those that golden's modules have."""

    def __init__(self, name: str, run: TraceRun) -> None:
        super().__init__()
        self.traced_name = name
        self.traced_run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What golden's code makes of these arguments. Raises `OperatorError` where no trace is of such."""
        given = dict(in_arguments(args, kwargs).tensors)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, on how golden's code calls it
            return _RunOfTrace(self, self._trace(given), given).result()

    def _trace(self, given: Mapping[Key, torch.Tensor]) -> Mapping[str, Any]:
        """The trace of golden's call with tensors of these shapes, or of others if golden itself had several
        shapes do the same."""
        traces, name = self.traced_run.traces, self.traced_name
        known = {number: traces.traces[number] for number in sorted(traces.modules.get(name, ()))}
        if not known:
            raise OperatorError(f"golden's dump has no trace of {name} in step {self.traced_run.step}")
        for trace in known.values():
            if "void" in trace:
                raise OperatorError(f"the code of {name} cannot be run again: {trace['void']}")
        shapes = {
            key: list(tensor.shape) for key, tensor in given.items() if not _is_extra(key, known.values())
        }
        fitting = [number for number, trace in known.items() if _given(trace) == shapes]
        if not fitting and self._is_one_code(known, shapes):
            fitting = [next(iter(known))]
        if len(fitting) != 1:
            calls = "several calls of golden" if fitting else "no call of golden"
            raise OperatorError(f"{calls} had tensors of these shapes for {name}")
        return {**known[fitting[0]], "general": traces.is_general(fitting[0])}

    def _is_one_code(
        self, known: Mapping[int, Mapping[str, Any]], shapes: Mapping[Key, Sequence[int]]
    ) -> bool:
        """Whether all of golden's calls did the same, whatever the shapes, and these are no other ones."""
        traces, first = self.traced_run.traces, next(iter(known))
        same = len({traces.forms[number] for number in known}) == 1
        return same and traces.is_general(first) and _are_alike(_given(known[first]), shapes)

    def traced_takes(self, keys: Iterable[Key]) -> bool:
        """Whether golden's calls were given tensors by these keys, but for masks."""
        traces = self.traced_run.traces
        known = [traces.traces[number] for number in traces.modules.get(self.traced_name, ())]
        wanted = {key for key in keys if not _is_extra(key, known)}
        return all(_given(trace).keys() == wanted for trace in known)

    def traced_inside(self, name: str) -> nn.Module:
        """A module by its name below this one. Raises `OperatorError` where there is none."""
        found = self.traced_run.modules.get(f"{self.traced_name}.{name}")
        if found is None:
            raise OperatorError(f"golden's dump has no module {self.traced_name}.{name}")
        return found

    def traced_weight(self, name: str) -> torch.Tensor:
        """A parameter or buffer by its name below this module. Raises `OperatorError` if it has no values."""
        path, _, own = name.rpartition(".")
        module = self.traced_run.modules.get(".".join(part for part in (self.traced_name, path) if part))
        found = None if module is None else module._parameters.get(own, module._buffers.get(own))
        if found is None or found.is_meta:
            raise OperatorError(f"golden's dump has no values of {self.traced_name}.{name}")
        return found


class _RunOfTrace:
    """One run of a trace."""

    def __init__(
        self, module: TracedModule, trace: Mapping[str, Any], given: Mapping[Key, torch.Tensor]
    ) -> None:
        self._module = module
        self._run = module.traced_run
        self._trace = trace
        self._given = given
        self._made: list[Any] = []

    def result(self) -> Any:
        """Raises `OperatorError` where the code goes another way than golden's."""
        for call in self._trace["calls"]:
            made = self._called(call)
            if "is" in call and _written(made) != call["is"]:
                raise OperatorError(f"the code goes another way than golden's: {call['name']} gives {made}")
            for key, shape in call.get("made", ()):
                part = _part(made, key)
                same = isinstance(part, torch.Tensor) and (
                    self._trace["general"] or list(part.shape) == shape
                )
                if not same:
                    raise OperatorError(f"{call['name']} gives another shape than in golden, {shape}")
            self._made.append(made)
        for key, said in self._trace.get("parts", ()):
            part = self._read(said)
            if isinstance(part, torch.Tensor):
                self._run.parts[self._module.traced_name, tuple(key)] = part
        return self._read(self._trace["result"])

    def _called(self, call: Mapping[str, Any]) -> Any:
        name: str = call["name"]
        values = call["args"]
        first = self._read(values[0]) if values else None
        dtypes = CallDtypes(self._run, name, first)
        args = [first, *(self._read(one, dtypes) for one in values[1:])] if values else []
        kwargs = {key: self._read(one, dtypes) for key, one in call["kwargs"].items()}
        if name.startswith(MODULE):
            inside = self._module.traced_inside(name.removeprefix(MODULE))
            with calling(f"calling {name:.80}"):
                return inside(*args, **kwargs)
        cast = dtypes.cast()
        if cast is not None:
            return cast
        args, kwargs = dtypes.agreed(args, kwargs)
        with self._run.room, calling(f"calling {name:.80}"):
            return call_function(name, args, kwargs)

    def _read(self, said: Any, dtypes: CallDtypes | None = None) -> Any:
        return read_value(said, lambda kind, inner: self._value(kind, inner, dtypes))

    def _before(self, key: Key) -> torch.Tensor:
        if self._run.before is None:
            raise OperatorError("what caches held before is not in the dump")
        return self._run.before(self._module.traced_name, key)

    def _value(self, kind: str, inner: Any, dtypes: CallDtypes | None) -> Any:
        if kind in ("dtype", "fixed_dtype"):
            known = dtypes or CallDtypes(self._run, "", None)
            return known.of(inner, fixed=kind == "fixed_dtype")
        if kind == "given":
            return _at(self._given, tuple(inner))
        if kind == "own":
            return self._module.traced_weight(inner)
        if kind == "kept":
            return self._run.kept(inner)
        if kind == "before":
            return self._before(tuple(inner))
        number, key = inner
        return _part(self._made[number], key)


def _given(trace: Mapping[str, Any]) -> dict[Key, list[int]]:
    """The shapes of the tensors that golden's call was given."""
    return {tuple(key): shape for key, shape in trace.get("given", ())}


def _is_extra(key: Key, known: Iterable[Mapping[str, Any]]) -> bool:
    """Whether it is a mask that golden's calls were not given: another attention takes one."""
    return "mask" in str(key[0]) and not any(key in _given(trace) for trace in known)


def _are_alike(given: Mapping[Key, Sequence[int]], other: Mapping[Key, Sequence[int]]) -> bool:
    """Whether tensors are given at the same places, with as many dimensions."""
    one, two = ({key: len(shape) for key, shape in side.items()} for side in (given, other))
    return one == two


def _part(value: Any, key: Key) -> Any:
    """What lies at a key of a result. Raises `OperatorError` where nothing does."""
    for part in key:
        value = _at(value, part)
    return value


def _at(held: Any, place: Any) -> Any:
    """An item of a tuple or a list by its number, or of a dictionary. Raises `OperatorError`."""
    if isinstance(held, (tuple, list)) and isinstance(place, int) and 0 <= place < len(held):
        return held[place]
    if not isinstance(held, Mapping) or place not in held:
        raise OperatorError(f"a trace of golden reads {place} of a value without that")
    return held[place]


def _written(value: Any) -> Any:
    """A number, or lists of them, as JSON has it."""
    return [_written(one) for one in value] if isinstance(value, (list, tuple)) else value


def traced_model(outline: Outline, steps: Iterable[str]) -> nn.Module:
    """The modules of golden that are traced in one of these steps, those that they call, and linear layers;
    an empty module where nothing is traced."""
    run = TraceRun(outline.home)
    names = set(traced_modules(outline.home, steps))
    if not names:
        return nn.Module()
    outlined = {name.rpartition(".")[0] for name in outline.weights} | set(outline.projections)
    names |= set(filter(is_module, outlined))
    for name in sorted(around for one in names for around in _all_around(one)):
        if name not in run.modules:
            run.modules[name] = _made(name, outline, run)
            parent, _, own = name.rpartition(".")
            if parent:
                run.modules[parent]._modules[own] = run.modules[name]
    for name, ref in outline.weights.items():
        path, _, own = name.rpartition(".")
        if path in run.modules:
            _put(run.modules[path], own, ref.open().clone())
    return run.modules[ROOT]


def _all_around(name: str) -> list[str]:
    """The module and those around it."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _made(name: str, outline: Outline, run: TraceRun) -> nn.Module:
    projection, outputs = outline.projections.get(name), outline.outputs.get(name, 0)
    shape = () if projection is None else projection.header().shape
    if len(shape) != 2 or not 0 < shape[-1] * outputs < _LARGEST:
        return TracedModule(name, run)
    return nn.Linear(shape[-1], outputs, bias=f"{name}.bias" in outline.weights, device="meta")


def _put(module: nn.Module, name: str, values: torch.Tensor) -> None:
    if isinstance(module, nn.Linear) and module._parameters.get(name) is None:
        return
    module._parameters.pop(name, None)
    if values.is_floating_point():
        module._parameters[name] = nn.Parameter(values, requires_grad=False)
    else:
        module._buffers[name] = values
