"""What a whole run says: its roots in execution order, what follows from each, and the lines that say so."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..reporting.diagnosis import Diagnosis, Root
from ..reporting.row import Cause, Row
from ..reporting.view import View
from .inheritance import shown
from .shares import shares
from .standing import Standing

if TYPE_CHECKING:
    from ..mapping.pair import Pair, Plan

MOST_LINES = 8
"""Roots that the summary has a line for."""
STEPS_NAMED = 4


class Ledger(View):
    """Takes the rows of a run in any order; keeps roots whole, and of every other pair a few numbers.

    A view, so that it is fed as reports are; it writes nothing.
    """

    def __init__(self) -> None:
        self._standings: dict[int, Standing] = {}
        self._causes: dict[int, Cause] = {}
        self._roots: dict[int, Row] = {}

    def add(self, row: Row) -> None:
        """Take a row into account; those of people's own tests and of single operators say nothing here."""
        if row.number is None or row.case or row.verdict == "unmapped":
            return
        cause = row.cause
        if cause is None and row.verdict in ("fail", "inherited", "known"):
            return
        self._standings[row.number] = Standing.of(row, row.number)
        if cause is not None:
            self._causes[row.number] = cause
            if cause.kind == "root":
                self._roots[row.number] = row

    def diagnosis(self, plan: Plan) -> Diagnosis:
        """What the rows so far say of the run."""
        inherited = Counter(one.root for one in self._causes.values() if one.kind == "inherited")
        below: dict[int, float] = defaultdict(float)
        for number, cause in self._causes.items():
            if cause.kind == "inherited" and cause.root is not None:
                below[cause.root] = max(below[cause.root], self._standings[number].level)
        explained, finals = self._shares(plan)
        roots = []
        for numbers in self._operators(plan):
            first = numbers[0]
            row, cause = self._roots[first], self._causes[first]
            level = max(self._standings[one].level for one in numbers)
            most = max((below[one] for one in numbers if one in below), default=0.0)
            amplification = most / level if most and math.isfinite(most) and 0 < level < math.inf else None
            shared = [explained[one] for one in numbers if one in explained]
            found = _Found(
                row,
                cause,
                sum(inherited[one] for one in numbers),
                amplification,
                sum(shared) if shared else None,
                finals.get(first, ""),
            )
            roots.append(found.root(first))
        guessed = any(number in plan.by_order for number in self._causes)
        return Diagnosis(tuple(roots), sum(inherited.values()), plan.lineage, _notes(plan, roots, guessed))

    def _operators(self, plan: Plan) -> list[list[int]]:
        """Roots that are tensors of one operator at one step, together; in execution order."""
        found: dict[object, list[int]] = {}
        for number in sorted(self._roots):
            pair = plan.pairs[number]
            key = pair.graph, pair.step, pair.rank, pair.mine.node, self._causes[number].root_name
            found.setdefault(key, []).append(number)
        return list(found.values())

    def _shares(self, plan: Plan) -> tuple[dict[int, float], dict[int, str]]:
        """The shares of roots in the error of their step's final output, and the name of that output."""
        found: dict[int, float] = {}
        finals: dict[int, str] = {}
        steps: dict[object, list[int]] = defaultdict(list)
        for number in sorted(self._standings):
            if number < len(plan.pairs) and self._standings[number].compared:
                pair = plan.pairs[number]
                steps[pair.graph, pair.step].append(number)
        for numbers in steps.values():
            roots = [number for number in numbers if number in self._roots]
            if not roots:
                continue
            last = {plan.pairs[number].rank: number for number in numbers}
            for rank, final in last.items():
                mine = [one for one in roots if rank is None or plan.pairs[one].rank in (rank, None)]
                part = shares(final, numbers[0], plan.parents, self._standings, self._causes)
                name = self._standings[final].name
                for number in mine:
                    if final in self._causes:
                        found[number] = max(found.get(number, 0.0), part.get(number, 0.0))
                    finals[number] = name
        return found, finals


@dataclass(frozen=True, slots=True)
class _Found:
    row: Row
    cause: Cause
    inherited: int
    amplification: float | None
    share: float | None
    final: str

    def root(self, number: int) -> Root:
        name = self.cause.root_name or self.row.name
        return Root(
            number,
            name,
            self.row.test_id,
            self.row,
            self.inherited,
            self.amplification,
            self.share,
            self.cause.basis,
            self._sentence(name),
        )

    def _sentence(self, name: str) -> str:
        row = self.row
        kind = row.mine.op_type or row.golden.op_type if name == row.name else ""
        where = [f"step {row.step}"] if row.step != "" else []
        where += [f"rank {row.rank}"] if row.rank else []
        where += [row.graph] if row.graph else []
        where += [row.layer] if row.layer and row.layer != row.graph else []
        seen = "" if name == row.name else f" (first seen at {shown(row.name)})"
        count = self.inherited
        said = [f"{count} pair{'' if count == 1 else 's'} inherit{'s' if count == 1 else ''} from it"]
        if self.amplification is not None and count:
            said.append(f"at most {self.amplification:.2g} times its error there")
        if self.share is not None:
            said.append(f"explains {self.share:.0%} of the error of {shown(self.final)}")
        elif self.final:
            said.append(f"the final output {shown(self.final)} is within its bounds")
        about = f"{shown(name)}{f' ({shown(kind)})' if kind else ''} {' '.join(map(shown, where))}{seen}"
        return f"{about}: {', '.join(said)}; {self.cause.text or row.sentence}"


def root_lines(diagnosis: Diagnosis, plan: Plan) -> list[str]:
    """A line for each root, which begins with `root cause: `.

    Of more than `MOST_LINES` an operator has one line for all steps and ranks, and what is beyond that
    number is counted; then comes what has to be known of how they were found.
    """
    if len(diagnosis.roots) <= MOST_LINES:
        lines = [f"root cause: {root.sentence}" for root in diagnosis.roots]
        return lines + [f"root causes: {note}" for note in diagnosis.notes]
    groups: dict[object, list[Root]] = {}
    seen: Counter[object] = Counter()
    for root in diagnosis.roots:
        pair = plan.pairs[root.number]
        place = pair.graph, pair.layer, _below_top(pair), pair.mine.op_type
        # Two of a step and rank are two operators, whatever their names have in common.
        here = place, pair.step, pair.rank
        groups.setdefault((place, seen[here]), []).append(root)
        seen[here] += 1
    lines = []
    for roots in list(groups.values())[:MOST_LINES]:
        lines.append(f"root cause: {roots[0].sentence}{_again(roots)}")
    if len(groups) > MOST_LINES:
        lines.append(f"root cause: and {len(groups) - MOST_LINES} more operators")
    return lines + [f"root causes: {note}" for note in diagnosis.notes]


def _below_top(pair: Pair) -> str:
    """Where an operator is in its layer: prefill and decode count their layers on."""
    return pair.mine.node.partition("/")[2] or pair.mine.op_type or pair.mine.node


def _again(roots: Sequence[Root]) -> str:
    """The other steps and ranks of the same operator, in words."""
    first = roots[0].row
    steps = [str(root.row.step) for root in roots if root.row.step != first.step]
    ranks = [root.row.rank for root in roots if root.row.rank != first.rank]
    said = []
    for what, found in (("step", list(dict.fromkeys(steps))), ("rank", list(dict.fromkeys(ranks)))):
        if found:
            more = f" and {len(found) - STEPS_NAMED} more" if len(found) > STEPS_NAMED else ""
            said.append(f"{what}{'s' if len(found) > 1 else ''} {', '.join(found[:STEPS_NAMED])}{more}")
    return f"; again at {' and '.join(said)}" if said else ""


def _notes(plan: Plan, roots: Sequence[Root], guessed: bool) -> tuple[str, ...]:
    """What has to be known of how the roots were found."""
    notes = []
    if guessed:
        notes.append(
            f"what a pair computes from is known by {plan.lineage or 'nothing'}; by execution order a "
            "root is where the error starts or grows tenfold (rate of change)"
        )
    unknown = sum(1 for root in roots if not _cause(root).local and root.basis != "local")
    if unknown and not guessed:
        notes.append(f"{unknown} of {len(roots)} could not be computed again on mine's own inputs")
    return tuple(notes)


def _cause(root: Root) -> Cause:
    assert root.row.cause is not None
    return root.row.cause
