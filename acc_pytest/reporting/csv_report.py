"""Rows as CSV: the old tool's 24 columns in its order, then ours. Written and flushed row by row.

Text cells that a spreadsheet would take for a formula get a leading apostrophe (OWASP ASVS 1.2.10);
numbers stay numbers. Line ends and quoting follow RFC 4180.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TextIO

from ..errors import SettingsError
from .row import Row, Scalar
from .view import Run, View

OLD_COLUMNS = {
    "token_id": "step",
    "data_id": "number",
    "golden_data_path": "golden.path",
    "golden_op_type": "golden.op_type",
    "golden_dtype": "golden.dtype",
    "golden_shape": "golden.shape",
    "golden_max_value": "golden.max",
    "golden_min_value": "golden.min",
    "golden_mean_value": "golden.mean",
    "my_data_path": "mine.path",
    "my_op_type": "mine.op_type",
    "my_dtype": "mine.dtype",
    "my_shape": "mine.shape",
    "my_max_value": "mine.max",
    "my_min_value": "mine.min",
    "my_mean_value": "mine.mean",
    "cosine_similarity": "metrics.cosine_similarity",
    "max_relative_error": "metrics.max_relative_error",
    "mean_relative_error": "metrics.mean_relative_error",
    "max_absolute_error": "metrics.max_absolute_error",
    "mean_absolute_error": "metrics.mean_absolute_error",
    "kl_divergence": "metrics.kl_divergence",
    "relative_euclidean_distance": "metrics.relative_euclidean_distance",
    "cmp_fail_reason": "reason",
}
"""The old tool's columns, which people's scripts read, in its order; and where a `Row` has the value."""

OUR_COLUMNS = {
    "verdict": "verdict",
    "level": "level",
    "layer": "layer",
    "step": "step",
    "rank": "rank",
    "graph": "graph",
    "fed": "fed",
    "policy": "policy",
    "mapping_reason": "mapping_reason",
    "golden_node": "golden.node",
    "golden_slot": "golden.slot",
    "my_node": "mine.node",
    "my_name": "mine.name",
    "my_slot": "mine.slot",
    "mean_error": "metrics.mean_error",
    "beyond_fraction": "metrics.beyond_fraction",
    "noise_error": "metrics.noise_error",
    "elements": "counts.elements",
    "golden_nan": "counts.golden_nan",
    "golden_inf": "counts.golden_inf",
    "my_nan": "counts.my_nan",
    "my_inf": "counts.my_inf",
    "common_nan": "counts.common_nan",
    "common_inf": "counts.common_inf",
    "worst_index": "worst.index",
    "worst_golden_value": "worst.golden",
    "worst_my_value": "worst.mine",
    "thresholds": "thresholds",
    "cause": "cause.kind",
    "root": "cause.root_name",
    "inherits_from": "cause.inherits_from",
    "local": "cause.local",
    "local_error": "cause.local_error",
    "why": "cause.text",
    "notes": "note",
    "test_id": "test_id",
}
"""Our columns, appended to the old ones, and where a `Row` has the value."""

_FORMULA_STARTS = frozenset("=+-@\t\r\n")


def _getter(place: str) -> Callable[[Row], Scalar]:
    """What fetches the value at `place` (`golden.path`, `metrics.mean_error`) of a row."""
    group, _, name = place.partition(".")
    if group == "metrics":
        return lambda row: row.metrics.get(name)
    if group == "counts":
        return lambda row: row.counts.get(name)
    if group == "custom":
        return lambda row: row.custom.get(name)
    if group == "cause":
        return lambda row: None if row.cause is None else getattr(row.cause, name)
    if group == "case":
        return lambda row: row.case.get(name)
    return attrgetter(place)


def text(value: str) -> str:
    """A text cell that no spreadsheet takes for a formula."""
    value = value.replace("\0", "")
    return "'" + value if value[:1] in _FORMULA_STARTS else value


def new_report(directory: Path, name: str, prefix: str = "ait_cmp_report") -> TextIO:
    """Create the report file and return it opened for writing; parents are made as needed.

    With a `name` that file is replaced, as with `--junitxml`. Without one it is
    `{prefix}_{UTC time}.csv`, `..._1.csv` and so on where that exists already.
    """
    if name:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return open(target, "w", encoding="utf-8", newline="")
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{prefix}_{time.strftime('%Y%m%d%H%M%S', time.gmtime())}"
    attempt = 0
    while True:
        target = directory / (f"{stem}_{attempt}.csv" if attempt else f"{stem}.csv")
        try:
            return open(target, "x", encoding="utf-8", newline="")
        except FileExistsError:
            attempt += 1


class CsvReport(View):
    """A report being written; `custom` are the names of the user's own metrics, a column each.

    `open_file` makes the file, of which `columns` are the other columns by name, with the place of their
    value in a `Row`. The file is made when a plan is begun or the first row comes, so that a run that
    compares nothing leaves none, and one that cannot write it stops before its first test.
    """

    def __init__(
        self,
        open_file: Callable[[], TextIO],
        custom: Sequence[str] = (),
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self._open = open_file
        self._file: TextIO | None = None
        known = OLD_COLUMNS | OUR_COLUMNS if columns is None else dict(columns)
        self._columns = known | {name: f"custom.{name}" for name in custom}
        self._getters = [_getter(place) for place in self._columns.values()]

    @property
    def files(self) -> list[str]:
        """The report, once it exists."""
        return [os.path.abspath(self._file.name)] if self._file is not None else []

    def begin(self, run: Run) -> None:
        """Make the file where something will be compared. Raises `SettingsError` where that cannot be."""
        if run.plan is not None and run.plan.pairs:
            self._prepare()

    def add(self, row: Row) -> None:
        """Append one row and hand it to the operating system, so that a killed run keeps it."""
        file = self._prepare()
        values = [get(row) for get in self._getters]
        self._writer.writerow([text(value) if type(value) is str else value for value in values])
        file.flush()

    def _prepare(self) -> TextIO:
        if self._file is None:
            try:
                self._file = self._open()
            except OSError as error:
                raise SettingsError(
                    f"the CSV report cannot be written ({error}); name another place: --acc-output, --acc-csv"
                ) from None
            self._writer = csv.writer(self._file, lineterminator="\r\n")
            self._writer.writerow(self._columns)
            self._file.flush()
        return self._file

    def close(self) -> None:
        """Close the file; every row is in it already."""
        if self._file is not None:
            self._file.close()
