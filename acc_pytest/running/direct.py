"""A run without pytest: the rows, the reports and the summary that a run of pytest has, made in this process.

A mode opens and judges here as there, so that verdicts, test ids and the verdict hash are the same. Markers
and hooks of tests are pytest's.
"""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.imports import check_numpy
from ..diagnosis.outcome import reported
from ..errors import AccError, guarded
from ..reporting.csv_report import CsvReport, getter
from ..reporting.html.view import HtmlReport
from ..reporting.json_report import JsonReport
from ..reporting.summary import run_verdict
from ..reporting.texts import message
from ..reporting.view import Result, Root, Run
from .run_report import environment

if TYPE_CHECKING:
    import pandas as pd

    from ..judging.threshold import ThresholdRule
    from ..reporting.row import Row
    from .mode import Mode


def run_directly(
    kind: type[Mode],
    option_values: Mapping[str, Any],
    rules: Sequence[ThresholdRule] = (),
    show: Callable[[str], None] = lambda line: None,
    home: object = None,
) -> Outcome:
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
    assert mode is not None  # the option values ask for it
    mode.selected = mode.tests
    gates = gates_of(mode.settings)
    views = mode.views()
    columns = next(view.columns for view in views if isinstance(view, CsvReport))
    if not option_values.keys() & {"csv", "output"}:
        views = [view for view in views if not isinstance(view, CsvReport)]
    rows: list[Row] = []

    def all_rows() -> Iterator[Row]:
        for row in mode.all_rows(rules, lambda row: reduce(lambda row, gate: gate.apply(row), gates, row)):
            rows.append(row)
            yield row

    header = tuple(mode.header())
    for line in header:
        show(line)
    run = mode.described(Run(environment=environment()))
    with guarded("comparing"):
        result, status = reported(run, views, all_rows(), mode.lacks, show=show)
    return Outcome(run, tuple(rows), result, status, header, columns, home)


@dataclass(frozen=True, eq=False, repr=False)
class Outcome:
    """The outcome of a comparison or a check: a row for each pair and each node without a partner, and roots.

    `exit_status` is that of pytest: 0, 1, or 5. `notes` are the lines that it prints ahead, `columns` those
    of the CSV, with their places in a row. `home` has tensors from memory, and goes with the outcome.
    """

    run: Run
    rows: tuple[Row, ...]
    result: Result
    exit_status: int
    notes: tuple[str, ...]
    columns: Mapping[str, str]
    home: object = None

    @property
    def verdict(self) -> str:
        """`pass`, `fail`, or `nothing` where nothing could be compared."""
        return self.result.verdict

    @property
    def roots(self) -> tuple[Root, ...]:
        """The places where errors start, the first cause first; empty where no dumps were compared."""
        diagnosis = self.result.diagnosis
        return () if diagnosis is None else diagnosis.roots

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        return run_verdict(self.run, self.result).text

    @property
    def summary(self) -> str:
        """The lines that pytest prints at its end."""
        return "\n".join(self.result.lines)

    def to_frame(self) -> pd.DataFrame:
        """The rows as a frame of pandas, with the columns of the CSV. Raises `AccError` without pandas."""
        frame = _needs("pandas", "to_frame()").DataFrame
        values = getter(self.columns.values())
        return frame([values(row) for row in self.rows], columns=list(self.columns))

    def to_html(self, path: str | os.PathLike[str]) -> str:
        """Write the page of `--acc-html`; returns its path. Raises `AccError`."""
        return self._written(HtmlReport(os.fspath(path)))

    def to_json(self, path: str | os.PathLike[str]) -> str:
        """Write the file of `--acc-json`; returns its path. Raises `AccError`."""
        return self._written(JsonReport(os.fspath(path)))

    def _written(self, view: HtmlReport | JsonReport) -> str:
        with closing(view), guarded("writing a report"):
            view.begin(self.run)
            for row in self.rows:
                view.add(row)
            view.end(self.result.tally.complete)
            view.finish(self.result)
            view.land()
        return view.place

    def plot(self, ax: Any = None) -> Any:
        """The error along the network, drawn by matplotlib. Raises `AccError` without it."""
        axes = ax or _needs("matplotlib.pyplot", "plot()").subplots(figsize=(9, 3))[1]
        names, errors, bounds, failing, roots = zip(*self._points) if self._points else ((),) * 5
        colors = ["tab:red" if red else "tab:green" for red in failing]
        axes.scatter(range(len(names)), errors, [60 if root else 12 for root in roots], colors)
        axes.plot(bounds, "--", color="gray", linewidth=1)
        axes.set(yscale="symlog" if 0 in errors else "log", ylabel=METRIC, title=self.headline)
        return axes

    @property
    def _points(self) -> list[ChartPoint]:
        return points_of(self.rows, frozenset(root.test_id for root in self.roots))

    def __repr__(self) -> str:
        return self.summary

    def _repr_html_(self) -> str:
        """Verdict, roots, and the error along the network, for notebooks."""
        roots = "".join(f"<li>{html.escape(message(root.sentence))}</li>" for root in self.roots)
        return (
            f"<div><b>{self.verdict}</b> {html.escape(message(self.headline))}"
            f"<ul>{roots}</ul>{svg(self._points)}</div>"
        )


def _needs(package: str, what: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise AccError(f"{what} needs {name}; install it: pip install {name}") from error


# The error along the network as a small picture: SVG for notebooks, the same points for matplotlib.


METRIC = "relative_euclidean_distance"
LOWEST, HIGHEST = -9, 1
"""Powers of ten at the lower and upper end of the picture; what is beyond is drawn there."""
_WIDTH, _HEIGHT, _LEFT, _MARGIN = 720, 180, 44, 14


class ChartPoint(NamedTuple):
    """The relative L2 of a pair, its bound (NaN without one), and whether the pair fails or is a root."""

    name: str
    error: float
    bound: float
    failing: bool
    root: bool


def points_of(rows: Iterable[Row], roots: Container[str]) -> list[ChartPoint]:
    """The points of results in execution order; `roots` are the test ids of the roots."""
    points = []
    for row in sorted(rows, key=lambda row: row.number or 0):
        error = row.metrics.get(METRIC)
        if isinstance(error, (int, float)) and not math.isnan(error) and not row.fed:
            bound = next((check.allowed for check in row.checks if check.metric == METRIC), math.nan)
            failing = row.red or row.verdict == "inherited"
            points.append(ChartPoint(row.name, float(error), bound, failing, row.test_id in roots))
    return points


def svg(points: Sequence[ChartPoint]) -> str:
    """The points as an SVG element: errors as dots, bounds as a line, roots ringed."""
    step = (_WIDTH - _LEFT - _MARGIN) / max(1, len(points) - 1)
    xs = [round(_LEFT + number * step, 1) for number in range(len(points))]
    shapes = [
        f'<text x="2" y="{_y(10.0**power)}" fill="#777">1e{power}</text>'
        for power in range(LOWEST, HIGHEST, 2)
    ]
    line = " ".join(f"{x},{_y(point.bound)}" for x, point in zip(xs, points) if not math.isnan(point.bound))
    shapes.append(f'<polyline points="{line}" fill="none" stroke="#999" stroke-dasharray="3 2"/>')
    for x, point in zip(xs, points):
        look = f'fill="{"#c22" if point.failing else "#287"}" r="{5 if point.root else 2.5}"'
        ring = ' stroke="#000" stroke-width="2"' if point.root else ""
        title = html.escape(f"{point.name}: {point.error:.3g}")
        shapes.append(f'<circle cx="{x}" cy="{_y(point.error)}" {look}{ring}><title>{title}</title></circle>')
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" font-size="10"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(shapes)}</svg>'


def _y(value: float) -> float:
    power = math.log10(value) if value > 0 else LOWEST
    share = (min(max(power, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)
    return round(_HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN), 1)
