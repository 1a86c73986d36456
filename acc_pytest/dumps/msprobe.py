"""Dumps of msprobe (`PrecisionDebugger`) of a torch model: modules, functions, gradients, saved values.

    {root}/step{N}/{rank{R} | proc{PID}}/{dump.json, construct.json, stack.json, dump_tensor_data/*.pt}

What was recorded stands in `dump.json`; a tensor is its file where it has one, else its statistics there.
Paths of the machine that wrote the dump are never opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType

from ..base.reason import Reason, joined
from ..errors import AccError, DumpError, FormatError
from ..tensors.file_bytes import opened
from ..tensors.header import until_changed, version_of
from ..tensors.msprobe_records import HEAD, CallTensor, RecordedTensor, Records, fit, json_of, records_in
from ..tensors.ref import TensorRef
from ..tensors.torch_file import stored_crc
from ..topology.tree import Node
from .base import Dump, DumpLayout, Listing, Rank, RankProcess, Slot, Step
from .modules import RecordedDump, is_inside, pass_labels, pass_starts
from .msprobe_calls import CallName, Functions, MsprobeCalls, call_name, calls_of, fingerprint
from .torch_manifest import SavedTensor

_NAMED = 3
"""Examples in a sentence."""


class MsprobeDump(RecordedDump):
    """A dump of msprobe. A module's gradients are nodes of their own: `{module}.backward`."""

    kind = "msprobe"
    _recorded: dict[tuple[str, str], Recorded]

    def __init__(self, layout: MsprobeLayout, listing: Listing, golden: Dump | None = None) -> None:
        """`golden` is the golden: functions that both sides called have one name."""
        notes: list[str] = []
        golden_records = golden._recorded if isinstance(golden, MsprobeDump) else {}
        steps = steps_of(layout, listing, notes, GoldenFunctions(golden_records))
        self._recorded = {
            (str(number), rank): recorded
            for number, ranks in steps.items()
            for rank, recorded in ranks.items()
        }
        notes += _notes(self._recorded.values())
        super().__init__(
            layout.root,
            {
                number: {rank: recorded.calls.records for rank, recorded in ranks.items()}
                for number, ranks in steps.items()
            },
            notes=notes,
        )
        self.forced = layout.named

    def dumped_weights(self, rank: Rank) -> Mapping[str, TensorRef]:
        """The parameters that the records of the first step of a rank hold, by full name."""
        by_step = (self._recorded.get((step.directory, rank.name)) for step in self.steps)
        return next((recorded.calls.parameters for recorded in by_step if recorded is not None), {})

    def is_partial(self, step: Step, rank: Rank, node: Node, slot: Slot) -> bool:
        """Whether the placements of a DTensor say so: `Shard(0)`, `Replicate`, `Partial(sum)`."""
        ref = self.tensors(step, rank, node).get(slot)
        tensor = self._tensor(step, rank, ref) if ref is not None else None
        return tensor is not None and any(place.startswith("Partial") for place in tensor.placements)

    def _tensor(self, step: Step, rank: Rank, ref: TensorRef) -> RecordedTensor | None:
        recorded = self._recorded.get((step.directory, rank.name))
        if recorded is None:
            return None
        return recorded.records.tensors.get(ref.member or Path(ref.path).stem)

    def _saved(self, step: Step) -> Callable[[Node, TensorRef], SavedTensor | None]:
        """By the check sum that msprobe made of the bytes, or that of the file."""

        def saved(node: Node, ref: TensorRef) -> SavedTensor | None:
            tensor = self._tensor(step, self.ranks[0], ref)
            if tensor is None:
                return None
            dtype = tensor.dtype.removeprefix("torch.")
            return SavedTensor(dtype=dtype, shape=tensor.shape, crc32=crc(ref, tensor))

        recorded = self._recorded.get((step.directory, self.ranks[0].name))
        crc = _crc if recorded is not None and recorded.records.task == "tensor" else _crc_of_record
        return saved


def _crc(ref: TensorRef, tensor: RecordedTensor) -> int | None:
    stored = None if ref.member else stored_crc(ref.path)
    return _crc_of_record(ref, tensor) if stored is None else stored[0]


def _crc_of_record(ref: TensorRef, tensor: RecordedTensor) -> int | None:
    """A number that is equal for equal tensors, and hardly ever for others: of what was recorded of each."""
    mark = fingerprint(tensor)
    if mark is None:
        return None
    return int.from_bytes(blake2b(repr(mark).encode(), digest_size=8).digest(), "big")


def _notes(recorded: Iterable[Recorded]) -> list[str]:
    """The notes on a dump, each kind once."""
    notes: dict[str, list[str]] = {}
    by_home: dict[Path, list[Recorded]] = {}
    for entry in recorded:
        by_home.setdefault(entry.home, []).append(entry)
    for home, passes in by_home.items():
        entry, records = passes[0], passes[0].records
        where = f"{home.parent.name}/{home.name}"
        if not records.calls:
            structure = "task structure: calls are listed and no tensor was recorded, so nothing is compared"
            note = structure if records.task == "structure" else "no call was recorded"
            notes.setdefault(note, []).append(where)
        if entry.unknown:
            note = "records with unknown names were left out"
            notes.setdefault(note, []).append(f"{where}: {entry.unknown}")
        lost = [member for run in passes for member in run.calls.overwritten]
        if lost:
            note = "inputs are left out that were taken when their modules had overwritten them (26.1)"
            notes.setdefault(note, []).append(Reason("{}: {}, the first is {}", where, len(lost), lost[0]))
        # The numbers of files that are named and absent, and of those that are present and not named.
        named = {tensor.file for tensor in entry.records.tensors.values() if tensor.file}
        missing, extra = len(named - entry.files), len(entry.files - named)
        if missing:
            note = Reason(
                "tensor files that {} names are not there; their statistics are compared", entry.file.name
            )
            notes.setdefault(note, []).append(f"{where}: {missing}")
        if extra:
            note = Reason(
                "tensor files that {} does not name: was the program killed before stop()?", entry.file.name
            )
            notes.setdefault(note, []).append(f"{where}: {extra}")
    return [Reason("{} ({})", note, _listed(places)) for note, places in notes.items()]


def _listed(places: list[str]) -> str:
    return joined(", ", places[:_NAMED]) + (
        Reason(" and {} more", len(places) - _NAMED) if len(places) > _NAMED else ""
    )


# `stack.json` of msprobe: where in the program each call was made.
#
#     {"0": [[names of calls], ["File /a/model.py, line 7, in forward, \n x = f(x)", ...]]}
#
# Frames come innermost first. Those of torch and of msprobe itself say nothing of the program.


FILE = "stack.json"
_FRAME = re.compile(r"File (.{1,4096}), line (\d{1,9}), in (.{1,300}?),\s*(.*)", re.DOTALL)
_LONGEST_LINE = 200
_OF_TOOLS = ("/torch/", "/msprobe/", "/torch_npu/")


def source_lines(home: str) -> Mapping[str, str]:
    """The line of the program for each call of a step on a rank; empty where the file is not there or not
    sound."""
    return _lines(os.path.join(home, FILE))


def source_line_of(path: str, member: str) -> str:
    """The line of the program that made the call of a tensor, which is a member of `path` or that file; empty
    where no stack tells."""
    home, name = os.path.split(path)
    if not member:
        parent, folder = os.path.split(home)
        home = parent if folder == TENSORS else ""
    lines = source_lines(home) if home else {}
    call = member or name
    while call and call not in lines:
        call = call.rpartition(".")[0]
    return lines.get(call, "")


@until_changed(maxsize=8)
def _lines(path: str) -> Mapping[str, str]:
    try:
        content = json_of(path) if version_of(path) else None
    except FormatError:
        content = None
    lines: dict[str, str] = {}
    for stack in content.values() if isinstance(content, dict) else ():
        if not (isinstance(stack, list) and [type(element) for element in stack] == [list, list]):
            continue
        line = _line(stack[1])
        lines.update((fit(name), line) for name in stack[0] if isinstance(name, str))
    return MappingProxyType(lines)


def _line(frames: list[object]) -> str:
    """The innermost frame of the program; of a library's, the innermost of all others."""
    for frame in frames:
        match = _FRAME.match(frame) if isinstance(frame, str) else None
        if match is None or any(tool in match[1] for tool in _OF_TOOLS):
            continue
        file, number, function, text = match.groups()
        text = " ".join(text.split())[:_LONGEST_LINE]
        return fit(f"{os.path.basename(file)}:{number} in {function}: {text}")
    return ""


# The steps of an msprobe dump, read: of each the calls on every rank.
#
# A step is a forward pass, as in dumps of our own. What lies between two `step()` of the program are several
# where it called the model several times; they are numbered on.


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
    notes += [Reason("left out: {}", error) for error in broken]
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
        notes.append(Reason("nothing says which module called what: {}", error))
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


# The files of an msprobe dump: `{root}/step{N}/{rank{R} | proc{PID}}/{dump.json, debug.json}`.
#
# A directory is one of a rank where its JSON file starts as msprobe writes it. The names of directories only
# say which step and rank it is: one that was copied elsewhere stands for step 0 and the only rank. Process
# numbers differ from run to run, so processes are told apart by their order.


RECORDS = ("dump.json", "debug.json")
"""The files of records: `debug.json` is there alone, at level debug."""
TENSORS = "dump_tensor_data"
_STEP = re.compile(r"step(\d{1,9})", re.ASCII)
_RANK = re.compile(r"(rank|proc)(\d{1,19})", re.ASCII)
_RANK_NAME = re.compile(r"rank\d{1,9}", re.ASCII)
_HEAD = 4096


@dataclass(frozen=True, slots=True)
class MsprobeLayout(DumpLayout):
    """The directories of each step, one for each rank in rank order, with the number of the step.

    `named` says that the user's path is that of one step.
    """

    name = "msprobe"
    root: Path
    steps: tuple[tuple[int, tuple[Path, ...]], ...]
    named: bool = False

    def open(self, listing: Listing, token_policy: str, golden: Dump | None) -> Dump:
        return MsprobeDump(self, listing, golden)

    def processes(self, listing: Listing) -> list[RankProcess]:
        """The directories of each rank."""
        by_name: dict[str, list[tuple[str, str]]] = {}
        for step, ranks in self.steps:
            for path in ranks:
                name = path.name if _RANK_NAME.fullmatch(path.name) else ""
                by_name.setdefault(name, []).append((self.below_top(path), f"step{step}/rank{{0}}"))
        return [
            RankProcess(tuple(directories), None, int(name[len("rank") :] or -1), number)
            for number, (name, directories) in enumerate(by_name.items())
        ]


def dumps_at(path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump whose root, step or rank is the path."""
    if records_file(path, listing) is not None:
        number = _number(path.parent)
        root = path if number is None else path.parent.parent
        yield MsprobeLayout(root, ((number or 0, (path,)),), number is not None)
    elif ranks := _ranks(path, listing):
        number = _number(path)
        yield MsprobeLayout(
            path if number is None else path.parent, ((number or 0, ranks),), number is not None
        )
    elif steps := sorted(
        (number, ranks)
        for name in listing.directories(path)
        if (number := _number(Path(name))) is not None and (ranks := _ranks(path / name, listing))
    ):
        yield MsprobeLayout(path, tuple(steps))


def dumps_around(directory: Path, path: Path, listing: Listing) -> Iterator[DumpLayout]:
    """The dump of a rank with the path in it."""
    return dumps_at(directory, listing) if records_file(directory, listing) is not None else iter(())


def records_file(path: Path, listing: Listing) -> Path | None:
    """The file of records in the directory of a rank; `None` for another directory."""
    names = listing.files(path)
    return next((path / name for name in RECORDS if name in names and _is_records(path / name)), None)


def _ranks(step: Path, listing: Listing) -> tuple[Path, ...]:
    """The directories of the ranks of a step in rank order; the step itself where it has no others."""
    ranks = sorted(
        (match[1] == "proc", int(match[2]), name)
        for name in listing.directories(step)
        if (match := _RANK.fullmatch(name)) and records_file(step / name, listing) is not None
    )
    if not ranks and _number(step) is not None and records_file(step, listing) is not None:
        return (step,)
    return tuple(step / name for _, _, name in ranks)


def _number(path: Path) -> int | None:
    """The number of a step, by the name of its directory."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else None


def _is_records(path: Path) -> bool:
    try:
        with opened(str(path)) as (file, _):
            head = file.read(_HEAD)
    except AccError:
        return False
    return HEAD.match(head) is not None and b'"framework"' in head
