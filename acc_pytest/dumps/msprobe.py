"""Dumps of msprobe (`PrecisionDebugger`) of a torch model: modules, functions, gradients, saved values.

    {root}/step{N}/{rank{R} | proc{PID}}/{dump.json, construct.json, stack.json, dump_tensor_data/*.pt}

What was recorded stands in `dump.json`; a tensor is its file where it has one, else its statistics there.
Paths of the machine that wrote the dump are never opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from ..errors import DumpError, FormatError
from ..tensors.msprobe_records import Entry, RecordedTensor, Records, fit, json_of, records_in
from ..tensors.ref import TensorRef
from ..tensors.stored_crc import stored_crc
from ..topology.tree import Node
from .base import Dump, Rank, Slot, Step
from .listing import Listing
from .msprobe_calls import MsprobeCalls, calls_of
from .msprobe_files import RECORDS, TENSORS, MsprobeLayout, records_file
from .msprobe_functions import Functions
from .msprobe_in_place import fingerprint
from .msprobe_stacks import source_lines
from .recorded import RecordedDump
from .torch_manifest import SavedTensor

_CONSTRUCT = "construct.json"
_NAMED = 3
"""Examples in a sentence."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A step on one rank: its directory, its file of records, the calls in it, and its tensor files."""

    home: Path
    file: Path
    records: Records
    calls: MsprobeCalls
    files: frozenset[str]


class MsprobeDump(RecordedDump):
    """A dump of msprobe. A module's gradients are nodes of their own: `{module}.backward`."""

    kind = "msprobe"
    _recorded: dict[tuple[str, str], _Recorded]

    def __init__(self, layout: MsprobeLayout, listing: Listing, other: Dump | None = None) -> None:
        """`other` is the golden: functions that both sides called have one name."""
        notes: list[str] = []
        golden = other._recorded if isinstance(other, MsprobeDump) else {}
        steps = _steps(layout, listing, notes, _Golden(golden))
        self._recorded = {
            (str(number), rank): found for number, ranks in steps.items() for rank, found in ranks.items()
        }
        notes += _notes(self._recorded.values())
        super().__init__(
            layout.root,
            {
                number: {rank: found.calls.records for rank, found in ranks.items()}
                for number, ranks in steps.items()
            },
            notes=notes,
        )
        self.forced = layout.named

    def dumped_weights(self, rank: Rank) -> Mapping[str, TensorRef]:
        """The parameters that the records of the first step of a rank hold, by full name."""
        found = (self._recorded.get((step.directory, rank.name)) for step in self.steps)
        return next((one.calls.parameters for one in found if one is not None), {})

    def placements(self, step: Step, rank: Rank, node: Node, slot: Slot) -> tuple[str, ...]:
        """How a tensor is spread over each dimension of its mesh of devices: `Shard(0)`, `Replicate`,
        `Partial(sum)`. Empty for what is no DTensor."""
        ref = self.tensors(step, rank, node).get(slot)
        tensor = self._tensor(step, rank, ref) if ref is not None else None
        return tensor.placements if tensor is not None else ()

    def is_partial(self, step: Step, rank: Rank, node: Node, slot: Slot) -> bool:
        """As the placements of a DTensor say."""
        return any(place.startswith("Partial") for place in self.placements(step, rank, node, slot))

    def source_line(self, step: Step, rank: Rank, node: Node) -> str:
        """Where the program made a call, by `stack.json`: `model.py:7 in forward: x = f(x)`; empty where
        nothing says so."""
        found = self._recorded.get((step.directory, rank.name))
        name = found.calls.names.get(node.path) if found is not None else None
        return source_lines(str(found.home)).get(name, "") if found is not None and name else ""

    def _tensor(self, step: Step, rank: Rank, ref: TensorRef) -> RecordedTensor | None:
        found = self._recorded.get((step.directory, rank.name))
        if found is None:
            return None
        return found.records.tensors.get(ref.member or Path(ref.path).stem)

    def _saved(self, step: Step) -> Callable[[Node, TensorRef], SavedTensor | None]:
        """By the check sum that msprobe made of the bytes, or that of the file."""

        def saved(node: Node, ref: TensorRef) -> SavedTensor | None:
            tensor = self._tensor(step, self.ranks[0], ref)
            if tensor is None:
                return None
            dtype = tensor.dtype.removeprefix("torch.")
            return SavedTensor(dtype=dtype, shape=tensor.shape, crc32=crc(ref, tensor))

        found = self._recorded.get((step.directory, self.ranks[0].name))
        crc = _crc if found is not None and found.records.task == "tensor" else _crc_of_record
        return saved


def _crc(ref: TensorRef, tensor: RecordedTensor) -> int | None:
    """The CRC-32 of the bytes of a tensor."""
    stored = None if ref.member else stored_crc(ref.path)
    return _crc_of_record(ref, tensor) if stored is None else stored[0]


def _crc_of_record(ref: TensorRef, tensor: RecordedTensor) -> int | None:
    """A number that is equal for equal tensors, and hardly ever for others: of what was recorded of each."""
    mark = fingerprint(tensor)
    if mark is None:
        return None
    return int.from_bytes(blake2b(repr(mark).encode(), digest_size=8).digest(), "big")


class _Golden:
    """The functions of golden by the numbers of steps and the places of ranks; of its first where it has not
    as many."""

    def __init__(self, recorded: Mapping[tuple[str, str], _Recorded]) -> None:
        self._steps: dict[str, list[Functions]] = {}
        for (step, _), found in recorded.items():
            self._steps.setdefault(step, []).append(found.calls.functions)

    def functions(self, step: int, rank: int) -> Functions:
        ranks = self._steps.get(str(step)) or next(iter(self._steps.values()), [])
        return ranks[rank] if rank < len(ranks) else ranks[0] if ranks else {}


def _steps(
    layout: MsprobeLayout, listing: Listing, notes: list[str], golden: _Golden
) -> dict[int, dict[str, _Recorded]]:
    """What was recorded of each step, by the names of ranks; files that are broken are left out."""
    broken: list[str] = []
    steps: dict[int, dict[str, _Recorded]] = {}
    names: list[str] = []
    for number, homes in layout.steps:
        own = [home.name for home in homes]
        # Processes of later steps may have other numbers.
        same = not names or set(own) <= set(names) or len(own) > len(names)
        ranks = own if same else names
        names = names if len(names) >= len(own) else own
        for place, (rank, home) in enumerate(zip(ranks, homes)):
            functions = golden.functions(number, place)
            try:
                steps.setdefault(number, {})[rank] = _recorded(home, listing, notes, functions)
            except FormatError as error:
                broken.append(str(error))
    found = {number: ranks for number, ranks in steps.items() if ranks}
    if not found:
        raise FormatError(broken[0] if broken else f"{layout.root}: holds no records of msprobe")
    notes += [f"left out: {error}" for error in broken]
    return found


def _recorded(home: Path, listing: Listing, notes: list[str], golden: Functions) -> _Recorded:
    file = records_file(home, listing)
    if file is None:
        raise FormatError(f"{home}: holds neither of {', '.join(RECORDS)} of msprobe")
    records = records_in(str(file))
    if records.framework not in ("", "pytorch"):
        raise DumpError(f"{file}: was written for {records.framework}; only dumps of pytorch are read")
    folder, files = home / TENSORS, frozenset(listing.files(home / TENSORS))

    def ref_of(entry: Entry) -> TensorRef:
        if entry.tensor.file and entry.tensor.file in files:
            return TensorRef(f"{folder}/{entry.tensor.file}")
        return TensorRef(str(file), entry.member)

    try:
        parents = _parents(home, listing)
    except FormatError as error:
        parents = {}
        notes.append(f"nothing says which module called what: {error}")
    return _Recorded(home, file, records, calls_of(records, parents, ref_of, golden), files)


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
        one = parent[0] if isinstance(parent, list) and parent else parent
        if one is None or isinstance(one, str):
            parents[fit(name)] = None if one is None else fit(one)
    return parents


def _notes(recorded: Iterable[_Recorded]) -> list[str]:
    """What a user should know of the dump, each kind once."""
    notes: dict[str, list[str]] = {}
    for found in recorded:
        home, records, calls = found.home, found.records, found.calls
        where = f"{home.parent.name}/{home.name}"
        if not records.calls:
            structure = "task structure: calls are listed and no tensor was recorded, so nothing is compared"
            said = structure if records.task == "structure" else "no call was recorded"
            notes.setdefault(said, []).append(where)
        if calls.unknown:
            said = "records with unknown names were left out"
            notes.setdefault(said, []).append(f"{where}: {calls.unknown}")
        if calls.overwritten:
            said = "inputs are left out that were taken when their modules had overwritten them (26.1)"
            notes.setdefault(said, []).append(
                f"{where}: {len(calls.overwritten)}, the first is {calls.overwritten[0]}"
            )
        missing, extra = _files(found)
        if missing:
            said = f"tensor files that {found.file.name} names are not there; their statistics are compared"
            notes.setdefault(said, []).append(f"{where}: {missing}")
        if extra:
            said = f"tensor files that {found.file.name} does not name: was the program killed before stop()?"
            notes.setdefault(said, []).append(f"{where}: {extra}")
    return [f"{said} ({_listed(places)})" for said, places in notes.items()]


def _files(found: _Recorded) -> tuple[int, int]:
    """How many files are named and not there, and how many are there and not named."""
    named = {tensor.file for tensor in found.records.tensors.values() if tensor.file}
    return len(named - found.files), len(found.files - named)


def _listed(places: list[str]) -> str:
    return ", ".join(places[:_NAMED]) + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "")
