"""The `[[known]]` entry that would accept a failing row, as lines to paste into a config file."""

from __future__ import annotations

import datetime
import glob
import json
from collections.abc import Iterator

from ..reporting.row import Row

DAYS = 90
"""How long the entry that is offered holds: a quarter."""
ROOM = 1.05
"""How much more than the measured error the entry accepts: it is written with two digits."""


def entry_of(row: Row, today: datetime.date) -> Iterator[str]:
    """The lines; whoever pastes them says why the difference is right, and whose it is."""
    yield "[[known]]"
    for key, value in _matched(row).items():
        yield f"match.{key} = {_toml(value)}"
    yield 'reason = "WHY IT IS RIGHT"'
    yield 'owner = "WHOSE IT IS"'
    yield f"expires = {today + datetime.timedelta(days=DAYS)}"
    error = row.metrics.get("relative_euclidean_distance")
    if isinstance(error, float):
        yield f"at_most.relative_euclidean_distance = {_above(error)}"


def _matched(row: Row) -> dict[str, str | int]:
    """What tells the row from others: its operator, layer and step."""
    side = row.mine if row.mine.node else row.golden
    match: dict[str, str | int] = {"name": glob.escape(side.name or side.node or row.name)}
    if row.layer:
        match["layer"] = glob.escape(row.layer)
    if isinstance(row.step, (int, str)) and row.step != "":
        match["step"] = row.step
    return match


def _toml(value: str | int) -> str:
    """A value of TOML. Its basic strings are those of JSON, without lone surrogates."""
    if isinstance(value, int):
        return str(value)
    return json.dumps(value.encode("utf-8", "replace").decode("utf-8")).replace("\x7f", "\\u007f")


def _above(error: float) -> str:
    return f"{error * ROOM:.2g}" if "e" in f"{error * ROOM:.2g}" else f"{error * ROOM:#.2g}"
