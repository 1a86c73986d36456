"""Reading a file of rows: the run, every row and the summary, each following from the lines before it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..errors import AccError, FormatError
from ..guard import guarded
from ..json_text import NotJson, parsed
from ..outputs.partial import partials
from .json_fields import WrongField
from .row import Row
from .rows_file import CHAIN, FORMAT, LONGEST_LINE, PLAN_COUNTS, PLAN_TEXTS, VERSION, LineChain
from .rows_json import NO_LINKS, Links, row_from_json

MOST_PAIRS = 10_000_000
"""Of a plan that is believed: what is made for each pair takes memory."""


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
    pairs: int = 0
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
    floor: float
    environment: Mapping[str, str]
    settings: Mapping[str, Any]


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
    summary: Mapping[str, Any] | None = None
    chain = LineChain()
    for number, line, record in _records(path):
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
                summary = record
                _check_summary(record)
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
    digest, complete = str(summary.get("verdict_hash", "")), summary["complete"]
    return replace(stored, exit_status=summary["exit_status"], verdict_hash=digest, complete=complete)


def _refuse(constant: str) -> Any:
    raise WrongField(f"{constant} is not JSON")


def _records(path: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
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
                    f"{path}: holds bytes that are not ASCII, so it is not a file of rows"
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
    if record.get("record") != "run" or record.get("format") != FORMAT:
        raise WrongField(
            "is not a file of rows (its first record does not say so); give a file written by --acc-rows"
        )
    if record.get("version") != VERSION:
        raise WrongField(
            f"has version {record.get('version')!r:.100}, but this acc-pytest reads version {VERSION}; make "
            "the file again where the dumps are, with pytest --acc-rows"
        )
    plan, environment, settings = record.get("plan"), record.get("environment"), record.get("settings")
    if type(environment) is not dict or type(settings) is not dict:
        raise WrongField("environment and settings must be objects")
    floor: Any = record.get("floor")
    if type(floor) not in (int, float) or not 0 <= floor < math.inf or not _texts(record.get("command")):
        raise WrongField("floor must be a number >= 0 and command a list of strings")
    if not all(type(value) is str for value in environment.values()):
        raise WrongField("environment must hold strings")
    if record.get("title") not in ("comparison", "opcheck"):
        raise WrongField(f"title must be comparison or opcheck, got {record.get('title')!r:.100}")
    return RowsRun(
        record["title"],
        None if plan is None else _plan_of(plan),
        tuple(record["command"]),
        float(floor),
        environment,
        settings,
    )


def _plan_of(plan: object) -> PlanFacts:
    if type(plan) is not dict:
        raise WrongField(f"plan must be an object or null, got {plan!r:.100}")
    for name in PLAN_TEXTS:
        if type(plan.get(name)) is not str:
            raise WrongField(f"plan.{name} must be a string, got {plan.get(name)!r:.100}")
    for name in (*PLAN_COUNTS, "pairs"):
        if type(plan.get(name)) is not int or plan[name] < 0:
            raise WrongField(f"plan.{name} must be a whole number >= 0, got {plan.get(name)!r:.100}")
    if plan["pairs"] > MOST_PAIRS:
        raise WrongField(f"plan.pairs must be at most {MOST_PAIRS}, got {plan['pairs']}")
    if not _texts(plan.get("notes")):
        raise WrongField("plan.notes must be a list of strings")
    return PlanFacts(
        **{name: plan[name] for name in (*PLAN_TEXTS, *PLAN_COUNTS, "pairs")}, notes=tuple(plan["notes"])
    )


def _texts(value: object) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


def _check_summary(record: Mapping[str, Any]) -> None:
    """Raise `WrongField` unless it says how the run ended."""
    if type(record.get("exit_status")) is not int:
        raise WrongField("exit_status must be a whole number")
    if type(record.get("complete")) is not bool:
        raise WrongField("complete must be true or false")
