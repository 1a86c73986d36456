"""A run from its files of rows: the plan it had, and the row of every test, without any dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import AccError
from ..guard import guarded
from ..judging.standards import DEFAULT, THREE_WAY
from ..mapping.pair import Gap, Operand, Pair, Plan, Unmapped
from ..reporting.printable import escaped
from ..reporting.row import Row, RowSide
from ..reporting.rows_json import NO_LINKS, Links
from ..reporting.rows_reading import PlanFacts, StoredRows
from ..tensors.ref import TensorRef
from ..vocabulary import INCOMPLETE, selectable
from .one_run import check_one_run, incomplete, unfinished

_LONGEST_RANK = 9
"""Digits of a rank that the readers of dumps know."""
_NOT_STORED = Pair(
    "", 0, None, "", "", 0, 0, "", "", Operand("", "", "", "", ()), Operand("", "", "", "", ())
)
"""A placeholder for a pair without a row, so that the other pairs keep their numbers."""


@dataclass(frozen=True)
class StoredRun:
    """One run by its files of rows (of several shards of it, taken together).

    `pairs` are the rows of generated tests by number. `unpaired` are, by test id, the rows of other tests:
    of single operators, and of people's own. `ranks` says whether ids name the rank; `metrics` are the
    custom metrics that were measured, as they were given. `standard` is that of a run which noise was known
    of, else `default`. `incomplete` has a sentence for each part of the run that no file has.
    """

    title: Literal["comparison", "opcheck"]
    plan: Plan
    pairs: Mapping[int, Row] = field(default_factory=dict)
    unpaired: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    ranks: bool = False
    metrics: tuple[str, ...] = ()
    standard: str = "default"
    incomplete: tuple[str, ...] = ()


def stored_run(files: Sequence[StoredRows]) -> StoredRun:
    """The run of the given files; each holds the whole run or one shard of it.

    Raises `AccError` for files of different runs or plans, and for two that disagree on a test.
    """
    with guarded(f"making a run of the rows in {', '.join(file.path for file in files)}"):
        return _stored_run(files)


def _stored_run(files: Sequence[StoredRows]) -> StoredRun:
    check_one_run(files)
    first = files[0]
    facts = first.run.plan or PlanFacts()
    rows = _SortedRows(facts)
    for file in files:
        rows.take(file)
    return StoredRun(
        title=first.run.title,
        plan=_plan(facts, rows, _notes(files, facts, rows.pairs)),
        pairs=dict(sorted(rows.pairs.items())),
        unpaired=rows.unpaired,
        ranks=rows.ranks,
        metrics=_metrics(files),
        standard=THREE_WAY.name if first.run.settings.get("standard") == THREE_WAY.name else DEFAULT.name,
        incomplete=tuple(incomplete(files)),
    )


class _SortedRows:
    """The rows of all files: those of pairs and of unmapped nodes by number, those of other tests by id."""

    def __init__(self, facts: PlanFacts) -> None:
        self._facts = facts
        self.links: dict[int, Links] = {}
        self.pairs: dict[int, Row] = {}
        self.unmapped: dict[int, Row] = {}
        self.unpaired: dict[str, tuple[Row, ...]] = {}
        self.ranks = False

    def take(self, file: StoredRows) -> None:
        """Add the rows of a file. Raises `AccError` where it disagrees with one before it."""
        self.links |= file.links
        unpaired: dict[str, list[Row]] = {}
        for row in file.rows:
            if row.alone:
                self.unmapped[row.number or 0] = row
            elif (named := pair_id(row, self._facts.name)) is None:
                unpaired.setdefault(row.test_id, []).append(row)
            else:
                self.ranks |= named[1]
                self._take_pair(row, file.path)
        for test_id, rows in unpaired.items():
            if self.unpaired.setdefault(test_id, tuple(rows)) != tuple(rows):
                raise _disagreement(test_id, file.path)

    def _take_pair(self, row: Row, path: str) -> None:
        number = row.number or 0
        if number >= self._facts.pairs:
            raise AccError(
                f"{path}: {row.test_id:.200} has the number {row.number}, but the plan of its "
                f"run has {self._facts.pairs} pairs"
            )
        earlier = self.pairs.setdefault(number, row)
        # repr, because a NaN among the numbers does not equal itself
        if earlier is not row and repr(earlier) != repr(row):
            raise _disagreement(row.test_id, path)


def pair_id(row: Row, root: str) -> tuple[str, bool] | None:
    """The name of the pair of a generated test, and whether the id names the rank; `None` for other tests."""
    for rank in (f"rank{row.rank}::", "") if row.rank else ("",):
        prefix = f"{root}::step{row.step}::{rank}{selectable(row.layer)}::"
        if root and row.number is not None and row.test_id.startswith(prefix) and row.test_id.isprintable():
            return row.test_id[len(prefix) :], bool(rank)
    return None


def _disagreement(test_id: str, path: str) -> AccError:
    return AccError(
        f"{path}: holds another result of {test_id:.200} than an earlier file; give files of one run, or "
        "leave the older one out"
    )


def _plan(facts: PlanFacts, rows: _SortedRows, notes: tuple[str, ...]) -> Plan:
    size, links = facts.pairs, rows.links
    return Plan(
        golden_root=facts.golden_root,
        mine_root=facts.mine_root,
        golden_kind=facts.golden_kind,
        mine_kind=facts.mine_kind,
        name=escaped(facts.name),
        pairs=tuple(
            _pair(rows.pairs[number], facts.name) if number in rows.pairs else _NOT_STORED
            for number in range(size)
        ),
        unmapped=tuple(_unmapped(rows.unmapped[number]) for number in sorted(rows.unmapped)),
        notes=(*notes, *facts.notes),
        golden_total=facts.golden_total,
        golden_mapped=facts.golden_mapped,
        mine_total=facts.mine_total,
        mine_mapped=facts.mine_mapped,
        parents=_parents(links, size) if links else (),
        by_order=frozenset(number for number, link in links.items() if link.by_order),
        between={number: link.between for number, link in links.items() if link.between},
        unseen={number: link.unseen for number, link in links.items() if link.unseen},
        gaps={
            number: Gap(link.gap[0], link.gap[2:], link.gap[1])
            for number, link in links.items()
            if len(link.gap) > 1
        },
        lineage=facts.lineage,
        digest=facts.digest,
    )


def _parents(links: Mapping[int, Links], size: int) -> tuple[tuple[int, ...], ...]:
    """The parents with a smaller number, so that no file can make a cycle."""
    return tuple(
        tuple(parent for parent in links.get(number, NO_LINKS).parents if parent < number)
        for number in range(size)
    )


def _pair(row: Row, root: str) -> Pair:
    """The pair of a row: all but its files."""
    named = pair_id(row, root)
    depth = row.context.get("depth", 0)
    return Pair(
        id=named[0] if named else row.test_id,
        step=row.step,  # type: ignore[arg-type]
        rank=_rank(row),
        level=row.level,
        layer=row.layer,
        depth=depth if type(depth) is int else 0,
        order=row.number or 0,
        policy=row.policy,
        reason=row.mapping_reason,
        golden=_operand(row.golden),
        mine=_operand(row.mine),
        graph=row.graph,
        fed=row.fed,
    )


def _rank(row: Row) -> int | None:
    return int(row.rank) if row.rank.isdecimal() and len(row.rank) <= _LONGEST_RANK else None


def _operand(side: RowSide) -> Operand:
    return Operand(side.node, side.name, side.op_type, side.slot, ())


def _unmapped(row: Row) -> Unmapped:
    which = "golden" if row.golden != RowSide() else "mine"
    side = row.golden if which == "golden" else row.mine
    return Unmapped(
        side=which,
        step=row.step,  # type: ignore[arg-type]
        node=side.node,
        name=side.name,
        op_type=side.op_type,
        reason=row.sentence.partition(": ")[2],
        why=INCOMPLETE if row.verdict == INCOMPLETE else "alone",
        slot=side.slot,
        rank=_rank(row),
        graph=row.graph,
        ref=TensorRef(side.path) if side.path else None,
    )


def _metrics(files: Sequence[StoredRows]) -> tuple[str, ...]:
    metrics = files[0].run.settings.get("metrics", [])
    return tuple(metric for metric in metrics if type(metric) is str) if type(metrics) is list else ()


def _notes(files: Sequence[StoredRows], facts: PlanFacts, pairs: Mapping[int, Row]) -> tuple[str, ...]:
    notes = [f"judged again from {', '.join(file.path for file in files)}: no tensor is read"]
    if len(pairs) < facts.pairs:
        notes.append(f"the rows are of {len(pairs)} of the {facts.pairs} pairs of that run")
    notes += unfinished(files)
    configs = files[0].run.settings.get("config", [])
    if configs:
        notes.append(f"the run that wrote them had --acc-config {', '.join(map(str, configs))}")
    return tuple(notes)
