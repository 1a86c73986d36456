"""The `[[known]]` entry that would accept a failing row, as lines to paste into a config file."""

from __future__ import annotations

import datetime
import glob
import json
import math
from collections.abc import Iterator

from ..metrics.catalogue import METRICS
from ..reporting.row import Row
from .known import measured

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
    failing = (check.metric for check in row.checks if not check.passed and not check.at_least)
    for metric in ("relative_euclidean_distance", *(metric for metric in failing if metric in METRICS)):
        error = measured(row, metric)
        if error is not None and math.isfinite(error):
            yield f"at_most.{metric} = {_above(error)}"
            return


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
    text = f"{error * ROOM:.2g}"
    return text if "e" in text else f"{error * ROOM:#.2g}".rstrip(".")
