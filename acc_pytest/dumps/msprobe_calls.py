"""The records of one step and rank of an msprobe dump, as calls of modules and functions.

A module's forward call is a node of its own, its gradients are nodes beside it: `{module}.backward` (inputs:
gradients that arrive, outputs: gradients of the forward's inputs) and `{module}.parameters_grad` (outputs by
the names of parameters). Functions stand below the module that called them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..tensors.msprobe_records import CallTensor
from ..tensors.ref import TensorRef
from ..topology.function_names import function_name
from ..vocabulary import GRADIENTS
from .base import Slot
from .msprobe_functions import FunctionPaths, Functions
from .msprobe_in_place import Print, TimedCall, fingerprint, overwritten_inputs, print_of
from .msprobe_names import CallName
from .recorded import ROOT, Record


@dataclass(slots=True)
class MsprobeCalls:
    """The content of a file of records: a `Record` for each call, the parameters by full name, the names of
    calls by the paths of their nodes, the functions that each module called, and inputs that were
    overwritten."""

    records: list[Record] = field(default_factory=list)
    parameters: dict[str, TensorRef] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    functions: Functions = field(default_factory=dict)
    overwritten: list[str] = field(default_factory=list)


def calls_of(
    entries: Mapping[str, tuple[CallTensor, ...]],
    calls: Sequence[tuple[str, CallName]],
    parents: Mapping[str, str | None],
    ref_of: Callable[[CallTensor], TensorRef],
    golden: Functions,
) -> MsprobeCalls:
    """The calls of a pass, given in the order in which they ended.

    `entries` has the tensors of each, `parents` is `construct.json`, empty where there is none. `golden` are
    the functions of the dump that this one is compared with.
    """
    return _Builder(entries, calls, parents, ref_of, golden).built()


class _Builder:
    def __init__(
        self,
        entries: Mapping[str, tuple[CallTensor, ...]],
        calls: Sequence[tuple[str, CallName]],
        parents: Mapping[str, str | None],
        ref_of: Callable[[CallTensor], TensorRef],
        golden: Functions,
    ) -> None:
        self._calls = calls
        self._entries = entries
        self._parents = parents
        self._ref_of = ref_of
        self._paths = FunctionPaths(calls, parents, entries, golden)
        self._result = MsprobeCalls(functions=self._paths.functions)

    def built(self) -> MsprobeCalls:
        times = began(self._calls, self._parents)
        timed = [
            TimedCall(call, time, self._entries.get(name, ()))
            for (name, call), time in zip(self._calls, times)
            if call.direction == "forward"
        ]
        lost = frozenset().union(*overwritten_inputs(timed, self._mark_of))
        parameters = self._parameters_of_modules()
        for ended, ((name, call), time) in enumerate(zip(self._calls, times)):
            entries = self._entries.get(name, ())
            tensors: Sequence[CallTensor] = entries
            if lost:
                tensors = [entry for entry in entries if entry.member not in lost]
                self._result.overwritten += [entry.member for entry in entries if entry.member in lost]
            if not call.is_module and call.direction == "forward":
                mine = parameters.get(self._parents.get(name) or "", frozenset())
                tensors = [entry for entry in tensors if entry.part == "output" or _print(entry) not in mine]
            self._add(name, call, tensors, time, ended)
            self._keep_parameters(call.path, tensors)
        return self._result

    def _mark_of(self, entry: CallTensor) -> Print | None:
        ref = self._ref_of(entry)
        return print_of(entry.tensor, "" if ref.member else ref.path)

    def _parameters_of_modules(self) -> dict[str, frozenset[object]]:
        """The parameters of each module: functions that it calls get them as inputs, but they are compared as
        weights."""
        return {
            name: frozenset(_print(entry) for entry in entries if entry.part == "parameters") - {None}
            for name, entries in self._entries.items()
            if any(entry.part == "parameters" for entry in entries)
        }

    def _add(self, name: str, call: CallName, entries: Sequence[CallTensor], time: int, ended: int) -> None:
        path = call.path or self._paths.path(call)
        again = call.number if call.is_module or call.direction == "debug" else 0
        kind = call.kind if call.is_module else function_name(call.kind)
        apart = call.direction in GRADIENTS
        if apart:
            path, kind = f"{path}.{call.direction}", f"{kind}.{call.direction}"
        elif call.direction == "forward" and not call.is_module:
            apart = name not in self._parents  # nobody knows where it ran
        slots = _Slots(call.direction, entries, self._arriving(name, call), self._ref_of)
        files = [entry.tensor.file for entry in entries if entry.tensor.file and self._ref_of(entry).member]
        self._result.records.append(Record(path, kind, slots, time, ended, again, apart, lost=files))
        self._result.names.setdefault(f"{ROOT}.{path}.call{again}" if again else f"{ROOT}.{path}", name)

    def _arriving(self, name: str, call: CallName) -> Sequence[CallTensor]:
        """Gradients of parameters are computed of those that arrive at their module."""
        if call.direction != "parameters_grad":
            return ()
        head, _, number = name.rpartition(".parameters_grad.")
        backward = self._entries.get(f"{head}.backward.{number}", ())
        return [entry for entry in backward if entry.part == "input"]

    def _keep_parameters(self, path: str, entries: Sequence[CallTensor]) -> None:
        for entry in entries:
            if entry.part == "parameters":
                full = ".".join([ROOT, path, *map(str, entry.key)])
                self._result.parameters.setdefault(full, self._ref_of(entry))


def _print(entry: CallTensor) -> object:
    return fingerprint(entry.tensor)


class _Slots(Mapping[Slot, TensorRef]):
    """The tensors of a call as our own dumps have them, made when they are asked for."""

    __slots__ = ("_arriving", "_by_slot", "_direction", "_entries", "_ref_of")

    def __init__(
        self,
        direction: str,
        entries: Sequence[CallTensor],
        arriving: Sequence[CallTensor],
        ref_of: Callable[[CallTensor], TensorRef],
    ) -> None:
        self._direction = direction
        self._entries = entries
        self._arriving = arriving
        self._ref_of = ref_of
        self._by_slot: dict[Slot, TensorRef] | None = None

    def __getitem__(self, slot: Slot) -> TensorRef:
        return self._slots()[slot]

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots())

    def __len__(self) -> int:
        return len(self._slots())

    def _slots(self) -> dict[Slot, TensorRef]:
        if self._by_slot is None:
            slot_of = _SLOT_OF.get(self._direction, _of_call)
            wrapped = _is_wrapped(self._entries)
            pairs = [
                (slot_of(entry, wrapped), entry) for entry in self._entries if entry.part != "parameters"
            ]
            pairs += [(_of_call(entry, False), entry) for entry in self._arriving]
            self._by_slot = {slot: self._ref_of(entry) for slot, entry in pairs}
        return self._by_slot


def _is_wrapped(entries: Sequence[CallTensor]) -> bool:
    """Whether the result is no tuple: it then stands in a list of length one."""
    return all(entry.key[:1] == (0,) and entry.key[1:] for entry in entries if entry.part == "output")


def _of_call(entry: CallTensor, wrapped: bool) -> Slot:
    if entry.part == "output":
        return Slot("output", entry.key[1:] if wrapped else entry.key or (0,))
    return Slot("input", entry.key or (0,))


def _of_parameter(entry: CallTensor, wrapped: bool) -> Slot:
    """Gradients of a parameter stand in a list of length one."""
    return Slot("output", (entry.part, *(() if entry.key == (0,) else entry.key)))


def _of_value(entry: CallTensor, wrapped: bool) -> Slot:
    return Slot("output", (*((entry.part,) if entry.part else ()), *entry.key) or (0,))


_SLOT_OF = {"parameters_grad": _of_parameter, "debug": _of_value}


_TICKS = 256
"""Times between two places in a list: what begins together begins from the outside to the inside."""


def began(calls: Sequence[tuple[str, CallName]], parents: Mapping[str, str | None]) -> list[int]:
    """A time for each call, given by name in the order in which they ended; `parents` is `construct.json`."""
    return _listed(calls, parents) if parents else _by_names(calls)


def _listed(calls: Sequence[tuple[str, CallName]], parents: Mapping[str, str | None]) -> list[int]:
    places = {name: number * _TICKS for number, name in enumerate(parents)}
    latest = 0
    times = []
    for name, call in calls:
        place = places.get(name)
        if place is not None and not call.is_module:
            # A function that ended before its module called another may be listed before its module.
            place = max(place, places.get(parents[name] or "", 0)) + 1
        elif call.direction == "parameters_grad":
            place = places.get(name.replace(".parameters_grad.", ".backward."), latest) + 2
        elif place is None:
            place = latest + 1
        latest = max(latest, place)
        times.append(place)
    return times


def _by_names(calls: Sequence[tuple[str, CallName]]) -> list[int]:
    first_inside: dict[str, int] = {}
    times = []
    for number, (_, call) in enumerate(calls):
        inner = call.is_module and call.direction == "forward"
        first = first_inside.pop(call.path, number) if inner else number
        names = call.path.split(".") if inner else []
        for depth in range(1, len(names)):
            first_inside.setdefault(".".join(names[:depth]), number)
        times.append(first * _TICKS + (min(len(names), _TICKS - 2) if inner else _TICKS - 1))
    return times
