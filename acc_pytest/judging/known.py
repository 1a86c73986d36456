"""Known differences: failing pairs that somebody has looked at, with a reason, an owner and an end."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import SettingsError, unknown_name
from ..metrics.catalogue import METRICS
from .rules import criteria_of
from .threshold import JudgeContext, PairCriteria

LONGEST = datetime.timedelta(days=366)
"""The farthest end of an entry: a year, leap day included, so that somebody looks at it in every year."""
_KEYS = ("match", "reason", "owner", "expires", "at_most")


@dataclass(frozen=True, slots=True)
class Known:
    """One `[[known]]` table: the failing pairs that `match` are accepted until `expires` (that day included).

    `at_most` bounds the metrics beyond which a pair fails all the same; it names one at least. `expired` was
    decided once, by the process that read the table, so that all processes agree. `source` says where it was
    written.
    """

    match: PairCriteria
    reason: str
    owner: str
    expires: datetime.date
    source: str
    at_most: tuple[tuple[str, float], ...] = ()
    expired: bool = False

    @property
    def origin(self) -> str:
        """Reason, owner and end in one phrase, as reports say it."""
        return f"{self.reason} ({self.owner}, until {self.expires.isoformat()})"

    def names(self, context: JudgeContext) -> bool:
        """Whether it is about a pair, were the pair of any step and dtype."""
        return replace(self.match, dtype=(), mine_dtype=(), step=()).holds(context, ("", ""))


def known_from_table(
    table: Mapping[str, Any], source: str, today: datetime.date, custom: Collection[str] = ()
) -> Known:
    """The entry of one `[[known]]` table.

    Raises `SettingsError` that starts with `source` for a key that is unknown or missing, for a wrong value,
    and for a `match` that a pair without any name has.
    """
    for key in table:
        if key not in _KEYS:
            raise unknown_name("key", key, _KEYS, source)
    for key in ("reason", "owner"):
        if not isinstance(table.get(key), str) or not table[key].strip():
            raise SettingsError(f"{source}: {key} must be a text that is not empty")
    if not table.get("match"):
        raise SettingsError(f"{source}: match is missing; without it every failure would be accepted")
    expires = _date(table.get("expires"), source)
    if expires - today > LONGEST:
        raise SettingsError(
            f"{source}: expires must be at most a year ahead, {today + LONGEST}, got {expires}"
        )
    bounds = _bounds(table.get("at_most"), source, custom)
    match, owner = criteria_of(table["match"], source), table["owner"].strip()
    entry = Known(match, table["reason"].strip(), owner, expires, source, bounds, expires < today)
    if entry.names(JudgeContext(layer="")):
        raise SettingsError(f"{source}: match is about every operator; name those that differ")
    return entry


def _date(value: object, source: str) -> datetime.date:
    if isinstance(value, str):
        try:
            value = datetime.date.fromisoformat(value)
        except ValueError:
            value = None
    if isinstance(value, datetime.datetime):
        return value.date()
    if not isinstance(value, datetime.date):
        raise SettingsError(f"{source}: expires must be a date such as 2027-03-31")
    return value


def _bounds(table: object, source: str, custom: Collection[str]) -> tuple[tuple[str, float], ...]:
    if not isinstance(table, Mapping) or not table:
        expectation = "a table of how far off is accepted, such as { mean_absolute_error = 0.02 }"
        raise SettingsError(f"{source}: at_most must be {expectation}, got {table!r:.100}")
    bounds = []
    for metric, value in table.items():
        if metric not in METRICS and metric not in custom:
            raise unknown_name("metric", metric, [*METRICS, *custom], f"{source}: at_most")
        if metric in METRICS and METRICS[metric].at_least:
            raise SettingsError(
                f"{source}: at_most.{metric} has no upper bound (larger is better); name an error metric"
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise SettingsError(f"{source}: at_most.{metric} must be a finite number, got {value!r:.100}")
        bounds.append((metric, float(value)))
    return tuple(bounds)
