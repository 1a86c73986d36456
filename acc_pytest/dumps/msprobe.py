"""Dumps of msprobe (`PrecisionDebugger`) of a torch model: modules, functions, gradients, saved values.

    {root}/step{N}/{rank{R} | proc{PID}}/{dump.json, construct.json, stack.json, dump_tensor_data/*.pt}

What was recorded stands in `dump.json`; a tensor is its file where it has one, else its statistics there.
Paths of the machine that wrote the dump are never opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

from ..tensors.msprobe_records import RecordedTensor
from ..tensors.ref import TensorRef
from ..tensors.stored_crc import stored_crc
from ..topology.tree import Node
from .base import Dump, Rank, Slot, Step
from .listing import Listing
from .msprobe_files import MsprobeLayout
from .msprobe_in_place import fingerprint
from .msprobe_stacks import source_lines
from .msprobe_steps import GoldenFunctions, Recorded, steps_of
from .recorded import RecordedDump
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

    def placements(self, step: Step, rank: Rank, node: Node, slot: Slot) -> tuple[str, ...]:
        """The placements of a tensor on each dimension of its mesh of devices: `Shard(0)`, `Replicate`,
        `Partial(sum)`. Empty for what is no DTensor."""
        ref = self.tensors(step, rank, node).get(slot)
        tensor = self._tensor(step, rank, ref) if ref is not None else None
        return tensor.placements if tensor is not None else ()

    def is_partial(self, step: Step, rank: Rank, node: Node, slot: Slot) -> bool:
        """Whether the placements of a DTensor say so."""
        return any(place.startswith("Partial") for place in self.placements(step, rank, node, slot))

    def source_line(self, step: Step, rank: Rank, node: Node) -> str:
        """The line of the program that made a call, by `stack.json`: `model.py:7 in forward: x = f(x)`; empty
        where nothing says so."""
        recorded = self._recorded.get((step.directory, rank.name))
        name = recorded.calls.names.get(node.path) if recorded is not None else None
        return source_lines(str(recorded.home)).get(name, "") if recorded is not None and name else ""

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
    """The CRC-32 of the bytes of a tensor."""
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
            notes.setdefault(note, []).append(f"{where}: {len(lost)}, the first is {lost[0]}")
        missing, extra = _files(entry)
        if missing:
            note = f"tensor files that {entry.file.name} names are not there; their statistics are compared"
            notes.setdefault(note, []).append(f"{where}: {missing}")
        if extra:
            note = f"tensor files that {entry.file.name} does not name: was the program killed before stop()?"
            notes.setdefault(note, []).append(f"{where}: {extra}")
    return [f"{note} ({_listed(places)})" for note, places in notes.items()]


def _files(recorded: Recorded) -> tuple[int, int]:
    """The numbers of files that are named and absent, and of those that are present and not named."""
    named = {tensor.file for tensor in recorded.records.tensors.values() if tensor.file}
    return len(named - recorded.files), len(recorded.files - named)


def _listed(places: list[str]) -> str:
    return ", ".join(places[:_NAMED]) + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "")
