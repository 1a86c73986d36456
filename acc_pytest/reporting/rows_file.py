"""Rows as a file: one JSON object a line, from which a run can be read, merged and judged again.

The first record is the `run` (what was compared, on what machine), the last the `summary` (counts of
verdicts, their hash, the exit status, whether all tests ran); between them stands one `row` each. Each line
ends with a checksum of itself and of the lines before it (`LineChain`). A file without a summary is that of
a run that was killed; it is then called `{name}.partial` (`outputs/partial.py`). `rows_reading.py` reads it;
docs/rows.md has every field.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..outputs import Growing, target_of
from ..tensors.stores.place import shown_at
from .file_view import GrowingFileView
from .row import Row
from .rows_json import NO_LINKS, Links, row_to_json
from .view import Result, Run

if TYPE_CHECKING:
    from ..mapping.pair import Plan

FORMAT = "acc-pytest rows"
VERSION = 2
LONGEST_LINE = 4 * 1024 * 1024
"""Characters of a line that are read; a row of ours has some thousands."""
ROOM = 64
"""Characters for a checksum and the end of the line."""
LONGEST_TEXT = 10_000
"""The length of each text of a row whose line would be too long to be read."""

CHAIN = "chain"
"""The last field of a line."""

PLAN_TEXTS = ("name", "golden_root", "mine_root", "golden_kind", "mine_kind", "lineage", "digest")
PLAN_COUNTS = ("golden_total", "golden_mapped", "mine_total", "mine_mapped")


class LineChain:
    """Checksums of 16 hexadecimal digits (BLAKE2b, RFC 7693), each of its line and the checksum before it.

    A line that was changed, moved, left out or put in does not follow from the one before it. Whoever
    computes all checksums anew is not noticed: they guard against mistakes, not against forgery.
    """

    def __init__(self) -> None:
        self._checksum = ""

    def sealed(self, line: str) -> str:
        """The JSON object `line` with its checksum in it."""
        hashed = hashlib.blake2b(f"{self._checksum}{line}".encode("ascii"), digest_size=8)
        self._checksum = hashed.hexdigest()
        return f'{line[:-1]},"{CHAIN}":"{self._checksum}"}}'

    def follows(self, line: str) -> bool:
        """Whether a line is as `sealed` returned it, after the same lines."""
        return self.sealed(line.rpartition(f',"{CHAIN}":')[0] + "}") == line


class RowsFile(GrowingFileView):
    """The file while a run writes it: row by row, so that a killed run leaves what it had.

    `settings` are the options as they were given, which `pytest --acc-from-rows` falls back to.
    """

    def __init__(self, path: str, settings: Mapping[str, Any]) -> None:
        super().__init__(path)
        self._settings = settings
        self._plan: Plan | None = None
        self._chain = LineChain()
        self._rows = 0
        self._verdicts: Counter[str] = Counter()
        self._complete = False

    def begin(self, run: Run) -> None:
        """Begin the file. Raises `SettingsError` where that cannot be."""
        self._file = Growing(target_of(self._path, "--acc-rows"))
        self._plan = run.plan
        self._write(_run_record(run, self._settings), head=True)

    def add(self, row: Row) -> None:
        """Write one row."""
        self._rows += 1
        self._verdicts[row.verdict] += 1
        self._write(row_to_json(row, self._links(row)))

    def _links(self, row: Row) -> Links:
        """The links of a pair in the plan; none for other rows."""
        plan, number = self._plan, row.number
        if plan is None or number is None or row.alone or number >= len(plan.pairs):
            return NO_LINKS
        parents = plan.parents[number] if number < len(plan.parents) else ()
        gap = plan.gaps.get(number)
        return Links(
            tuple(parents),
            number in plan.by_order,
            tuple(plan.between.get(number, ())),
            tuple(plan.unseen.get(number, ())),
            (gap.module, gap.before, *gap.after) if gap is not None else (),
        )

    def end(self, complete: bool) -> None:
        """Remember whether every test ran that was asked for."""
        self._complete = complete

    def finish(self, result: Result) -> None:
        """Write the summary, which makes the file a whole one."""
        self._write(
            {
                "record": "summary",
                "rows": self._rows,
                "verdicts": dict(sorted(self._verdicts.items())),
                "coverage": result.coverage,
                "problems": list(result.problems),
                "verdict_hash": result.verdict_hash,
                "exit_status": result.exit_status,
                "complete": self._complete,
            }
        )

    def _write(self, record: Mapping[str, Any], *, head: bool = False) -> None:
        if self._file is None:
            return
        line = _dumps(record)
        if len(line) > LONGEST_LINE - ROOM:
            line = _dumps(_cut(record))
        self._file.write(f"{self._chain.sealed(line)}\n".encode("ascii"), head=head)


_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


def _cut(value: Any) -> Any:
    """The record with texts and lists short enough for its line to be read again."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[: LONGEST_TEXT - 3] + "..."
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item) for item in value[:100]]
    return value


def _run_record(run: Run, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "record": "run",
        "format": FORMAT,
        "version": VERSION,
        "title": run.title,
        "plan": None if run.plan is None else _plan_record(run.plan),
        "command": list(run.command),
        "floor": run.floor,
        "environment": dict(run.environment),
        "settings": {
            name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()
        },
    }


def _plan_record(plan: Plan) -> dict[str, Any]:
    record: dict[str, Any] = {name: getattr(plan, name) for name in (*PLAN_TEXTS, *PLAN_COUNTS)}
    record |= {name: shown_at(record[name]) for name in ("golden_root", "mine_root")}
    record["digest"] = plan.digest or _digest(plan)
    return {**record, "notes": list(plan.notes), "pairs": len(plan.pairs)}


def _digest(plan: Plan) -> str:
    """A digest of the pairing: equal for equal plans, wherever the dumps lie."""
    hashed = hashlib.sha256(str(len(plan.unmapped)).encode())
    for pair in plan.pairs:
        sides = (pair.golden.node, pair.golden.slot, pair.mine.node, pair.mine.slot)
        text = "\0".join((pair.id, pair.layer, str(pair.step), str(pair.rank), pair.graph, *sides))
        hashed.update(text.encode("utf-8", "surrogatepass") + b"\n")
    return hashed.hexdigest()[:16]
