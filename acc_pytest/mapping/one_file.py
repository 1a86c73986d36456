"""One tensor file against a dump: which tensor of the dump it is.

Where the file lies in an ATB dump, its place names node and slot, and it is mapped with the rest of that
dump. Any other file is the one output of golden that its shape allows; where several do, nothing is compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..dumps.base import Dump, Slot, Step
from ..dumps.modules import ModuleDump
from ..errors import AccError
from ..lazy_torch import torch
from ..tensors.ref import TensorRef
from ..topology.tree import Node
from .dump_step import DumpStep
from .evidence import Evidence
from .match import Match, ViewRule
from .naming import Names
from .pair import Pair, Plan, Unmapped
from .roles.export import Export
from .tables import Tables

_LAST = ViewRule("last"), ViewRule("last")
"""A model may keep the last token alone, so a file of one row may be of a step of many."""


def is_lone_file(golden: Dump, mine: Dump) -> bool:
    """Whether mine is one tensor that says nothing of itself, and golden a dump of modules."""
    return isinstance(golden, ModuleDump) and mine.kind == "tensor" and len(_nodes(mine)) == 1


def kept_for(made: Plan, mine: Dump) -> Plan:
    """Of the plan of a whole dump what is about the one file of it that was given (`mine.only`)."""
    pairs = [pair for pair in made.pairs if any(ref.path == mine.only for ref in pair.mine.refs)]
    unmapped: tuple[Unmapped, ...] = ()
    if not pairs:
        node = os.path.dirname(os.path.dirname(mine.only))
        left = [lone for lone in made.unmapped if lone.side == "mine" and node.endswith(f"/{lone.node}")]
        unmapped = tuple(left[:1]) or (_alone(made, mine, "only outputs that golden has too are compared"),)
    return _of_one(made, tuple(replace(pair, order=order) for order, pair in enumerate(pairs)), unmapped)


def plan_of_lone_file(golden: Dump, mine: Dump, tables: Tables) -> Plan:
    """The pair of a lone file with the one output of golden, of all steps, that has its shape."""
    candidates = list(_candidates(golden, mine))
    several = _distinct(candidates)
    empty = Plan.of_dumps(golden, mine, (), (), {})
    if not candidates:
        return _of_one(empty, (), (_alone(empty, mine, "no output of golden has its shape"),))
    if several:
        named = ", ".join(
            f"{candidate.match.golden.node.path} of step {candidate.step.label}" for candidate in several
        )
        reason = (
            f"several tensors of golden have its shape ({named}) and its place does not say which it is; "
            "leave it in the directories of its dump, or give one token directory or file of golden"
        )
        return _of_one(empty, (), (_alone(empty, mine, reason),))
    chosen = max(candidates, key=lambda candidate: candidate.match.golden.node.depth)
    return _of_one(empty, (_pair(chosen, tables),), ())


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """An output of golden of the right shape at a step."""

    step: Step
    evidence: Evidence
    match: Match
    ref: TensorRef


def _nodes(mine: Dump) -> list[Node]:
    step, rank = mine.steps[0], mine.ranks[0]
    return [node for node in step.tree.walk() if mine.tensors(step, rank, node)]


def _candidates(golden: Dump, mine: Dump) -> Iterator[_Candidate]:
    [other] = _nodes(mine)
    own = DumpStep(mine, mine.steps[0])
    for step in golden.steps:
        evidence = Evidence(DumpStep(golden, step), own)
        for node in step.tree.walk():
            for slot, ref in evidence.golden.slots(node).items():
                ends = Export(node, slot, "file"), Export(other, Slot("output"), "file")
                match = Match(*ends, "file", "the only tensor of golden that has its shape", *_LAST)
                if slot.kind == "output" and not evidence.refusal(match):
                    yield _Candidate(step, evidence, match, ref)


def _distinct(candidates: list[_Candidate]) -> list[_Candidate]:
    """Two candidates with different numbers; empty where all hold the same.

    They do where a module hands on what one in it made.
    """
    if not candidates:
        return []
    first = _numbers(candidates[0].ref)
    for other in candidates[1:]:
        numbers = _numbers(other.ref)
        if first is None or numbers is None or not torch.equal(first, numbers):
            return [candidates[0], other]
    return []


def _numbers(ref: TensorRef) -> torch.Tensor | None:
    try:
        return ref.open().reshape(-1)
    except AccError:
        return None


def _pair(chosen: _Candidate, tables: Tables) -> Pair:
    golden_ranks, mine_ranks, _ = chosen.evidence.rank_groups()[0]
    operands = chosen.evidence.operands(chosen.match, golden_ranks, mine_ranks)
    assert operands is not None  # its refusal was asked for
    golden, mine = operands
    name = Names((), tables).unique_id(chosen.match, None)
    match = chosen.match
    return Pair(name, chosen.step.label, None, "op", "model", 0, 0, match.policy, match.reason, golden, mine)


def _alone(made: Plan, mine: Dump, reason: str) -> Unmapped:
    path = mine.only or str(mine.root)
    label = mine.steps[0].label if mine.steps else 0
    return Unmapped("mine", label, path, os.path.basename(path), "Tensor", reason)


def _of_one(made: Plan, pairs: tuple[Pair, ...], unmapped: tuple[Unmapped, ...]) -> Plan:
    mapped = int(bool(pairs))
    return replace(
        made,
        pairs=pairs,
        unmapped=unmapped,
        golden_total=1,
        golden_mapped=mapped,
        mine_total=1,
        mine_mapped=mapped,
    )
