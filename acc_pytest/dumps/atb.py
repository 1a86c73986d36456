"""Dumps of the ATB probe, of every era: `ait_dump*` and `msit_dump*` with `tensors`, `model` and `layer`, and
`atb_dump_data` with `data` and `info`.

The number of a token directory counts executions of an operation, so which step it is must be decided
(`token_policy`). A dump usually has one model for the prefill and one for decoding.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from ..errors import DumpError
from ..tensors.ref import TensorRef
from ..topology.atb_tree import TopLevel, joined, top_level
from ..topology.tree import Node, Tree
from .atb_files import AtbFiles, AtbLayout
from .atb_reports import AtbReports
from .base import Dump, Rank, Slot, Step, StepLabel
from .evidence import TokenEvidence, gather
from .listing import Listing
from .naming import stable_name
from .ranks import Worker, select
from .token_policy import WARMUP, Facts, decide

COMMUNICATION = re.compile(r"AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|LinearParallel")
"""Names of operators that compute from the tensors of all ranks."""
_LOOKED_AT = 4
"""Steps per model whose first tensors are read as evidence."""
_STALE = "outputs saved before the operations ran (-time 0) hold stale memory and are not compared"
_WITH_TOKENS = frozenset({"atb", "torch"})
"""Kinds of dumps whose first tensors are token ids; a hand-picked tensor says nothing of the sequence."""
_FURTHEST_SHIFT = 8
"""How far the base ids of two ranks of one run may differ."""


class AtbDump(Dump):
    """An ATB dump; opening lists the token directories and reads the topology, nothing else but token ids.

    `models` are the trees of the model reports in order of their first id: prefill, decode. A dump
    without any tensor opens with its models and no steps, and says so in `notes`.
    """

    kind = "atb"
    models: tuple[Tree, ...]

    def __init__(self, layout: AtbLayout, listing: Listing, *, token_policy: str, other: Dump | None) -> None:
        self.root = layout.root
        self.name = stable_name(layout.root.name, "atb_dump")
        self.forced = bool(layout.token)
        self._layout = layout
        self._files = AtbFiles(layout.data, listing)
        workers, strange = self._files.workers()
        notes = [f"left out, not named {{device}}_{{pid}}: {', '.join(strange)}"] if strange else []
        by_pid = (worker.name for worker in workers if str(worker.pid) == layout.pid.rpartition("_")[2])
        named = layout.worker or next(by_pid, "")
        reports = AtbReports(layout, listing, workers, named)
        notes += reports.notes
        self.ranks = self._ranks(workers, named, reports, notes)
        self._shifts = {rank.name: self._shift(rank) for rank in self.ranks}
        self.models = reports.trees(self._files, self.ranks[0].name if self.ranks else "")
        self.steps = self._steps(token_policy, other, notes)
        self.notes = tuple(notes)

    def tensors(self, step: Step, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        """See `Dump.tensors`. Inputs are those before execution, outputs those after, else the other way."""
        return self._tensors(step.directory, rank, node)

    def _tensors(self, token: str, rank: Rank, node: Node) -> Mapping[Slot, TensorRef]:
        if not node.path:
            return {}
        path = _shifted(node.path, self._shifts[rank.name])
        if _STALE not in self.notes and self._files.stale_outputs(rank.name, token, path):
            self.notes += (_STALE,)
        return self._files.slots(rank.name, token, path)

    def _ranks(
        self, workers: Sequence[Worker], named: str, reports: AtbReports, notes: list[str]
    ) -> tuple[Rank, ...]:
        used = [worker for worker in workers if reports.ran_in(self._files.executions(worker.name))]
        if left := [worker.name for worker in workers if worker not in used]:
            notes.append(f"left out, no operation of the model in them: {', '.join(left)}")
        kept, dropped = select(
            used,
            parent=self._layout.data,
            root=self.root,
            named=named,
            parallel=any(COMMUNICATION.search(kind) for kind in reports.op_types()),
        )
        notes += dropped
        return tuple(Rank(index, worker.name) for index, worker in enumerate(kept))

    def _all_top_level(self, rank: Rank) -> frozenset[TopLevel]:
        return frozenset(top for tops in self._files.executions(rank.name).values() for top in tops)

    def _shift(self, rank: Rank) -> int:
        """By how much the base ids of `rank` differ from the first rank's; a stray may run on one only."""
        first, theirs = self._all_top_level(self.ranks[0]), self._all_top_level(rank)
        if first == theirs:
            return 0
        shifts = range(-_FURTHEST_SHIFT, _FURTHEST_SHIFT + 1)
        return max(shifts, key=lambda by: (len({(n + by, kind) for n, kind in first} & theirs), -abs(by)))

    def _steps(self, policy: str, other: Dump | None, notes: list[str]) -> tuple[Step, ...]:
        ran = self._files.executions(self.ranks[0].name) if self.ranks else {}
        names = {int(token): token for token in ran}
        present = {int(token): models for token, tops in ran.items() if (models := self._models_of(tops))}
        if not present:
            notes.append("no tensor of any operation was dumped; dump again with --type model tensor")
        self._check_named(present)
        facts = Facts(len(self.models), present, self._evidence(present, names), _evidence_of(other))
        decision = decide(policy, facts)
        notes += decision.notes
        whole = self.models[0]
        if len(self.models) > 1:
            whole = joined("+".join(tree.model for tree in self.models), self.models)
        steps = tuple(
            Step(item.label, whole if item.model is None else self.models[item.model], names[item.directory])
            for item in decision.steps
        )
        if not self._layout.token:
            _refuse_warmup_alone(steps, other)
            return steps
        asked_for = tuple(step for step in steps if step.directory == self._layout.token)
        return asked_for or (Step(int(self._layout.token), whole, self._layout.token),)

    def _models_of(self, tops: frozenset[TopLevel]) -> frozenset[int]:
        here = {f"{number}_{kind}" for number, kind in tops}
        return frozenset(
            index
            for index, tree in enumerate(self.models)
            if any(child.path in here for child in tree.root.children)
        )

    def _check_named(self, present: Mapping[int, frozenset[int]]) -> None:
        token = self._layout.token
        if token and int(token) not in present:
            raise DumpError(
                f"{self._layout.worker}/{token}: holds no operation of the model; "
                f"token directories that do: {', '.join(map(str, sorted(present))) or 'none'}"
            )

    def _evidence(
        self, present: Mapping[int, frozenset[int]], names: Mapping[int, str]
    ) -> dict[tuple[int, int], TokenEvidence]:
        evidence: dict[tuple[int, int], TokenEvidence] = {}
        for model, tree in enumerate(self.models):
            for number in [number for number in sorted(present) if model in present[number]][:_LOOKED_AT]:
                slots_of = functools.partial(self._tensors, names[number], self.ranks[0])
                evidence[number, model] = gather(tree, slots_of)
        return evidence


def _refuse_warmup_alone(steps: Sequence[Step], other: Dump | None) -> None:
    labels = {step.label for step in other.steps} if other else set()
    if labels and WARMUP not in labels and steps and all(step.label == WARMUP for step in steps):
        raise DumpError(
            "holds only the warm-up run (directory 0), which golden does not have; dump later "
            "executions too (-er 0,3), or give --acc-token-policy no-warmup if it is not a warm-up"
        )


def _evidence_of(other: Dump | None) -> dict[StepLabel, TokenEvidence]:
    if other is None or other.kind not in _WITH_TOKENS or not other.ranks:
        return {}
    rank = other.ranks[0]
    steps = other.steps[: 2 * _LOOKED_AT]
    return {step.label: gather(step.tree, functools.partial(other.tensors, step, rank)) for step in steps}


def _shifted(path: str, shift: int) -> str:
    top, slash, below = path.partition("/")
    parsed = top_level(top) if shift else None
    return f"{parsed[0] + shift}_{parsed[1]}{slash}{below}" if parsed else path
