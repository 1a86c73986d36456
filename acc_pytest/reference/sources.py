"""`Entry`: one operation as a source lists it, before anybody looks for its files.

Entries are cheap, because ten thousand of them are made before the first test runs, and they hold nothing
but strings and numbers, because they are sent to xdist workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..base.reason import Reason
from ..errors import DumpError, FormatError
from ..tensors.location import is_directory, walked_at


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of an operation CSV, or one operator's directory.

    `number` counts the entries of a session. `source` says where it was listed (`op.csv:12`, a
    directory), `origin` is the CSV file or the directory that was given. `group` is the name of its
    collector: the CSV's or the step's. `step` is the number of the execution, -1 where the source
    does not say. `cells` are the columns of a CSV row, empty for a directory; `directory` and `base`
    (the execution's directory above it) are empty for a CSV row.

    `problem` is why nothing can be checked; `skipped` says that it is nobody's mistake.
    """

    number: int
    full_name: str
    source: str
    origin: str
    group: str
    step: int = -1
    cells: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    base: str = ""
    problem: str = ""
    skipped: bool = False

    @property
    def name(self) -> str:
        """ATB's class name: what stands before the first `_`."""
        return self.full_name.partition("_")[0]

    @property
    def ids(self) -> str:
        """The ids of its path, joined by `_`; empty where the name has none."""
        return self.full_name.partition("_")[2]


# Entries from an operation CSV: what the probe writes (`operation_tensors_N.csv`) and ATB's own tests.
#
# Columns are separated by `|` and found by their names, so neither their order nor further ones matter. The
# first builds end each list with a `;` of its own, fill rows with tabs and have no file columns; ATB's tests
# quote the parameters, with doubled quotes inside. The parameters may hold a `|` themselves: only JSON's own
# grammar says where they end.


NEEDED = ("OpName", "OutDType")
"""Columns without which a file is no operation CSV; the old tool asks for the same."""

_PARAM = "OpParam"
_NUMBER = re.compile(r"(\d+)\.csv$")
_JSON = json.JSONDecoder()
_KERNELS = "kernel_io_tensors"


def entries_of_csv(path: Path, group: str, first: int = 0) -> Iterator[Entry]:
    """Every row that names an operation, numbered from `first`.

    A row that is cut is an entry with a problem; rows of kernels are entries that cannot be checked.
    Raises `FormatError` for a file that cannot be read or has not the needed columns.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig", "surrogateescape").split("\n")
    except OSError as error:
        raise FormatError(
            f"{path}: cannot be read as an operation CSV: {error.strerror}; give one, or a dump"
        ) from error
    columns = [name.strip().strip('"') for name in lines[0].split("|")]
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise FormatError(
            f"{path}: is not an operation CSV: its first line has no column {' and no '.join(missing)}; "
            "give operation_tensors_N.csv of a dump, columns separated by |"
        )
    match = _NUMBER.search(path.name)
    step = int(match.group(1)) if match else -1
    kernels = path.name.startswith("kernel") or _KERNELS in path.parts[-3:]
    number = first
    for index, line in enumerate(lines[1:], start=2):
        if not line.strip(" \t\r|;"):
            continue
        cells = _cells(line.rstrip("\r\t"), columns)
        name = cells.get("OpName", "")
        problem, skipped = _problem(cells, columns)
        if kernels:
            problem = (
                f"{name or 'a kernel'} is listed in a kernel CSV; kernels have no public definition to check "
                "against, check the operation above it"
            )
            skipped = True
        source = f"{path.name}:{index}"
        fields = number, name or f"row{index}", source, str(path), group, step, cells
        yield Entry(*fields, problem=problem, skipped=skipped)
        number += 1


def _problem(cells: dict[str, str], columns: Sequence[str]) -> tuple[str, bool]:
    if not cells.get("OpName"):
        return "the row has no OpName, so nothing says which operator it is of", False
    if "OutDType" not in cells:
        return (
            f"the row ends after {len(cells)} of {len(columns)} columns; was the run killed while it wrote?",
            False,
        )
    error = cells.get("ExpectedError", "")
    if error not in ("", "NO_ERROR"):
        return Reason(
            "the row expects the operator to fail with {}, so it has no output to check", error
        ), True
    return "", False


def _cells(line: str, columns: Sequence[str]) -> dict[str, str]:
    """The cells of a row by column; a row that is cut has the first ones only."""
    cells = line.split("|")
    at = columns.index(_PARAM) if _PARAM in columns else -1
    if 0 <= at < len(cells) and not _plain(cells[at].strip(), len(cells), len(columns)):
        cells = _with_param(cells, at, len(columns))
    return {name: cell.strip() for name, cell in zip(columns, cells)}


def _plain(param: str, cells: int, columns: int) -> bool:
    """Whether the parameters hold no separator, without parsing them."""
    return cells <= columns and (not param or (param[0] == "{" and param[-1] == "}") or param[0] not in '{"')


def _with_param(cells: list[str], at: int, columns: int) -> list[str]:
    """The cells of a row whose parameters are quoted or hold the separator."""
    rest = "|".join(cells[at:]).lstrip()
    if rest.startswith('"'):
        quoted = re.match(r'"((?:[^"]|"")*)"\s*', rest)
        if quoted:
            tail = rest[quoted.end() :]
            return [*cells[:at], quoted.group(1).replace('""', '"'), *tail[1:].split("|")]
    with contextlib.suppress(ValueError, RecursionError):
        _, end = _JSON.raw_decode(rest)
        return [*cells[:at], rest[:end], *rest[end:].lstrip()[1:].split("|")]
    # Broken JSON: whatever is too much in the row belongs to it.
    extra = max(0, len(cells) - columns)
    return [*cells[:at], "|".join(cells[at : at + extra + 1]), *cells[at + extra + 1 :]]


# Entries from a dump directory: every operator's directory in it, as far down as it goes.
#
# An operator's directory is named `{id}_{Class}` and holds `op_param.json`, or, for the few classes that
# have no parameters, `before` or `after` alone. Graphs and kernels have such directories too; a class name of
# ATB ends with `Operation`.


PARAM_FILE = "op_param.json"
STATES = ("before", "after")
"""Directories that hold the tensors of what they lie in."""

_WORKER = re.compile(r"^-?\d+_\d+$")
_NODE = re.compile(r"^(\d+)_(.+)$")
_DATA = frozenset({"tensors", "data"})


def entries_of_directory(directory: Path, first: int = 0) -> Iterator[Entry]:
    """Every operator's directory below (or at) `directory`, in order of ranks, steps and ids.

    Raises `DumpError` for what is no directory.
    """
    home = Path(os.path.abspath(directory))
    if not is_directory(home):
        raise DumpError(f"{directory}: no such file or directory; give an operation CSV or a dump")
    paths = sorted(_operators(str(home)), key=_order)
    bases = {path: _base(Path(path), home) for path in paths}
    workers = list(dict.fromkeys(base.parent.name for base in bases.values() if _is_execution(base)))
    for number, path in enumerate(paths, start=first):
        base = bases[path]
        ids, kind = _identity(Path(path), base)
        step = int(base.name) if _is_execution(base) else -1
        group = f"step{step}" if step >= 0 else home.name
        if len(workers) > 1 and step >= 0:
            group = f"rank{workers.index(base.parent.name)}.{group}"
        name = f"{kind}_{ids}" if ids else kind
        yield Entry(number, name, path, str(home), group, step, directory=path, base=str(base))


def _operators(home: str) -> Iterator[str]:
    for path, directories, files in walked_at(home):
        directories[:] = [name for name in directories if name not in STATES or _NODE.match(name)]
        is_operation = os.path.basename(path).partition("_")[2].endswith("Operation")
        if PARAM_FILE in files or (
            is_operation and any(is_directory(os.path.join(path, state)) for state in STATES)
        ):
            yield path


def _order(path: str) -> list[tuple[int, str]]:
    """By the numbers that the components of a path begin with."""
    components = path.split(os.sep)
    return [
        (int(match.group()) if (match := re.match(r"\d+", component)) else -1, component)
        for component in components
    ]


def _is_execution(base: Path) -> bool:
    return base.name.isdecimal() and bool(_WORKER.match(base.parent.name))


def _base(path: Path, home: Path) -> Path:
    """The directory of the execution that `path` lies in, else what was given (or is above it)."""
    for parent in path.parents:
        if _is_execution(parent) and parent.parent.parent.name in _DATA:
            return parent
    if path == home:
        while _NODE.match(home.name) and home.parent != home:
            home = home.parent
    return home


def _identity(path: Path, base: Path) -> tuple[str, str]:
    """Ids joined by `_`, and the class name."""
    components = path.relative_to(base).parts
    matches = [_NODE.match(component) for component in components]
    ids = "_".join(match.group(1) for match in matches if match)
    last = components[-1] if components else path.name
    return ids, last.rpartition("_")[2] or last
