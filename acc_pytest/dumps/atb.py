"""Dumps of the ATB probe, of every era: `ait_dump*` and `msit_dump*` with `tensors`, `model` and `layer`, and
`atb_dump_data` with `data` and `info`.

The number of a token directory counts executions of an operation, so which step it is must be decided
(`token_policy`). A dump usually has one model for the prefill and one for decoding.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..tensors.ref import TensorRef
from ..topology.atb_tree import top_level
from ..topology.tree import Node, Tree
from .atb_files import AtbFiles, AtbLayout, Executions, operations_in
from .atb_reports import AtbReports, read_reports, trees_of
from .atb_steps import steps_of
from .base import Dump, Rank, Slot, Step, StepLabel
from .listing import Listing
from .naming import stable_name
from .ranks import Worker, atb_worker, select

COMMUNICATION = re.compile(r"AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|LinearParallel")
"""Names of operators that compute from the tensors of all ranks."""
_STALE = "outputs saved before the operations ran (-time 0) hold stale memory and are not compared"
_FURTHEST_SHIFT = 8
"""Largest difference of the base ids of two ranks of one run."""


class AtbDump(Dump):
    """An ATB dump; made by `open_atb`.

    `models` are the trees of the model reports in order of their first id: prefill, decode. A dump
    without any tensor opens with its models and no steps, and says so in `notes`.
    """

    kind = "atb"

    def __init__(
        self,
        layout: AtbLayout,
        files: AtbFiles,
        shifts: Mapping[str, int],
        models: Sequence[Tree],
        steps: Sequence[Step],
        notes: Sequence[str],
    ) -> None:
        """`shifts` says of each rank, by name, how far its base ids are from those of the trees."""
        self.root = layout.root
        self.name = stable_name(layout.root.name, "atb_dump")
        self.forced = bool(layout.token)
        self.ranks = tuple(Rank(index, name) for index, name in enumerate(shifts))
        self.models = tuple(models)
        self.steps = tuple(steps)
        self.notes = tuple(notes)
        self._files = files
        self._shifts = shifts
        self._dumped_in: dict[Tree, set[str]] = defaultdict(set)

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        """See `Dump.tensors`. Inputs are those before execution, outputs those after, else the other way."""
        path = _shifted(node.path, self._shifts[rank.name])
        if _STALE not in self.notes and self._files.stale_outputs(rank.name, step.directory, path):
            self.notes += (_STALE,)
        return self._files.slots(rank.name, step.directory, path)

    def asks_for(self, label: StepLabel) -> bool:
        """All ranks run the same steps."""
        return any(step.label == label for step in self.steps)

    def absent(self, step: Step, rank: Rank) -> Mapping[str, Sequence[str]]:
        """The outputs that the topology gives an operator, where it was dumped without them though others of
        the step have theirs, or in another execution only."""
        lacking, has_outputs = self._lacking[step, rank]
        elsewhere = self._dumped_in[step.tree]
        return {path: files for path, files in lacking.items() if path in elsewhere} if has_outputs else {}

    @functools.cached_property
    def _lacking(self) -> Mapping[tuple[Step, Rank], tuple[Mapping[str, Sequence[str]], bool]]:
        """By step and rank the outputs of operators that have no file, and whether any have one."""
        by_step = {}
        for step, rank in itertools.product(self.steps, self.ranks):
            lacking, has_outputs = {}, False
            for node in step.tree.walk():
                slots = self.tensors(step, rank, node)
                if slots:
                    self._dumped_in[step.tree].add(node.path)
                indices = {slot.index[0] for slot, ref in slots.items() if slot.kind == "output"}
                has_outputs = has_outputs or bool(indices)
                if not any(ref.member for ref in slots.values()) and len(indices) < len(node.outputs):
                    names = (f"outtensor{i}.bin" for i in range(len(node.outputs)) if i not in indices)
                    lacking[node.path] = tuple(names)
            by_step[step, rank] = lacking, has_outputs
        return by_step


def open_atb(layout: AtbLayout, listing: Listing, *, token_policy: str, golden: Dump | None) -> AtbDump:
    """List the token directories and read the topology; of tensors nothing is read but token ids.

    Raises what `open_dump` raises.
    """
    files = AtbFiles(layout.data, listing)
    processes = files.processes()
    strange = [name for name in listing.directories(layout.data) if not atb_worker(name)]
    notes = [f"left out, not named {{device}}_{{pid}}: {', '.join(strange)}"] if strange else []
    named = _named(layout, processes)
    reports = read_reports(layout, listing, [*processes], named, notes)
    workers = _ranks(layout, processes, reports, named, notes)
    first, ran = (workers[0].name, processes[workers[0]]) if workers else ("", {})
    models = trees_of(reports, files, first, ran)

    def slots_in(token: str, node: Node) -> Mapping[Slot, TensorRef]:
        return files.slots(first, token, node.path)

    steps = steps_of(layout, models, ran, slots_in, token_policy, golden, notes)
    shifts = {worker.name: _shift(ran, processes[worker]) for worker in workers}
    return AtbDump(layout, files, shifts, models, steps, notes)


def _named(layout: AtbLayout, workers: Iterable[Worker]) -> str:
    """The process directory that the user's path means, empty where it means none."""
    pid = layout.pid.rpartition("_")[2]
    return layout.worker or next((worker.name for worker in workers if str(worker.pid) == pid), "")


def _ranks(
    layout: AtbLayout,
    processes: Mapping[Worker, Executions],
    reports: AtbReports,
    named: str,
    notes: list[str],
) -> list[Worker]:
    """Processes of one run in which operations of the models ran; `notes` are told of those left out."""
    kinds = {op.op_type for model in reports.models for op in model.operations}
    used = [
        worker
        for worker, ran in processes.items()
        if any(kind in kinds for tops in ran.values() for _, kind in tops)
    ]
    if left := [worker.name for worker in processes if worker not in used]:
        notes.append(f"left out, no operation of the model in them: {', '.join(left)}")
    ranks, dropped = select(
        used,
        parent=layout.data,
        root=layout.root,
        named=named,
        parallel=any(map(COMMUNICATION.search, reports.op_types())),
    )
    notes += dropped
    return ranks


def _shift(first_ran: Executions, ran: Executions) -> int:
    """By how much the base ids of a rank differ from the first rank's; a stray may run on one only."""
    first, theirs = operations_in(first_ran), operations_in(ran)
    if first == theirs:
        return 0
    shifts = range(-_FURTHEST_SHIFT, _FURTHEST_SHIFT + 1)
    return max(shifts, key=lambda by: (len({(n + by, kind) for n, kind in first} & theirs), -abs(by)))


def _shifted(path: str, shift: int) -> str:
    top, slash, inner = path.partition("/")
    parsed = top_level(top) if shift else None
    return f"{parsed[0] + shift}_{parsed[1]}{slash}{inner}" if parsed else path
