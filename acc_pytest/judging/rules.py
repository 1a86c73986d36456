"""Threshold rules from what people write: TOML tables, marker and hook arguments."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..base.reason import Reason
from ..base.vocabulary import LEVELS
from ..errors import SettingsError, unknown_name
from ..metrics.measurement import METRICS
from ..tensors.dtypes import DTYPES
from .threshold import Bound, JudgeContext, PairCriteria, ThresholdRule

if TYPE_CHECKING:
    from ..dumps.base import StepLabel


_CRITERIA = ("op_type", "name", "level", "dtype", "mine_dtype", "layer", "policy", "step")


def rule_from_table(table: Mapping[str, Any], source: str, custom: Collection[str] = ()) -> ThresholdRule:
    """The rule of one `[[threshold]]` table (or of a hook's mapping of the same form).

    Keys: `match` (a table of criteria), `reason` (text), `factor` (scales the derived tolerance), and
    metric names. `custom` are the names of the custom metrics in use. Raises `SettingsError` that
    starts with `source` for an unknown key or a value that is no bound.
    """
    bounds: list[Bound] = []
    factor: float | None = None
    for key, value in table.items():
        if key == "factor":
            factor = _number(value, f"{source}: factor")
            if factor <= 0:
                raise SettingsError(
                    f"{source}: factor must be > 0, got {factor:g}; it multiplies the tolerance"
                )
        elif key in METRICS or key in custom:
            bounds.append(_bound(key, value, source))
        elif key not in ("match", "reason"):
            raise unknown_name("key", key, [*METRICS, *custom, "factor", "match", "reason"], source)
    if not bounds and factor is None:
        raise SettingsError(f"{source}: sets nothing; name a metric and its bound, or a factor")
    reason = table.get("reason", "")
    if not isinstance(reason, str):
        raise SettingsError(f"{source}: reason must be a string, got {reason!r:.100}")
    return ThresholdRule(tuple(bounds), source, criteria_of(table.get("match", {}), source), factor, reason)


def rule_from_marker(kwargs: Mapping[str, Any], where: str, custom: Collection[str] = ()) -> ThresholdRule:
    """The rule of `@pytest.mark.acc_threshold(cosine_similarity=0.999, kl_divergence=None)`.

    `where` names the test (its node id) or the call. All arguments are those of a `[[threshold]]` table.
    """
    return rule_from_table(kwargs, f"marker acc_threshold on {where}", custom)


def rule_from_hook(
    table: Mapping[str, Any], custom: Collection[str] = (), hook: str = "pytest_acc_thresholds"
) -> ThresholdRule:
    """The rule that the hook called `hook` returned as a mapping."""
    return rule_from_table(table, f"hook {hook}", custom)


def _bound(metric: str, value: object, source: str) -> Bound:
    where = f"{source}: {metric}"
    kind = METRICS.get(metric)
    if value is None or value is False:
        return Bound(metric, None, kind is not None and kind.at_least)
    if kind is not None:
        number = _number(value, where)
        if not kind.at_least and number < 0:
            raise SettingsError(f"{where} must be >= 0, got {number:g}")
        return Bound(metric, number, kind.at_least)
    if isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in ("min", "max"):
        (side,) = value
        return Bound(metric, _number(value[side], f"{where}.{side}"), side == "min")
    raise SettingsError(
        f"{where} is a custom metric, so give the side of its bound: {{ max = 0.1 }} or {{ min = 0.9 }}"
    )


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SettingsError(
            f"{where} must be a finite number (or false to switch it off), got {value!r:.100}"
        )
    return float(value)


def criteria_of(table: object, source: str) -> PairCriteria:
    """The criteria of a `match` table. Raises `SettingsError` that starts with `source` for a wrong one."""
    if not isinstance(table, Mapping):
        raise SettingsError(
            f'{source}: match must be a table such as {{ op_type = "Linear*" }}, got {table!r:.100}'
        )
    criteria: dict[str, tuple[Any, ...]] = {}
    for key, value in table.items():
        if key not in _CRITERIA:
            raise unknown_name("match criterion", key, _CRITERIA, source)
        values = value if isinstance(value, (list, tuple)) else (value,)
        if not values:
            raise SettingsError(f"{source}: match.{key} is an empty list; leave it out to match all")
        criteria[key] = _steps(values, source) if key == "step" else _globs(key, values, source)
    return PairCriteria(**criteria)


def _steps(values: Sequence[object], source: str) -> tuple[StepLabel, ...]:
    for step in values:
        number = isinstance(step, int) and not isinstance(step, bool) and step >= 0
        if not number and step != "warmup":
            raise SettingsError(f'{source}: match.step must be 0, 1, 2, ... or "warmup", got {step!r:.100}')
    return cast("tuple[StepLabel, ...]", tuple(values))


def _globs(key: str, values: Sequence[object], source: str) -> tuple[str, ...]:
    names: Collection[str] = LEVELS if key == "level" else ()
    if key in ("dtype", "mine_dtype"):
        names = [dtype.name for dtype in DTYPES if dtype.kind != "raw"]
    for glob in values:
        if not isinstance(glob, str) or not glob:
            raise SettingsError(
                f"{source}: match.{key} must be a string or a list of strings, got {glob!r:.100}"
            )
        plain = not any(sign in glob for sign in "*?[")
        if names and plain and glob not in names:
            raise unknown_name(key, glob, names, f"{source}: match")
    return cast("tuple[str, ...]", tuple(values))


# Known differences: failing pairs that somebody has looked at, with a reason, an owner and an end.


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
        return Reason("{} ({}, until {})", self.reason, self.owner, self.expires.isoformat())

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


# Threshold rules and known differences of a config file: its `[[threshold]]` and `[[known]]` tables.


def rules_and_known(
    content: Mapping[str, Any], path: Path, custom: Collection[str] = ()
) -> tuple[tuple[ThresholdRule, ...], tuple[Known, ...]]:
    """The rules and the known differences of the file at `path`, which holds `content`.

    `custom` are the names of the custom metrics in use. Raises `SettingsError` naming the file and the key.
    """
    today = datetime.datetime.now(datetime.timezone.utc).date()
    rules = tuple(
        rule_from_table(table, f"{path.name} [[threshold]] {number}", custom)
        for number, table in enumerate(_tables(content, "threshold", path), start=1)
    )
    differences = tuple(
        known_from_table(table, f"{path.name} [[known]] {number}", today, custom)
        for number, table in enumerate(_tables(content, "known", path), start=1)
    )
    return rules, differences


def _tables(content: Mapping[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    """The tables `[[name]]`, none where there are none."""
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise SettingsError(f"{path}: {name} must be written as [[{name}]] tables")
    return tables
