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

    def __init__(self, layout: MsprobeLayout, listing: Listing, other: Dump | None = None) -> None:
        """`other` is the golden: functions that both sides called have one name."""
        notes: list[str] = []
        golden = other._recorded if isinstance(other, MsprobeDump) else {}
        steps = steps_of(layout, listing, notes, GoldenFunctions(golden))
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


def _notes(recorded: Iterable[Recorded]) -> list[str]:
    """What a user should know of the dump, each kind once."""
    notes: dict[str, list[str]] = {}
    by_home: dict[Path, list[Recorded]] = {}
    for found in recorded:
        by_home.setdefault(found.home, []).append(found)
    for home, passes in by_home.items():
        found, records = passes[0], passes[0].records
        where = f"{home.parent.name}/{home.name}"
        if not records.calls:
            structure = "task structure: calls are listed and no tensor was recorded, so nothing is compared"
            said = structure if records.task == "structure" else "no call was recorded"
            notes.setdefault(said, []).append(where)
        if found.unknown:
            said = "records with unknown names were left out"
            notes.setdefault(said, []).append(f"{where}: {found.unknown}")
        lost = [member for each in passes for member in each.calls.overwritten]
        if lost:
            said = "inputs are left out that were taken when their modules had overwritten them (26.1)"
            notes.setdefault(said, []).append(f"{where}: {len(lost)}, the first is {lost[0]}")
        missing, extra = _files(found)
        if missing:
            said = f"tensor files that {found.file.name} names are not there; their statistics are compared"
            notes.setdefault(said, []).append(f"{where}: {missing}")
        if extra:
            said = f"tensor files that {found.file.name} does not name: was the program killed before stop()?"
            notes.setdefault(said, []).append(f"{where}: {extra}")
    return [f"{said} ({_listed(places)})" for said, places in notes.items()]


def _files(found: Recorded) -> tuple[int, int]:
    """How many files are named and not there, and how many are there and not named."""
    named = {tensor.file for tensor in found.records.tensors.values() if tensor.file}
    return len(named - found.files), len(found.files - named)


def _listed(places: list[str]) -> str:
    return ", ".join(places[:_NAMED]) + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "")
