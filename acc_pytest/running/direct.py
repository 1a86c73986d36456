"""A run without pytest: the rows, the reports and the summary that a run of pytest has, made in this process.

A mode opens and judges here as there, so that verdicts, test ids and the verdict hash are the same. Markers
and hooks of tests are pytest's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from ..base.imports import check_numpy
from ..diagnosis.outcome import FAILED, NOTHING, OK, reported
from ..errors import AccError, guarded
from ..reporting.csv_report import CsvReport
from ..reporting.view import Result, Run
from .run_report import environment

if TYPE_CHECKING:
    from ..judging.threshold import ThresholdRule
    from ..reporting.row import Row
    from ..reporting.summary import Tally
    from .mode import Mode


@dataclass(frozen=True, slots=True, eq=False)
class DirectRun:
    """A run that has ended.

    `header` has the lines before its first test, `columns` map the names of the columns of its CSV to the
    places in a row.
    """

    run: Run
    rows: tuple[Row, ...]
    result: Result
    exit_status: int
    header: tuple[str, ...]
    columns: Mapping[str, str]


def run_directly(
    kind: type[Mode],
    option_values: Mapping[str, Any],
    rules: Sequence[ThresholdRule] = (),
    show: Callable[[str], None] = lambda line: None,
) -> DirectRun:
    """Run the mode of this kind that the option values ask for; `rules` are stronger than those of files.
    Its lines are shown as they come.

    There is a CSV only where its place was given. Raises `AccError` for what is the user's to mend.
    """
    from ..gate.opening import gates_of
    from ..metrics.native.library import chosen as chosen_kernel

    check_numpy()
    chosen_kernel()  # a kernel that is asked for and is not there, before any dump is opened
    with guarded(kind.doing):
        mode = kind.opened(option_values)
    if mode is None:
        raise AccError(f"{kind.doing}: these settings do not ask for it")
    mode.selected = mode.tests
    gates = gates_of(mode.settings)
    views = mode.views()
    columns = next(view.columns for view in views if isinstance(view, CsvReport))
    if not option_values.keys() & {"csv", "output"}:
        views = [view for view in views if not isinstance(view, CsvReport)]
    rows: list[Row] = []

    def all_rows() -> Iterator[Row]:
        with guarded("comparing"):
            for row in mode.all_rows(
                rules, lambda row: reduce(lambda row, gate: gate.apply(row), gates, row)
            ):
                rows.append(row)
                yield row

    def status_of(tally: Tally) -> int:
        return FAILED if tally.red_tests else OK if tally.compared else NOTHING

    header = tuple(mode.header())
    for line in header:
        show(line)
    run = mode.described(Run(environment=environment()))
    result, status = reported(run, views, all_rows(), status_of, mode.lacks, show=show)
    return DirectRun(run, tuple(rows), result, status, header, columns)
