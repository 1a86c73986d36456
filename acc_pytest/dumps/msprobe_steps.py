"""The steps of an msprobe dump, read: of each the calls on every rank.

A step is a forward pass, as in dumps of our own. What lies between two `step()` of the program are several
where it called the model several times; they are numbered on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DumpError, FormatError
from ..tensors.msprobe_records import CallTensor, Records, fit, json_of, records_in
from ..tensors.ref import TensorRef
from .listing import Listing
from .msprobe_calls import MsprobeCalls, calls_of
from .msprobe_files import RECORDS, TENSORS, MsprobeLayout, records_file
from .msprobe_functions import Functions
from .msprobe_names import CallName, call_name
from .passes import is_inside, pass_labels, pass_starts

_CONSTRUCT = "construct.json"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step on one rank: its directory, its file of records, the calls in it, and its tensor files."""

    home: Path
    file: Path
    records: Records
    calls: MsprobeCalls
    files: frozenset[str]

    @property
    def unknown(self) -> int:
        """Number of names in the file that are none of msprobe's."""
        return self.records.broken + sum(call_name(name) is None for name in self.records.calls)


@dataclass(frozen=True, slots=True)
class _Read:
    """The files in the directory of a rank; `split` has the calls of each pass."""

    home: Path
    file: Path
    records: Records
    parents: Mapping[str, str | None]
    calls: Sequence[Call]
    split: Sequence[Sequence[Call]]
    files: frozenset[str]

    def ref_of(self, entry: CallTensor) -> TensorRef:
        """A tensor is its file where it has one, else its statistics."""
        if entry.tensor.file and entry.tensor.file in self.files:
            return TensorRef(f"{self.home / TENSORS}/{entry.tensor.file}")
        return TensorRef(str(self.file), entry.member)

    def recorded(self, calls: Sequence[Call], golden: Functions) -> Recorded:
        """The nodes of some of the calls."""
        call_nodes = calls_of(self.records.calls, calls, self.parents, self.ref_of, golden)
        return Recorded(self.home, self.file, self.records, call_nodes, self.files)


class GoldenFunctions:
    """The functions of golden by the numbers of steps and the places of ranks; of its first where it has not
    as many."""

    def __init__(self, recorded: Mapping[tuple[str, str], Recorded]) -> None:
        self._steps: dict[str, list[Functions]] = {}
        for (step, _), entry in recorded.items():
            self._steps.setdefault(step, []).append(entry.calls.functions)

    def functions(self, step: int, rank: int) -> Functions:
        """The functions of a step and rank."""
        ranks = self._steps.get(str(step)) or next(iter(self._steps.values()), [])
        return ranks[rank] if rank < len(ranks) else ranks[0] if ranks else {}


def steps_of(
    layout: MsprobeLayout, listing: Listing, notes: list[str], golden: GoldenFunctions
) -> dict[int, dict[str, Recorded]]:
    """The records of each step, by the names of ranks; files that are broken are left out."""
    broken: list[str] = []
    steps: dict[int, dict[str, Recorded]] = {}
    names: list[str] = []
    for number, homes in layout.steps:
        home_names = [home.name for home in homes]
        # Processes of later steps may have other numbers.
        is_aligned = not names or set(home_names) <= set(names) or len(home_names) > len(names)
        ranks = home_names if is_aligned else names
        names = names if len(names) >= len(home_names) else home_names
        read = _sound_ranks(zip(ranks, homes), listing, notes, broken)
        labels = pass_labels(
            number, steps, (len(records.split) for _, records in read.values()), notes.append
        )
        for rank, (place, records) in read.items():
            for label, calls in zip(labels, records.split if len(labels) > 1 else [records.calls]):
                functions = golden.functions(label, place)
                steps.setdefault(label, {})[rank] = records.recorded(calls, functions)
    if not steps:
        raise FormatError(broken[0] if broken else f"{layout.root}: holds no records of msprobe")
    notes += [f"left out: {error}" for error in broken]
    return steps


def _sound_ranks(
    homes: Iterable[tuple[str, Path]], listing: Listing, notes: list[str], broken: list[str]
) -> dict[str, tuple[int, _Read]]:
    """The place and the files of each rank that can be read; `broken` is told of the others."""
    read: dict[str, tuple[int, _Read]] = {}
    for place, (rank, home) in enumerate(homes):
        try:
            read[rank] = place, _read(home, listing, notes)
        except FormatError as error:
            broken.append(str(error))
    return read


def _read(home: Path, listing: Listing, notes: list[str]) -> _Read:
    file = records_file(home, listing)
    if file is None:
        raise FormatError(f"{home}: holds neither of {', '.join(RECORDS)} of msprobe")
    records = records_in(str(file))
    if records.framework not in ("", "pytorch"):
        raise DumpError(f"{file}: was written for {records.framework}; only dumps of pytorch are read")
    try:
        parents = _parents(home, listing)
    except FormatError as error:
        parents = {}
        notes.append(f"nothing says which module called what: {error}")
    named = ((name, call_name(name)) for name in records.calls or parents)
    calls = [(name, call) for name, call in named if call is not None]
    split = passes(calls, parents) if records.calls else [calls]
    return _Read(home, file, records, parents, calls, split, frozenset(listing.files(home / TENSORS)))


def _parents(home: Path, listing: Listing) -> dict[str, str | None]:
    """Who called what, by `construct.json`; empty where it is not there. Megatron adds the number of a
    micro step to each."""
    if _CONSTRUCT not in listing.files(home):
        return {}
    content = json_of(str(home / _CONSTRUCT))
    if not isinstance(content, dict):
        raise FormatError(f"{home / _CONSTRUCT}: is no construct.json of msprobe: it holds no object")
    parents: dict[str, str | None] = {}
    for name, parent in content.items():
        caller = parent[0] if isinstance(parent, list) and parent else parent
        if caller is None or isinstance(caller, str):
            parents[fit(name)] = None if caller is None else fit(caller)
    return parents


Call = tuple[str, CallName]
_Key = tuple[str, str, str]


def passes(calls: Sequence[Call], parents: Mapping[str, str | None]) -> list[list[Call]]:
    """The calls of each pass, given in the order in which they ended; their numbers count within the pass.

    `parents` is `construct.json`. All calls are one pass where nothing shows that they are several.
    """
    modules = {call.path for _, call in calls if _is_forward_of_module(call)}
    outermost = list(_outermost(calls, parents, modules))
    began = pass_starts([calls[place][1].path for place in outermost], modules)
    if len(began) < 2:
        return [list(calls)]
    pass_of = dict(zip(outermost, _numbers(began, len(outermost))))
    split: list[list[Call]] = [[] for _ in began]
    for call, number in zip(calls, _places(calls, parents, pass_of)):
        split[number].append(call)
    return [_renumbered(group) for group in split]


def _outermost(
    calls: Sequence[Call], parents: Mapping[str, str | None], modules: Collection[str]
) -> Iterator[int]:
    """The places of forward calls of modules that no recorded module called."""
    for place, (name, call) in enumerate(calls):
        if _is_forward_of_module(call):
            inside = parents[name] is not None if name in parents else is_inside(call.path, modules)
            if not inside:
                yield place


def _is_forward_of_module(call: CallName) -> bool:
    return call.is_module and call.direction == "forward"


def _numbers(began: Sequence[int], count: int) -> Iterator[int]:
    """The number of the pass at each place."""
    for number, (begin, end) in enumerate(zip(began, [*began[1:], count])):
        yield from (number for _ in range(begin, end))


def _places(
    calls: Sequence[Call], parents: Mapping[str, str | None], pass_of: Mapping[int, int]
) -> list[int]:
    """The pass of each call: that of the outermost module around it, of a gradient that of its forward call.

    What nobody called runs after the module that ended last. Gradients of parameters are sums over all
    passes, so they belong to the last one.
    """
    ends = sorted(pass_of)
    last = pass_of[ends[-1]]
    forward: dict[tuple[str, str, str, int], int] = {}
    numbers: list[int] = []
    ended = 0
    for place, (name, call) in enumerate(calls):
        key = (*_key(call), call.number)
        if call.direction != "forward":
            numbers.append(last if _is_sum(call) else forward.get(key, last))
            continue
        alone = not call.is_module and name in parents and parents[name] is None
        around = max(ended - 1, 0) if alone else min(ended, len(ends) - 1)
        forward[key] = pass_of[ends[around]]
        numbers.append(forward[key])
        ended += place in pass_of
    return numbers


def _is_sum(call: CallName) -> bool:
    return call.direction == "parameters_grad"


def _key(call: CallName) -> _Key:
    return call.prefix, call.path, call.kind


def _renumbered(calls: Sequence[Call]) -> list[Call]:
    """Calls whose numbers begin with 0 in their pass; gradients have those of their forward calls."""
    first: dict[_Key, int] = {}
    for _, call in calls:
        if not _is_sum(call):
            first[_key(call)] = min(call.number, first.get(_key(call), call.number))
    return [
        (name, call if _is_sum(call) else call._replace(number=call.number - first[_key(call)]))
        for name, call in calls
    ]
