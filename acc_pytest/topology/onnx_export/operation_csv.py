"""The operation CSV of a dump: element types and shapes of what every operation read and wrote.

`operation_io_tensors/{pid}/operation_tensors_{N}.csv`, columns separated by `|`, the tensors in a column
by `;`, the sizes of a tensor by `,`. Nothing is quoted. The first builds (January 2024) end each list with
a `;` of its own and fill the rest of the row with tabs; until March 2024 the file paths are missing. Only
the columns up to `OutShape` are used, which all builds have.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import FormatError
from ...tensors.dtypes import DType, by_name
from ...tensors.file_bytes import opened
from ...tensors.stores.place import names_at

_NUMBER = re.compile(r"(\d+)\.csv$")
_NEEDED = ("OpName", "OpParam", "InNum", "InDType", "InShape", "OutNum", "OutDType", "OutShape")
_SIZE = re.compile(r"\d{1,18}")
_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a tensor."""

    dtype: DType
    shape: tuple[int, ...]


Types = tuple["TensorType | None", ...]
"""Types of the inputs or the outputs of an operation, in order; `None` where nothing is known."""
Table = Mapping[str, tuple[Types, Types]]
"""Inputs and outputs by full operation name."""


def csv_files(directory: Path) -> list[Path]:
    """The operation CSVs of a process, lowest execution first; empty where there is no such directory."""
    try:
        names = [name for name in names_at(str(directory)) if name.startswith("operation")]
    except OSError:
        return []
    files = [directory / name for name in names if name.endswith(".csv") and _NUMBER.search(name)]
    return sorted(files, key=lambda path: (int(_NUMBER.findall(path.name)[0]), path.name))


def read_operation_csv(path: Path) -> Table:
    """The first row of every operation. Raises `FormatError` for a file without the columns.

    A row that is cut (the run was killed) or holds something else than sizes tells nothing; the row
    of another execution may.
    """
    with opened(str(path)) as (file, size):
        lines = file.read(size).decode("utf-8", "surrogateescape").split("\n")
    columns = [name.strip() for name in lines[0].split("|")]
    missing = [name for name in _NEEDED if name not in columns]
    if missing and lines != [""]:
        raise FormatError(
            f"{path}: is not an operation CSV of an ATB dump: its first line has no {', '.join(missing)}"
        )
    table: dict[str, tuple[Types, Types]] = {}
    for line in lines[1:]:
        row = _row(line, columns)
        if row and row["OpName"] not in table:
            inputs = _types(row["InNum"], row["InDType"], row["InShape"])
            outputs = _types(row["OutNum"], row["OutDType"], row["OutShape"])
            if inputs is not None and outputs is not None:
                table[row["OpName"]] = inputs, outputs
    return table


def _row(line: str, columns: list[str]) -> dict[str, str]:
    """The needed cells by name; empty for a row that lacks some."""
    at = columns.index("OpParam")
    *cells, tail = line.split("|", at)
    if len(cells) == at and tail.startswith("{"):
        # JSON may hold the separator: only its own grammar says where it ends.
        with contextlib.suppress(ValueError, RecursionError):
            _, end = _JSON.raw_decode(tail)
            cells, tail = [*cells, tail[:end]], tail[end + 1 :]
    named = dict(zip(columns, [*cells, *tail.split("|")]))
    if any(name not in named for name in _NEEDED):
        return {}
    return {name: named[name].strip() for name in _NEEDED}


def _types(number: str, dtypes: str, shapes: str) -> Types | None:
    if not _SIZE.fullmatch(number):
        return None
    count = int(number)
    names, dims = _items(dtypes, count), _items(shapes, count)
    if len(names) != count or len(dims) != count:
        return None
    types = [
        TensorType(by_name(name), shape)
        for name, text in zip(names, dims)
        if (shape := _shape(text)) is not None
    ]
    return tuple(types) if len(types) == count else None


def _items(text: str, count: int) -> list[str]:
    items = text.split(";") if text or count else []
    return items[:-1] if len(items) == count + 1 and not items[-1] else items


def _shape(text: str) -> tuple[int, ...] | None:
    """Sizes from `7,32`; nothing at all is a scalar."""
    sizes = [size.strip() for size in text.split(",")] if text.strip() else []
    return tuple(map(int, sizes)) if all(_SIZE.fullmatch(size) for size in sizes) else None
