"""Rows as a file: one JSON object a line, from which a run can be read, merged and judged again.

The first record is the `run` (what was compared, on what machine), the last the `summary` (counts of
verdicts, their hash, the exit status, whether all tests ran); between them stands one `row` each. Each line
ends with a checksum of itself and of the lines before it (`LineChain`). A file without a summary is that of
a run that was killed; it is then called `{name}.partial` (`outputs/writing.py`). `rows_reading.py` reads it;
docs/on-disk.md has every field.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..base.forms import WrongField, check_header, must, read, whole_number
from ..base.texts import NotJson, parsed
from ..errors import AccError, FormatError, guarded
from ..outputs import Growing, target_of
from ..outputs.writing import partials
from ..tensors.location import shown_at
from .row import Row
from .rows_json import CODES, NO_LINKS, Links, codes_of, row_from_json, row_to_json, with_codes
from .view import GrowingFileView, Result, Run

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
    record |= {"notes": list(plan.notes), "pairs": len(plan.pairs)}
    return {**record, CODES: codes_of(record)}


def _digest(plan: Plan) -> str:
    """A digest of the pairing: equal for equal plans, wherever the dumps lie."""
    hashed = hashlib.sha256(str(len(plan.unmapped)).encode())
    for pair in plan.pairs:
        sides = (pair.golden.node, pair.golden.slot, pair.mine.node, pair.mine.slot)
        text = "\0".join((pair.id, pair.layer, str(pair.step), str(pair.rank), pair.graph, *sides))
        hashed.update(text.encode("utf-8", "surrogatepass") + b"\n")
    return hashed.hexdigest()[:16]


# Reading a file of rows: the run, every row and the summary, each following from the lines before it.


MOST_PAIRS = 10_000_000
"""Of a plan that is believed: what is made for each pair takes memory."""


def _plan_size(value: object, where: str) -> int:
    if (size := whole_number(value, where)) > MOST_PAIRS:
        raise must(where, f"at most {MOST_PAIRS}", value)
    return size


def _floor(value: object, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise must(where, "a number >= 0", value)
    return value  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The plan of a run without its pairs, which are in the rows."""

    name: str = ""
    golden_root: str = ""
    mine_root: str = ""
    golden_kind: str = ""
    mine_kind: str = ""
    lineage: str = ""
    digest: str = ""
    notes: tuple[str, ...] = ()
    pairs: Annotated[int, _plan_size] = 0
    golden_total: int = 0
    golden_mapped: int = 0
    mine_total: int = 0
    mine_mapped: int = 0


@dataclass(frozen=True, slots=True)
class RowsRun:
    """The first record of a file. `settings` are the options that the run was given, by field."""

    title: Literal["comparison", "opcheck"]
    plan: PlanFacts | None
    command: tuple[str, ...]
    floor: Annotated[float, _floor]
    environment: Mapping[str, str]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Summary:
    """The last record of a file."""

    exit_status: int
    complete: bool
    verdict_hash: str = ""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A file of rows, read and checked.

    `links` are those of the rows' pairs, by row number. `exit_status` and `verdict_hash` are what the run
    ended with; `exit_status` is `None` where it did not end. `complete` says whether all tests ran that
    were asked for: neither was the run killed, nor stopped by Ctrl-C or after so many failures.
    """

    path: str
    run: RowsRun
    rows: tuple[Row, ...]
    links: Mapping[int, Links] = field(default_factory=dict)
    exit_status: int | None = None
    verdict_hash: str = ""
    complete: bool = False


def read_rows(path: str) -> StoredRows:
    """The rows of a file, all fields checked.

    A last line that was cut is that of a run that was killed. Raises `FormatError` naming the file and the
    line for everything else that is not as `RowsFile` writes it, and `AccError` for a file that cannot be
    read. Where only what a killed run left of `path` is there, that is read; `StoredRows.path` says so.
    """
    with guarded(f"reading the rows of {path}"):
        return _read_rows(
            path if os.path.lexists(path) else max(partials(path), key=os.path.getmtime, default=path)
        )


def _read_rows(path: str) -> StoredRows:
    rows: list[Row] = []
    links: dict[int, Links] = {}
    run: RowsRun | None = None
    summary: _Summary | None = None
    chain = LineChain()
    for number, line, record in records(path):
        record.pop(CHAIN, None)
        try:
            if summary is not None:
                raise WrongField("the summary must be the last record, but something follows it")
            kind = record.get("record")
            if run is None:
                run = _run_of(record)
            elif kind == "row":
                row, links_of_pair = row_from_json(record)
                rows.append(row)
                if links_of_pair is not NO_LINKS and row.number is not None:
                    links[row.number] = links_of_pair
            elif kind == "summary":
                summary = read(_Summary, record, exact=False)
            else:
                raise WrongField(f"record must be row or summary, got {kind!r:.100}")
            if not chain.follows(line.rstrip("\n")):
                raise WrongField(
                    "does not follow from the lines before it (checksum): the file was edited or cut, or two "
                    "were put together; give it as pytest --acc-rows wrote it"
                )
        except WrongField as error:
            raise FormatError(f"{path}:{number}: {error}") from None
    if run is None:
        raise FormatError(f"{path}: is empty; give a file written by pytest --acc-rows")
    stored = StoredRows(path, run, tuple(rows), links)
    if summary is None:
        return stored
    status, digest, complete = summary.exit_status, summary.verdict_hash, summary.complete
    return replace(stored, exit_status=status, verdict_hash=digest, complete=complete)


def _refuse(constant: str) -> Any:
    raise WrongField(f"{constant} is not JSON")


def records(path: str, content: str = "rows") -> Iterator[tuple[int, str, dict[str, Any]]]:
    """The numbers, lines and objects of a file of `content`. A last line that was cut is left out."""
    try:
        file = open(path, encoding="ascii", newline="\n")  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise AccError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    with file:
        number = 0
        while True:
            number += 1
            try:
                line = file.readline(LONGEST_LINE + 1)
            except UnicodeDecodeError:
                raise FormatError(
                    f"{path}: holds bytes that are not ASCII, so it is not a file of {content}"
                ) from None
            except OSError as error:
                raise AccError(f"{path}: cannot be read: {error.strerror or error}") from error
            if not line:
                return
            if len(line) > LONGEST_LINE:
                raise FormatError(f"{path}:{number}: the line is longer than {LONGEST_LINE} characters")
            if not line.endswith("\n") and number > 1:
                return  # cut by the end of the process that wrote it
            try:
                record = parsed(line, constant=_refuse)
            except WrongField as error:
                raise FormatError(f"{path}:{number}: {error}") from None
            except NotJson as error:
                raise FormatError(f"{path}:{number}: is not JSON: {error.reason}") from None
            if type(record) is not dict:
                raise FormatError(f"{path}:{number}: must be an object, got {record!r:.100}")
            yield number, line, record


def _run_of(record: Mapping[str, Any]) -> RowsRun:
    check_header(record, FORMAT, VERSION, "; make it again where the dumps are, with pytest --acc-rows")
    fields = {name: record[name] for name in RowsRun.__annotations__ if name in record}
    if isinstance(fields.get("plan"), dict):
        fields["plan"] = with_codes(fields["plan"])
    return read(RowsRun, fields, exact=False)
