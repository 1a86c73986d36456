"""Rows as CSV: the old tool's 24 columns in its order, then ours. Written and flushed row by row.

Text cells that a spreadsheet would take for a formula get a leading apostrophe (OWASP ASVS 1.2.10);
numbers stay numbers. Line ends and quoting follow RFC 4180.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from .row import Row, Scalar

Cell = Callable[[Row], Scalar]


def _metric(name: str) -> tuple[str, Cell]:
    return name, lambda row: row.metrics.get(name)


def _count(name: str) -> tuple[str, Cell]:
    return name, lambda row: row.counts.get(name)


OLD_COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("token_id", lambda row: row.step),
    ("data_id", lambda row: row.number),
    ("golden_data_path", lambda row: row.golden.path),
    ("golden_op_type", lambda row: row.golden.op_type),
    ("golden_dtype", lambda row: row.golden.dtype),
    ("golden_shape", lambda row: row.golden.shape),
    ("golden_max_value", lambda row: row.golden.max),
    ("golden_min_value", lambda row: row.golden.min),
    ("golden_mean_value", lambda row: row.golden.mean),
    ("my_data_path", lambda row: row.mine.path),
    ("my_op_type", lambda row: row.mine.op_type),
    ("my_dtype", lambda row: row.mine.dtype),
    ("my_shape", lambda row: row.mine.shape),
    ("my_max_value", lambda row: row.mine.max),
    ("my_min_value", lambda row: row.mine.min),
    ("my_mean_value", lambda row: row.mine.mean),
    _metric("cosine_similarity"),
    _metric("max_relative_error"),
    _metric("mean_relative_error"),
    _metric("max_absolute_error"),
    _metric("mean_absolute_error"),
    _metric("kl_divergence"),
    _metric("relative_euclidean_distance"),
    ("cmp_fail_reason", lambda row: "; ".join(row.reasons)),
)
"""Names and order of the old tool's report, which people's scripts read."""

OUR_COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("verdict", lambda row: row.verdict),
    ("level", lambda row: row.level),
    ("layer", lambda row: row.layer),
    ("step", lambda row: row.step),
    ("rank", lambda row: row.rank),
    ("policy", lambda row: row.policy),
    ("mapping_reason", lambda row: row.mapping_reason),
    ("golden_node", lambda row: row.golden.node),
    ("golden_slot", lambda row: row.golden.slot),
    ("my_node", lambda row: row.mine.node),
    ("my_name", lambda row: row.mine.name),
    ("my_slot", lambda row: row.mine.slot),
    _metric("mean_error"),
    _metric("beyond_fraction"),
    _count("elements"),
    _count("golden_nan"),
    _count("golden_inf"),
    _count("my_nan"),
    _count("my_inf"),
    _count("common_nan"),
    _count("common_inf"),
    ("worst_index", lambda row: row.worst.index),
    ("worst_golden_value", lambda row: row.worst.golden),
    ("worst_my_value", lambda row: row.worst.mine),
    ("thresholds", lambda row: "; ".join(f"{check.metric} {check.bound}" for check in row.checks)),
    ("notes", lambda row: "; ".join(row.notes)),
    ("test_id", lambda row: row.test_id),
)

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\0")


def cell(value: Scalar) -> str:
    """One value as the text of its cell. `None` is an empty cell, floats are Python's `repr`."""
    if value is None:
        return ""
    if isinstance(value, str):
        text = value.replace("\0", "")
        return "'" + text if value.startswith(_FORMULA_STARTS) else text
    return repr(value)


def new_report(directory: Path, name: str) -> TextIO:
    """Create the report file and return it opened for writing; parents are made as needed.

    With a `name` that file is replaced, as with `--junitxml`. Without one it is
    `ait_cmp_report_{UTC time}.csv`, `..._1.csv` and so on where that exists already.
    """
    if name:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return open(target, "w", encoding="utf-8", newline="")
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"ait_cmp_report_{time.strftime('%Y%m%d%H%M%S', time.gmtime())}"
    attempt = 0
    while True:
        target = directory / (f"{stem}_{attempt}.csv" if attempt else f"{stem}.csv")
        try:
            return open(target, "x", encoding="utf-8", newline="")
        except FileExistsError:
            attempt += 1


class CsvReport:
    """A report being written; `custom` are the names of the user's own metrics, a column each."""

    def __init__(self, file: TextIO, custom: Sequence[str] = ()) -> None:
        self.path = os.path.abspath(file.name)
        self._file = file
        self._columns = (*OLD_COLUMNS, *OUR_COLUMNS)
        self._custom = tuple(custom)
        self._writer = csv.writer(file, lineterminator="\r\n")
        self._writer.writerow([name for name, _ in self._columns] + [cell(name) for name in self._custom])
        file.flush()

    def write(self, row: Row) -> None:
        """Append one row and hand it to the operating system, so that a killed run keeps it."""
        cells = [cell(value(row)) for _, value in self._columns]
        cells += [cell(row.custom.get(name)) for name in self._custom]
        self._writer.writerow(cells)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> CsvReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
