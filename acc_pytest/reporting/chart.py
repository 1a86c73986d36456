"""The error along the network as a small picture: SVG for notebooks, the same points for matplotlib."""

from __future__ import annotations

import html
import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .row import Row

METRIC = "relative_euclidean_distance"
LOWEST, HIGHEST = -9.0, 1.0
"""Powers of ten at the lower and upper end of the picture; what is beyond is drawn there."""
_WIDTH, _HEIGHT, _LEFT, _BELOW = 720, 180, 44, 18


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """The relative L2 of a pair, its bound where it has one, and whether the pair fails or is a root."""

    name: str
    error: float
    bound: float | None
    failing: bool
    root: bool


def points_of(rows: Iterable[Row], roots: Container[str]) -> list[ChartPoint]:
    """The points of results in execution order; `roots` are the test ids of the roots."""
    points = []
    numbered = [row for row in rows if row.number is not None and not row.fed]
    for row in sorted(numbered, key=lambda row: row.number or 0):
        error = row.metrics.get(METRIC)
        if isinstance(error, (int, float)) and not math.isnan(error):
            bound = next((check.allowed for check in row.checks if check.metric == METRIC), None)
            failing = row.red or row.verdict == "inherited"
            points.append(ChartPoint(row.name, float(error), bound, failing, row.test_id in roots))
    return points


def svg(points: Sequence[ChartPoint]) -> str:
    """The points as an SVG element: errors as dots, bounds as a line, roots ringed; empty without points."""
    if not points:
        return ""
    step = (_WIDTH - _LEFT - 8) / max(1, len(points) - 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'role="img" aria-label="relative L2 error in execution order" font-size="10">'
    ]
    for power in range(int(LOWEST), int(HIGHEST) + 1, 2):
        y = _y(10.0**power)
        lines.append(f'<path d="M{_LEFT} {y}H{_WIDTH}" stroke="#ccc" stroke-width=".5"/>')
        lines.append(f'<text x="2" y="{y}" fill="#777">1e{power}</text>')
    bounds = [(n, point.bound) for n, point in enumerate(points) if point.bound is not None]
    line = " ".join(f"{_LEFT + n * step:.1f},{_y(bound)}" for n, bound in bounds)
    lines.append(f'<polyline points="{line}" fill="none" stroke="#999" stroke-dasharray="3 2"/>')
    for number, point in enumerate(points):
        color = "#c22" if point.failing else "#287"
        ring = ' stroke="#000" stroke-width="2"' if point.root else ""
        title = html.escape(f"{point.name}: {point.error:.3g}")
        x, y, radius = _LEFT + number * step, _y(point.error), 5 if point.root else 2.5
        lines.append(
            f'<circle cx="{x:.1f}" cy="{y}" r="{radius}" fill="{color}"{ring}><title>{title}</title></circle>'
        )
    return "".join([*lines, "</svg>"])


def _y(value: float) -> float:
    power = math.log10(value) if value > 0 else LOWEST
    share = (min(max(power, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST)
    return round(_HEIGHT - _BELOW - share * (_HEIGHT - _BELOW - 10), 1)
