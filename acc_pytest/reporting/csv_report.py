"""Rows as CSV: the old tool's 24 columns in its order, then ours. Written row by row (`outputs.Growing`).

Text is escaped as everywhere (`printable`), and whole. Cells that a spreadsheet would take for a formula get
a leading apostrophe (OWASP ASVS 1.2.10); numbers stay numbers. Line ends and quoting follow RFC 4180.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from ..base.forms import Scalar
from ..metrics.measurement import COLUMN_METRICS, SLICE_METRICS
from ..outputs import Growing, target_of
from .row import Row
from .texts import escaped, plain
from .view import GrowingFileView, Run

_SIDE = {
    "data_path": "path", "op_type": "op_type", "dtype": "dtype", "shape": "shape",
    "max_value": "max", "min_value": "min", "mean_value": "mean",
}  # fmt: skip
"""Columns of each side, without its name, and the fields of a `RowSide`."""
OLD_COLUMNS = {
    "token_id": "step",
    "data_id": "number",
    **{f"golden_{column}": f"golden.{name}" for column, name in _SIDE.items()},
    **{f"my_{column}": f"mine.{name}" for column, name in _SIDE.items()},
    **{name: f"metrics.{name}" for name in COLUMN_METRICS},
    "cmp_fail_reason": "reason",
}
"""The old tool's columns, which people's scripts read, in its order; and where a `Row` has the value."""

_OF_ROW = ("verdict", "level", "layer", "step", "rank", "graph", "fed", "policy", "mapping_reason")
_COUNTS = ("elements", "golden_nan", "golden_inf", "my_nan", "my_inf", "common_nan", "common_inf")
OUR_COLUMNS = {
    **dict(zip(_OF_ROW, _OF_ROW)),
    "golden_node": "golden.node",
    "golden_slot": "golden.slot",
    "my_node": "mine.node",
    "my_name": "mine.name",
    "my_slot": "mine.slot",
    **{name: f"metrics.{name}" for name in ("mean_error", "beyond_fraction", *SLICE_METRICS, "noise_error")},
    **{name: f"counts.{name}" for name in _COUNTS},
    "worst_index": "worst.index",
    "worst_golden_value": "worst.golden",
    "worst_my_value": "worst.mine",
    "thresholds": "thresholds",
    "cause": "cause.kind",
    "root": "cause.root_name",
    **{name: f"cause.{name}" for name in ("inherits_from", "local", "local_error")},
    "why": "cause.text",
    "notes": "note",
    "test_id": "test_id",
}
"""Our columns, appended to the old ones, and where a `Row` has the value."""

_FORMULA_STARTS = frozenset("=+-@'")
"""Characters that begin a formula in a spreadsheet, and the apostrophe: a leading one is always ours."""


def getter(places: Iterable[str]) -> Callable[[Row], list[Scalar]]:
    """A function that reads the values at `places` (`golden.path`, `metrics.mean_error`) of a row.

    Neighbours of one kind are fetched by one call: a table has seventy columns, and each row is a test.
    """
    kinds = itertools.groupby(places, lambda place: place.partition(".")[0] if "." in place else "")
    getters = [_kind_getter(kind, list(group)) for kind, group in kinds]
    return lambda row: [value for get in getters for value in get(row)]


def _kind_getter(kind: str, places: list[str]) -> Callable[[Row], Iterable[Scalar]]:
    """A function that reads values of one object `kind` in a row, or of the row itself."""
    names = [place.removeprefix(f"{kind}.") for place in places]
    if kind in ("metrics", "counts", "custom", "case"):
        return lambda row: map(getattr(row, kind).get, names)
    if kind == "cause":
        return lambda row: [None if row.cause is None else getattr(row.cause, name) for name in names]
    if len(places) == 1:
        get = attrgetter(places[0])
        return lambda row: (get(row),)
    return attrgetter(*places)


@functools.lru_cache(maxsize=1024)  # types, layers and reasons are those of thousands of rows
def text(value: str) -> str:
    """A text cell that no spreadsheet takes for a formula, and `plain_text` reads back."""
    cell = escaped(value)
    return "'" + cell if cell[:1] in _FORMULA_STARTS else cell


def plain_text(cell: str) -> str:
    """The text of a cell that `text` wrote."""
    return plain(cell[1:] if cell[:1] == "'" else cell)


TIMESTAMP = "TIMESTAMP"
"""The word in the name of a report that stands for the time in UTC."""


def new_report(directory: Path, name: str, default: str = "acc_report.csv") -> Growing:
    """The report `name`, or `default` where that is empty, begun; parents are made as needed.

    The file is replaced when the report lands, as with `--junitxml`. With a TIMESTAMP in its name it replaces
    none: it is called `..._1.csv` and so on where that name exists already. Raises `SettingsError`.
    """
    file = (name or default).replace(TIMESTAMP, time.strftime("%Y%m%d%H%M%S", time.gmtime()))
    target = target_of(str(directory / file), "--acc-csv" if name else "--acc-output")
    return Growing(target, numbered=TIMESTAMP in name)


class CsvReport(GrowingFileView):
    """A report being written; `custom` are the names of the user's own metrics, a column each.

    `begin_file` makes the file. `columns` maps the names of all columns to the place of their value in a
    `Row`; the argument of this name has those of the others. A run that compares nothing leaves no file.
    """

    def __init__(
        self,
        begin_file: Callable[[], Growing],
        custom: Sequence[str] = (),
        columns: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._begin_file = begin_file
        self._has_pairs = False
        paths = OLD_COLUMNS | OUR_COLUMNS if columns is None else dict(columns)
        self.columns = paths | {name: f"custom.{name}" for name in custom}
        self._lines = _Lines()
        self._values = getter(self.columns.values())

    def begin(self, run: Run) -> None:
        """Begin the file. Raises `SettingsError` where that cannot be."""
        self._file = self._begin_file()
        self._has_pairs = run.plan is not None and bool(run.plan.pairs)
        self._file.write(self._lines.line(self.columns), head=True)

    def add(self, row: Row) -> None:
        """Append one row and hand it to the operating system, so that a killed run keeps it."""
        if self._file is None:
            return
        self._has_pairs = True
        cells = [text(value) if isinstance(value, str) else value for value in self._values(row)]
        self._file.write(self._lines.line(cells))

    def land(self) -> None:
        """Give the file its name; none where nothing was compared, nor was to be."""
        if self._file is not None and not self._has_pairs:
            self._file.drop()
        super().land()


class _Lines:
    """Makes lines of the file."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self._writer = csv.writer(self._text, lineterminator="\r\n")

    def line(self, cells: Iterable[Scalar]) -> bytes:
        self._text.seek(0)
        self._text.truncate()
        self._writer.writerow(cells)
        return self._text.getvalue().encode("utf-8")
