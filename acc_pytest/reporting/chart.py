"""The error along the network as a small picture: SVG for notebooks, the same points for matplotlib."""

from __future__ import annotations

import html
import math
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .row import Row

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
