"""The records of one step and rank of an msprobe dump, as calls of modules and functions.

A module's forward call is a node of its own, its gradients are nodes beside it: `{module}.backward` (inputs:
gradients that arrive, outputs: gradients of the forward's inputs) and `{module}.parameters_grad` (outputs by
the names of parameters). Functions stand below the module that called them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..tensors.msprobe_records import Entry, Key, Records
from ..tensors.ref import TensorRef
from ..topology.function_names import function_name
from .base import Slot
from .msprobe_in_place import TimedCall, fingerprint, overwritten_inputs
from .msprobe_names import CallName, FunctionPaths, call_name
from .msprobe_times import began
from .recorded import ROOT, Record

_INPUTS = frozenset({"input_args", "input_kwargs", "input"})

Side = Literal["input", "output"]


@dataclass(slots=True)
class MsprobeCalls:
    """What a file of records holds: a `Record` for each call, the parameters by full name, the names of calls
    by the paths of their nodes, inputs that were overwritten, and names that are none."""

    records: list[Record] = field(default_factory=list)
    parameters: dict[str, TensorRef] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    overwritten: list[str] = field(default_factory=list)
    unknown: int = 0


def calls_of(
    records: Records, parents: Mapping[str, str | None], ref_of: Callable[[Entry], TensorRef]
) -> MsprobeCalls:
    """The calls of a file; `parents` is `construct.json`, empty where there is none."""
    return _Builder(records, parents, ref_of).built()


class _Builder:
    def __init__(
        self, records: Records, parents: Mapping[str, str | None], ref_of: Callable[[Entry], TensorRef]
    ) -> None:
        names = [(name, call_name(name)) for name in records.calls or parents]
        self._calls = [(name, call) for name, call in names if call is not None]
        self._entries = records.calls
        self._parents = parents
        self._ref_of = ref_of
        self._found = MsprobeCalls(unknown=len(names) - len(self._calls) + records.broken)
        self._paths = FunctionPaths((call for _, call in self._calls), parents)

    def built(self) -> MsprobeCalls:
        times = began(self._calls, self._parents)
        timed = [
            TimedCall(call, time, self._entries.get(name, ()))
            for (name, call), time in zip(self._calls, times)
            if call.direction == "forward"
        ]
        lost = frozenset().union(*overwritten_inputs(timed))
        own = self._own_parameters()
        for ended, ((name, call), time) in enumerate(zip(self._calls, times)):
            entries = self._entries.get(name, ())
            kept = [entry for entry in entries if entry.member not in lost]
            self._found.overwritten += [entry.member for entry in entries if entry.member in lost]
            if not call.is_module and call.direction == "forward":
                mine = own.get(self._parents.get(name) or "", frozenset())
                kept = [entry for entry in kept if entry.part == "output" or _print(entry) not in mine]
            self._add(name, call, kept, time, ended)
        return self._found

    def _own_parameters(self) -> dict[str, frozenset[object]]:
        """The parameters of each module: functions that it calls get them as inputs, but they are compared as
        weights."""
        return {
            name: frozenset(_print(entry) for entry in entries if entry.part == "parameters") - {None}
            for name, entries in self._entries.items()
            if any(entry.part == "parameters" for entry in entries)
        }

    def _add(self, name: str, call: CallName, entries: list[Entry], time: int, ended: int) -> None:
        slots = {Slot(side, key): self._ref_of(entry) for side, key, entry in _slots(entries)}
        path = call.path or self._paths.path(name, call)
        again = call.number if call.is_module or call.direction == "debug" else 0
        kind = call.kind if call.is_module else function_name(call.kind)
        if call.direction in ("backward", "parameters_grad"):
            slots |= self._arriving(name, call)
            path, kind = f"{path}.{call.direction}", f"{kind}.{call.direction}"
        else:
            self._keep_parameters(path, entries)
        apart = call.direction not in ("forward", "debug")
        self._found.records.append(Record(path, kind, slots, time, ended, again, apart))
        self._found.names.setdefault(f"{ROOT}.{path}.call{again}" if again else f"{ROOT}.{path}", name)

    def _arriving(self, name: str, call: CallName) -> dict[Slot, TensorRef]:
        """Gradients of parameters are computed of those that arrive at their module."""
        if call.direction != "parameters_grad":
            return {}
        backward = self._entries.get(name.replace(".parameters_grad.", ".backward."), ())
        inputs = [entry for entry in backward if entry.part == "input"]
        return {Slot(side, key): self._ref_of(entry) for side, key, entry in _slots(inputs)}

    def _keep_parameters(self, path: str, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.part == "parameters":
                full = ".".join([ROOT, path, *map(str, entry.key)])
                self._found.parameters.setdefault(full, self._ref_of(entry))


def _print(entry: Entry) -> object:
    return fingerprint(entry.tensor)


def _slots(entries: list[Entry]) -> Iterator[tuple[Side, Key, Entry]]:
    """Side and position of each tensor as our own dumps have them.

    A result that is no tuple stands in a list of length one; gradients of a parameter do as well.
    """
    outputs = [entry.key for entry in entries if entry.part == "output"]
    wrapped = all(key[0] == 0 and len(key) > 1 for key in outputs)
    for entry in entries:
        if entry.part in _INPUTS:
            yield "input", entry.key, entry
        elif entry.part == "output":
            yield "output", entry.key[1:] if wrapped else entry.key, entry
        elif entry.part == "":
            yield "output", entry.key or (0,), entry
        elif entry.part != "parameters":
            yield "output", (entry.part, *(() if entry.key == (0,) else entry.key)), entry
