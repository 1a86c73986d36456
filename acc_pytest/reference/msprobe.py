"""Is a call of an msprobe dump right? The function that its record names, called again on what it was given.

Modules are computed again where their class is one of torch's own whose result its inputs and parameters
determine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch

from ..base.reason import Reason
from ..dumps.base import StepLabel
from ..dumps.msprobe import TENSORS
from ..dumps.msprobe_calls import CallName, call_name
from ..errors import OperatorError
from ..mapping.pair import Operand
from ..tensors.dtypes import by_name
from ..tensors.header import version_of
from ..tensors.msprobe_records import CallTensor, Records, json_of, records_in
from ..tensors.ref import TensorRef
from .aten import CallRecomputer, Results, function_results
from .executor import OperatorCase
from .recomputation import Recomputation

_RECORDS = "dump.json"
_OF_CLASSES = {
    "Linear": ("linear", ("weight", "bias")),
    "Embedding": ("embedding", ("weight",)),
    "SiLU": ("silu", ()),
    "SiLUActivation": ("silu", ()),
    "ReLU": ("relu", ()),
    "Sigmoid": ("sigmoid", ()),
    "Tanh": ("tanh", ()),
}
"""Classes of modules: the function that each calls, and its parameters in the order of the arguments."""
_DEEPEST = 4
_PLAIN = {"int": int, "float": (int, float), "bool": bool, "str": str}


class _Recorded(NamedTuple):
    """The place of a tensor: the file of records, the call in it, and which of its tensors it is."""

    file: str
    call: str
    entry: CallTensor


class MsprobeRecomputer(CallRecomputer):
    """Computes calls of an msprobe dump again."""

    _how = "the function in {} against float64"

    def of_operator(self, number: int, path: str) -> Recomputation:
        """The outcome for the call at `path`, which is known where one of its tensors is compared."""
        pair = self._pairs[number]
        result = self._results.get((pair.step, pair.rank, path))
        if result is None:
            return Recomputation(why=Reason("no result of {} is compared", path))
        return self._of_operand(result)

    @cached_property
    def _results(self) -> Mapping[tuple[StepLabel, int | None, str], Operand]:
        """The first result of each call that is compared, by its step, rank and path."""
        results = (pair for pair in reversed(self._pairs) if pair.mine.slot.startswith("output"))
        return {(pair.step, pair.rank, pair.mine.node): pair.mine for pair in results}

    def case(self, ref: TensorRef) -> OperatorCase[Results]:
        results, index, read = _called(_place(ref))
        return OperatorCase(results, ref, index, read, results.doubt)


def _place(ref: TensorRef) -> _Recorded:
    """The place of a tensor of an msprobe dump. Raises `OperatorError` for one of another dump."""
    home, name = os.path.split(ref.path)
    if ref.member:
        raise OperatorError("only statistics of it were recorded")
    if os.path.basename(home) != TENSORS:
        raise OperatorError(Reason("{} is no tensor of an msprobe dump", ref))
    file = os.path.join(os.path.dirname(home), _RECORDS)
    location = _places(file, version_of(file)).get(name)
    if location is None:
        raise OperatorError(Reason("{} stands in no record", ref))
    return _Recorded(file, *location)


@lru_cache(maxsize=16)
def _places(file: str, _version: tuple[int, ...]) -> Mapping[str, tuple[str, CallTensor]]:
    """The call and the tensor of each tensor file."""
    calls = records_in(file).calls
    return {entry.tensor.file: (name, entry) for name, entries in calls.items() for entry in entries}


@lru_cache(maxsize=2)
def _data(file: str, _version: tuple[int, ...]) -> Mapping[str, Any]:
    data: Mapping[str, Any] = json_of(file)["data"]
    return data


def _called(place: _Recorded) -> tuple[Results, int, list[TensorRef]]:
    """The results of a tensor's call, which of them the tensor is, and the files of its arguments."""
    call = call_name(place.call)
    if call is None or call.direction != "forward":
        raise OperatorError(Reason("{} is no forward call", place.call))
    if place.entry.part != "output":
        raise OperatorError("it is read, not written by it")
    record = _data(place.file, version_of(place.file))[place.call]
    arguments = _Arguments(place.file, place.call, records_in(place.file))
    outputs = [entry for entry in records_in(place.file).calls[place.call] if entry.part == "output"]
    name, args, kwargs = _function(call, record, arguments)
    shapes = [entry.tensor.shape for entry in outputs]
    results = function_results("Functional" if call.is_module else call.prefix, name, args, kwargs, shapes)
    return results, outputs.index(place.entry), arguments.refs


def _function(
    call: CallName, record: Mapping[str, Any], arguments: _Arguments
) -> tuple[str, list[Any], dict[str, Any]]:
    """The function of a call, and its arguments. Raises `OperatorError`."""
    args = [
        arguments.value(value, "input_args", (place,)) for place, value in enumerate(record["input_args"])
    ]
    kwargs = {
        name: arguments.value(value, "input_kwargs", (name,))
        for name, value in record["input_kwargs"].items()
        if not (isinstance(value, dict) and value.get("type") == "torch.device")
    }
    if not call.is_module:
        return call.kind, args, kwargs
    if call.kind not in _OF_CLASSES or kwargs or len(args) != 1:
        raise OperatorError(Reason("modules of class {} are not computed again without a model", call.kind))
    function, names = _OF_CLASSES[call.kind]
    parameters = record.get("parameters") or {}
    if not parameters.keys() <= set(names) or (names and names[0] not in parameters):
        raise OperatorError(
            Reason("{} has parameters that {} does not have, or lacks some", call.path, function)
        )
    values = [
        arguments.value(parameters[name], "parameters", (name,)) if name in parameters else None
        for name in names
    ]
    return function, [*args, *values], {}


class _Arguments:
    """The values of a record; `refs` are the files of those that were asked for."""

    def __init__(self, file: str, call: str, records: Records) -> None:
        self._folder = os.path.join(os.path.dirname(file), TENSORS)
        self._entries = {(entry.part, entry.key): entry for entry in records.calls[call]}
        self.refs: list[TensorRef] = []

    def value(self, stated: Any, section: str, key: tuple[int | str, ...]) -> Any:
        """A value as the call got it. Raises `OperatorError` for one that is not known."""
        if stated is None:
            return None
        if isinstance(stated, list) and len(key) < _DEEPEST:
            return [self.value(item, section, (*key, number)) for number, item in enumerate(stated)]
        if isinstance(stated, dict):
            if (section, key) in self._entries:
                return self._tensor(self._entries[section, key])
            return _plain(stated)
        raise OperatorError("an argument of it is not known")

    def _tensor(self, entry: CallTensor) -> torch.Tensor:
        if not entry.tensor.file:
            raise OperatorError(Reason("only statistics of its {} {} were recorded", entry.part, entry.key))
        ref = TensorRef(f"{self._folder}/{entry.tensor.file}")
        self.refs.append(ref)
        return ref.open()


def _plain(stated: Mapping[str, Any]) -> Any:
    """A number, a text, or a type of elements. Raises `OperatorError`."""
    kind, value = stated.get("type"), stated.get("value")
    if kind in _PLAIN and isinstance(value, _PLAIN[kind]):  # type: ignore[arg-type]
        return value
    if kind == "torch.Size" and isinstance(value, list) and all(isinstance(size, int) for size in value):
        return value
    if kind == "torch.dtype" and isinstance(value, str):
        dtype = by_name(value)
        if dtype.torch_name is not None:
            return dtype.torch_dtype()
    raise OperatorError("an argument of it is not known")
