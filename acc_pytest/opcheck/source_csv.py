"""Entries from an operation CSV: what the probe writes (`operation_tensors_N.csv`) and ATB's own tests.

Columns are separated by `|` and found by their names, so neither their order nor further ones matter. The
first builds end each list with a `;` of its own, fill rows with tabs and have no file columns; ATB's tests
quote the parameters, with doubled quotes inside. The parameters may hold a `|` themselves: only JSON's own
grammar says where they end.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import FormatError
from .entry import Entry

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
    text = _text(path)
    lines = text.split("\n")
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
            problem, skipped = _of_kernel(name), True
        yield Entry(
            number,
            name or f"row{index}",
            f"{path.name}:{index}",
            str(path),
            group,
            step,
            cells,
            problem=problem,
            skipped=skipped,
        )
        number += 1


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FormatError(
            f"{path}: cannot be read as an operation CSV: {error.strerror}; give one, or a dump"
        ) from error
    return content.decode("utf-8-sig", "surrogateescape")


def _of_kernel(name: str) -> str:
    return (
        f"{name or 'a kernel'} is listed in a kernel CSV; kernels have no public definition to check "
        "against, check the operation above it"
    )


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
        return f"the row expects the operator to fail with {error}, so it has no output to check", True
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
