"""A tensor file against a dump: the tensor of the dump that it is.

Where the file lies in an ATB dump, its place names node and slot, and it is mapped with the rest of that
dump. Any other file is the only output of golden of its shape; where there are several, nothing is compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..base.imports import torch
from ..base.reason import Reason, joined
from ..dumps.base import Dump, Slot, Step
from ..errors import AccError
from ..tensors.ref import TensorRef
from ..topology.tree import Node
from .dump_step import DumpStep
from .evidence import Evidence
from .match import Export, Match, Names, ViewRule
from .pair import Pair, Plan, Unmapped
from .tables import Tables

_LAST = ViewRule("last"), ViewRule("last")
"""A model may keep the last token alone, so a file of one row may belong to a step of many tokens."""


def is_lone_file(golden: Dump, mine: Dump) -> bool:
    """Whether mine is one tensor without a node, and golden a dump of modules."""
    return golden.has_modules and mine.kind == "tensor" and len(_nodes(mine)) == 1


def plan_of_file(plan: Plan, mine: Dump) -> Plan:
    """The entries of a plan of a whole dump for the one file of it that is compared (`mine.only`)."""
    pairs = [pair for pair in plan.pairs if any(ref.path == mine.only for ref in pair.mine.refs)]
    entries: list[Unmapped] = []
    if not pairs:
        node = os.path.dirname(os.path.dirname(mine.only))
        lone = _unmapped(plan, mine, "only outputs that golden has too are compared")
        of_mine = [entry for entry in plan.unmapped if entry.side == "mine"]
        entries = [*(entry for entry in of_mine if node.endswith(f"/{entry.node}")), lone][:1]
    pairs = [replace(pair, order=order) for order, pair in enumerate(pairs)]
    return _with_pairs(plan, tuple(pairs), tuple(entries))


def plan_of_lone_file(golden: Dump, mine: Dump, tables: Tables) -> Plan:
    """The pair of a lone file with the one output of golden, of all steps, that has its shape."""
    candidates = list(_candidates(golden, mine))
    rivals = _distinct(candidates)
    empty = Plan.of_dumps(golden, mine, (), (), {})
    if not candidates:
        return _with_pairs(empty, (), (_unmapped(empty, mine, "no output of golden has its shape"),))
    if rivals:
        places = ((candidate.match.golden.node.path, candidate.step.label) for candidate in rivals)
        names = joined(", ", (Reason("{} of step {}", *place) for place in places))
        reason = Reason(
            "several tensors of golden have its shape ({}) and its place does not say which it is; "
            "leave it in the directories of its dump, or give one token directory or file of golden",
            names,
        )
        return _with_pairs(empty, (), (_unmapped(empty, mine, reason),))
    chosen = max(candidates, key=lambda candidate: candidate.match.golden.node.depth)
    return _with_pairs(empty, (_pair(chosen, tables),), ())


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
    [mine_node] = _nodes(mine)
    mine_step = DumpStep(mine, mine.steps[0])
    for step in golden.steps:
        evidence = Evidence(DumpStep(golden, step), mine_step)
        for node in step.tree.walk():
            for slot, ref in evidence.golden.slots(node).items():
                ends = Export(node, slot, "file"), Export(mine_node, Slot("output"), "file")
                match = Match(*ends, "file", "the only tensor of golden that has its shape", *_LAST)
                if slot.kind == "output" and not evidence.refusal(match):
                    yield _Candidate(step, evidence, match, ref)


def _distinct(candidates: list[_Candidate]) -> list[_Candidate]:
    """Two candidates with different numbers; empty where all hold the same ones, as where a module hands on
    the output of a module in it.
    """
    if not candidates:
        return []
    first = _numbers(candidates[0].ref)
    for candidate in candidates[1:]:
        numbers = _numbers(candidate.ref)
        if first is None or numbers is None or not torch.equal(first, numbers):
            return [candidates[0], candidate]
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


def _unmapped(plan: Plan, mine: Dump, reason: str) -> Unmapped:
    path = mine.only or str(mine.root)
    label = mine.steps[0].label if mine.steps else 0
    return Unmapped("mine", label, path, os.path.basename(path), "Tensor", reason)


def _with_pairs(plan: Plan, pairs: tuple[Pair, ...], unmapped: tuple[Unmapped, ...]) -> Plan:
    mapped = int(bool(pairs))
    return replace(
        plan,
        pairs=pairs,
        unmapped=unmapped,
        golden_total=1,
        golden_mapped=mapped,
        mine_total=1,
        mine_mapped=mapped,
    )
