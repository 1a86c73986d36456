"""A run from its files of rows: the plan it had, and the row of every test, without any dump."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..base.reason import Reason, arguments, joined
from ..base.vocabulary import INCOMPLETE, selectable
from ..diagnosis.outcome import FAILED, NOTHING, OK
from ..errors import AccError, guarded
from ..judging.standards import DEFAULT, THREE_WAY
from ..mapping.pair import Gap, Operand, Pair, Plan, Unmapped
from ..outputs.writing import partials
from ..reporting.recorder import ABSENT, NO_PARTNER
from ..reporting.row import Row, RowSide
from ..reporting.rows_file import PLAN_COUNTS, PlanFacts, StoredRows
from ..reporting.rows_json import NO_LINKS, Links
from ..reporting.summary import Tally, shortfalls
from ..reporting.texts import escaped
from ..tensors.ref import TensorRef

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
        check_one_run(files)
        first = files[0]
        facts = first.run.plan or PlanFacts()
        rows = _SortedRows(facts)
        for file in files:
            rows.take(file)
        metrics = first.run.settings.get("metrics", [])
        by_noise = first.run.settings.get("standard") == THREE_WAY.name
        return StoredRun(
            title=first.run.title,
            plan=_plan(facts, rows, _notes(files, facts, rows.pairs)),
            pairs=dict(sorted(rows.pairs.items())),
            unpaired=rows.unpaired,
            ranks=rows.ranks,
            metrics=tuple(m for m in metrics if type(m) is str) if type(metrics) is list else (),
            standard=THREE_WAY.name if by_noise else DEFAULT.name,
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
                number = row.number or 0
                if number >= self._facts.pairs:
                    raise AccError(
                        f"{file.path}: {row.test_id:.200} has the number {row.number}, but the plan of its "
                        f"run has {self._facts.pairs} pairs"
                    )
                earlier = self.pairs.setdefault(number, row)
                # repr, because a NaN among the numbers does not equal itself
                if earlier is not row and repr(earlier) != repr(row):
                    raise _disagreement(row.test_id, file.path)
        for test_id, rows in unpaired.items():
            if self.unpaired.setdefault(test_id, tuple(rows)) != tuple(rows):
                raise _disagreement(test_id, file.path)


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
        # Those with a smaller number, so that no file can make a cycle.
        parents=tuple(
            tuple(parent for parent in links.get(number, NO_LINKS).parents if parent < number)
            for number in range(size if links else 0)
        ),
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
    code = ABSENT if row.verdict == INCOMPLETE else NO_PARTNER
    _, *reason = arguments(row.sentence, code) or ("", row.sentence)
    return Unmapped(
        side=which,
        step=row.step,  # type: ignore[arg-type]
        node=side.node,
        name=side.name,
        op_type=side.op_type,
        reason=joined("", map(str, reason)),
        why=INCOMPLETE if row.verdict == INCOMPLETE else "alone",
        slot=side.slot,
        rank=_rank(row),
        graph=row.graph,
        ref=TensorRef(side.path) if side.path else None,
    )


def _notes(files: Sequence[StoredRows], facts: PlanFacts, pairs: Mapping[int, Row]) -> tuple[str, ...]:
    notes: list[str] = [
        Reason("judged again from {}: no tensor is read", ", ".join(file.path for file in files))
    ]
    if len(pairs) < facts.pairs:
        notes.append(Reason("the rows are of {} of the {} pairs of that run", len(pairs), facts.pairs))
    notes += unfinished(files)
    configs = files[0].run.settings.get("config", [])
    if configs:
        notes.append(Reason("the run that wrote them had --acc-config {}", ", ".join(map(str, configs))))
    return tuple(notes)


# Files of rows that are one run together: all of one plan, and every shard there, whole.
#
# Merging and judging again ask for the same.


_ALIKE = ("name", "pairs", *PLAN_COUNTS, "golden_kind", "mine_kind", "digest")
"""Fields of the plan that are equal in all files of a run; the dumps may lie elsewhere."""


def check_one_run(files: Sequence[StoredRows]) -> None:
    """Raise `AccError` for files of different runs, plans or divisions into shards."""
    expected = _facts(files[0])
    for file in files[1:]:
        for name, value in _facts(file).items():
            if value != expected.get(name):
                raise AccError(
                    f"{file.path}: comes from another run than {files[0].path} ({name.replace('_', ' ')}: "
                    f"{value}, not {expected.get(name)}); give shards of one run"
                )
    shards = [(_shard(file), file.path) for file in files]
    if len({count for (_, count), _ in shards}) > 1:
        listing = ", ".join(f"{path} is {number}/{count}" for (number, count), path in shards)
        raise AccError(f"the files are not shards of one run: {listing}")


def _facts(file: StoredRows) -> dict[str, Any]:
    plan = file.run.plan
    return {"title": file.run.title} | {name: getattr(plan, name, None) for name in _ALIKE}


def incomplete(files: Sequence[StoredRows]) -> Iterator[str]:
    """A sentence for each part of the run that is in none of its files."""
    present, count = {_shard(file)[0] for file in files}, _shard(files[0])[1]
    if absent := [f"{number}/{count}" for number in range(1, count + 1) if number not in present]:
        shards = ", ".join([*absent[:20], *(["..."] if absent[20:] else [])])
        yield Reason("incomplete: no file is of shard {}", shards)
    for file in files:
        end = "stopped early"
        if file.exit_status is None:
            end = Reason("killed, or the file was cut, after line {}", len(file.rows) + 1)
        if not file.complete:
            yield Reason(
                "{} is incomplete: the run that wrote it was {}, and what it had not yet compared is not "
                "in it",
                *(file.path, end),
            )


def unfinished(files: Sequence[StoredRows]) -> list[str]:
    """A sentence for each file of a run that has not ended, beside a file of rows of an earlier one."""
    return [
        Reason("{} is of an earlier run than {}, whose run was killed or still goes on", file.path, partial)
        for file in files
        for partial in partials(file.path)
    ]


def _shard(file: StoredRows) -> tuple[int, int]:
    """Number and count of the shard that a file is of; 1 of 1 for a whole run."""
    setting = file.run.settings.get("shard")
    if type(setting) is list and len(setting) == 2 and all(type(entry) is int for entry in setting):
        number, count = setting
        if 1 <= number <= count < 10**6:
            return number, count
    if setting is not None:
        raise AccError(f"{file.path}: settings.shard must be two numbers, got {setting!r:.100}")
    return 1, 1


# The files of rows of several shards as one run: its plan, all its rows, and how it would have ended.


@dataclass(frozen=True)
class Merged:
    """One run. `rows` are in the order of the plan, others after it; `plan` is `None` of single operators.

    `without_row` counts pairs of the plan without a row in any file; `notes` are about other files in the
    same directory.
    """

    stored: StoredRun
    plan: Plan | None
    rows: tuple[Row, ...]
    command: tuple[str, ...]
    floor: float
    statuses: tuple[int, ...]
    without_row: int
    notes: tuple[str, ...] = ()

    def exit_status(self, tally: Tally) -> int:
        """The exit status of pytest for the run whose rows `tally` has counted."""
        stopped = [status for status in self.statuses if status not in (OK, FAILED, NOTHING)]
        if stopped:
            return max(stopped)
        short = bool(shortfalls(tally, self.plan, self.floor))
        red = any(row.red for row in self.rows)
        if self.stored.incomplete or short or red or FAILED in self.statuses:
            return FAILED
        if not tally.compared and (tally.tried or NOTHING in self.statuses):
            return NOTHING
        return OK


def merged(files: Sequence[StoredRows]) -> Merged:
    """One run of the files of its shards, in any order.

    Raises `AccError` for files of different runs or plans, and for two that disagree.
    """
    with guarded(f"merging {', '.join(file.path for file in files)}"):
        stored, run = stored_run(files), files[0].run
        # Every shard may have a row of a node without a partner.
        unmapped = {row.number or 0: row for file in files for row in file.rows if row.alone}
        unpaired = (row for rows in stored.unpaired.values() for row in rows)
        pairs = run.plan.pairs if run.plan is not None else 0
        return Merged(
            stored=stored,
            plan=None if run.plan is None else stored.plan,
            rows=(*stored.pairs.values(), *(unmapped[number] for number in sorted(unmapped)), *unpaired),
            command=tuple(word for word in run.command if not word.startswith("--acc-shard=")),
            floor=run.floor,
            statuses=tuple(file.exit_status for file in files if file.exit_status is not None),
            without_row=pairs - sum(number < pairs for number in stored.pairs),
            notes=tuple(unfinished(files)),
        )
