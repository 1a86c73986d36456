"""The records of one step and rank of an msprobe dump, as calls of modules and functions.

A module's forward call is a node of its own, its gradients are nodes beside it: `{module}.backward` (inputs:
gradients that arrive, outputs: gradients of the forward's inputs) and `{module}.parameters_grad` (outputs by
the names of parameters). Functions stand below the module that called them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import NamedTuple, Union

from ..base.texts import is_index
from ..base.vocabulary import GRADIENTS
from ..tensors.msprobe_records import CallTensor, RecordedTensor
from ..tensors.ref import TensorRef
from ..tensors.torch_file import stored_crc
from ..topology.torch_modules import function_name
from .base import Slot
from .modules import ROOT, Record

# Names of calls in msprobe dumps.
#
# Module.{path}.{Class}.forward.{n}      also backward, parameters_grad; the call number stands last
# {Prefix}.{api}.{n}.forward             also backward; here it stands before the direction
# {name}.{n}.debug                       level debug, `{name}_grad` for its gradient


_MODULE = "Module"
_OF_MODULES = frozenset({"forward", "backward", "parameters_grad"})
_OF_FUNCTIONS = frozenset({"forward", "backward"})


class CallName(NamedTuple):
    """The fields of the name of a call. `kind` is the class of a module, or the function; `direction` is
    forward, backward, parameters_grad or debug; `path` is empty for functions."""

    path: str
    kind: str
    direction: str
    number: int
    prefix: str

    @property
    def is_module(self) -> bool:
        return self.prefix == _MODULE


def call_name(name: str) -> CallName | None:
    """The parts of a name; `None` for a name of another form."""
    first, *segments = name.split(".")
    if first == _MODULE and len(segments) > 3 and segments[-2] in _OF_MODULES and is_index(segments[-1]):
        return CallName(".".join(segments[:-3]), segments[-3], segments[-2], int(segments[-1]), first)
    if len(segments) > 2 and segments[-1] in _OF_FUNCTIONS and is_index(segments[-2]):
        return CallName("", ".".join(segments[:-2]), segments[-1], int(segments[-2]), first)
    if len(segments) > 1 and segments[-1] == "debug" and is_index(segments[-2]):
        return CallName(".".join([first, *segments[:-2]]), "debug", "debug", int(segments[-2]), "")
    return None


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
        parameters = {
            name: frozenset(_print(entry) for entry in entries if entry.part == "parameters") - {None}
            for name, entries in self._entries.items()
            if any(entry.part == "parameters" for entry in entries)
        }
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
            for entry in tensors:
                if entry.part == "parameters":
                    full = ".".join([ROOT, call.path, *map(str, entry.key)])
                    self._result.parameters.setdefault(full, self._ref_of(entry))
        return self._result

    def _mark_of(self, entry: CallTensor) -> Print | None:
        ref = self._ref_of(entry)
        # A fingerprint for looking at one run alone: where mean and norm were not computed (`precision:
        # high`, float64) that of the bytes in its `file`, else of the largest and the smallest value.
        file = "" if ref.member else ref.path
        mark = fingerprint(entry.tensor)
        ends = [
            value for value in entry.tensor.stated[:2] if isinstance(value, float) and math.isfinite(value)
        ]
        if mark is not None or len(set(ends)) < 2 or entry.tensor.stated[2:] != (None, None):
            return mark
        stored = stored_crc(file) if file else None
        return (entry.tensor.dtype, entry.tensor.shape, *(ends if stored is None else stored))

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
            wrapped = all(
                entry.key[:1] == (0,) and entry.key[1:] for entry in self._entries if entry.part == "output"
            )
            pairs = [
                (slot_of(entry, wrapped), entry) for entry in self._entries if entry.part != "parameters"
            ]
            pairs += [(_of_call(entry, False), entry) for entry in self._arriving]
            self._by_slot = {slot: self._ref_of(entry) for slot, entry in pairs}
        return self._by_slot


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


# The nodes of functions of an msprobe dump.
#
#     {module}.{function}, the k-th one there {module}.{function}.{k}    where construct.json names the caller
#     {Prefix}.{function}.{n}     where nothing does
#
# Numbers of msprobe count all calls of a function in a step. One call more (a cast, another attention,
# another release of a library) shifts all later ones, so they are counted within the module that called.
# Where golden's module made other calls than mine, the two sequences are laid side by side by functions and
# shapes: calls of mine then have the names of those of golden that they are, and what only mine called has
# names of its own.


_MOST = 5000
"""Calls of one module that are laid side by side: that takes the square of their number at worst."""


class Function(NamedTuple):
    """A call of a function: its path, what it is, and the shapes of its results."""

    path: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]


Functions = Mapping[Union[str, None], Sequence[Function]]
"""The functions that each module called, in the order in which they ended; those of nobody knows whom under
`None`."""
_Call = tuple[str, CallName]


class FunctionPaths:
    """Paths of nodes of functions, each given once. `functions` is what golden is compared with."""

    def __init__(
        self,
        calls: Sequence[_Call],
        parents: Mapping[str, str | None],
        entries: Mapping[str, tuple[CallTensor, ...]],
        golden: Functions,
    ) -> None:
        self._modules = {call.path for _, call in calls if call.is_module}
        self._path_of_call: dict[tuple[str, str, int], str] = {}
        self.functions: dict[str | None, list[Function]] = {}
        called: dict[str | None, list[_Call]] = {}
        for name, call in calls:
            if not call.is_module and call.direction == "forward":
                owner = _owner(parents[name]) if name in parents else None
                called.setdefault(owner, []).append((name, call))
        for owner, owner_calls in called.items():
            functions = [_function(call, entries.get(name, ())) for name, call in owner_calls]
            paths = self._paths(owner, owner_calls, functions, golden.get(owner, ()))
            self.functions[owner] = [function._replace(path=path) for function, path in zip(functions, paths)]
            self._path_of_call |= {_call_key(call): path for (_, call), path in zip(owner_calls, paths)}

    def path(self, call: CallName) -> str:
        """The path of the function that a name stands for; a gradient has that of its forward call."""
        return self._path_of_call.get(_call_key(call), f"{call.prefix}.{call.kind}.{call.number}")

    def _paths(
        self,
        owner: str | None,
        calls: Sequence[_Call],
        functions: Sequence[Function],
        golden: Sequence[Function],
    ) -> list[str]:
        matches = _side_by_side(golden, functions)
        golden_paths = {function.path for function in golden} if matches is not None else set()
        counts: Counter[str] = Counter()
        paths = []
        for place, ((_, call), function) in enumerate(zip(calls, functions)):
            path = golden[matches[place]].path if matches is not None and place in matches else ""
            while not path:
                path = self._next(owner, call, function.kind, counts)
                path = "" if path in golden_paths else path
            paths.append(path)
        return paths

    def _next(self, owner: str | None, call: CallName, kind: str, counts: Counter[str]) -> str:
        path = f"{owner}.{kind}" if owner else kind
        if owner is None:
            path = f"{call.prefix}.{call.kind}.{call.number}"
            counts[path] += 1
            return path + "_" * (counts[path] - 1)
        count = counts[path]
        counts[path] += 1
        path = f"{path}.{count}" if count else path
        while path in self._modules:
            path += "_"
        return path


def _side_by_side(golden: Sequence[Function], mine: Sequence[Function]) -> dict[int, int] | None:
    """The place in golden of each call of mine that is one of golden's; `None` where they are the same calls,
    or cannot be laid side by side."""
    if not golden or max(len(golden), len(mine)) > _MOST or _kinds(golden) == _kinds(mine):
        return None
    marks = [[(function.kind, function.shapes) for function in side] for side in (golden, mine)]
    blocks = SequenceMatcher(a=marks[0], b=marks[1], autojunk=False).get_matching_blocks()
    return {block.b + at: block.a + at for block in blocks for at in range(block.size)}


def _kinds(functions: Iterable[Function]) -> Counter[str]:
    return Counter(function.kind for function in functions)


def _function(call: CallName, entries: Iterable[CallTensor]) -> Function:
    shapes = tuple(entry.tensor.shape for entry in entries if entry.part == "output")
    return Function("", function_name(call.kind), shapes)


def _call_key(call: CallName) -> tuple[str, str, int]:
    return call.prefix, call.kind, call.number


def _owner(parent: str | None) -> str:
    """The path of the module that called, empty for the model itself."""
    if parent is None:
        return ""
    call = call_name(parent)
    if call is None:
        return parent.replace(".", "_")
    return call.path if call.is_module else ""


# Inputs that a module had overwritten before msprobe looked at them.
#
# Up to release 26.1 the inputs of a module were taken when it had run. Where it works in place (fused
# norms, a layer that hands its buffers on), its inputs then are its results. Nothing in the files says
# which release wrote them, but what a call was given was there before it: an input that nobody saw before
# the call began, and that something within the call handed out, is none.


_HANDED_ON = ("Identity", "Dropout", "DropPath")
"""Modules that give what they got."""
_INPUTS = frozenset({"input_args", "input_kwargs"})


class TimedCall(NamedTuple):
    """A forward call and when it began; calls come in the order in which they ended."""

    name: CallName
    began: int
    entries: tuple[CallTensor, ...]


Print = tuple[object, ...]


def fingerprint(tensor: RecordedTensor) -> Print | None:
    """A fingerprint: equal for equal tensors and hardly ever for others; `None` where too little was
    recorded."""
    if tensor.digest:
        return tensor.dtype, tensor.shape, tensor.digest
    numbers = [value for value in tensor.stated if isinstance(value, float) and math.isfinite(value)]
    if len(numbers) < 4 or numbers[0] == numbers[1]:
        return None
    return tensor.dtype, tensor.shape, *numbers


@dataclass(slots=True)
class _History:
    """The begin of the first call that handed out a tensor, and tensors that came in without one."""

    out: dict[Print, int] = field(default_factory=dict)
    came_in: set[Print] = field(default_factory=set)

    def hand_out(self, prints: Iterable[Print | None], began: int) -> None:
        for mark in prints:
            if mark is not None:
                self.out[mark] = min(self.out.get(mark, began), began)

    def come_in(self, prints: Iterable[Print | None]) -> None:
        """Inputs that nobody handed out were there."""
        self.came_in.update(mark for mark in prints if mark is not None and mark not in self.out)

    def overwritten(self, mark: Print | None, began: int) -> bool:
        """Whether something within the call that began then was the first to hand this out."""
        if mark is None or mark in self.came_in or mark not in self.out:
            return False
        return began <= self.out[mark]


def overwritten_inputs(
    calls: Sequence[TimedCall], mark_of: Callable[[CallTensor], Print | None]
) -> list[frozenset[str]]:
    """The members of each call that are inputs it had overwritten. `mark_of` tells tensors apart."""
    history = _History()
    overwritten: list[frozenset[str]] = []
    for call in calls:
        inputs = {entry.member: mark_of(entry) for entry in call.entries if entry.part in _INPUTS}
        outputs = [mark_of(entry) for entry in call.entries if entry.part == "output"]
        lost: frozenset[str] = frozenset()
        if not call.name.is_module or any(word in call.name.kind for word in _HANDED_ON):
            history.come_in(inputs.values())
            history.hand_out(outputs, call.began)
        else:
            history.hand_out(outputs, call.began)
            lost = frozenset(name for name, mark in inputs.items() if history.overwritten(mark, call.began))
            history.come_in(mark for name, mark in inputs.items() if name not in lost)
        overwritten.append(lost)
    return overwritten
