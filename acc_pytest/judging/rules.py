"""Threshold rules from what people write: TOML tables, marker and hook arguments."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..errors import SettingsError, unknown_name
from ..metrics.catalogue import METRICS
from ..tensors.dtypes import DTYPES
from ..vocabulary import LEVELS
from .threshold import Bound, PairCriteria, ThresholdRule

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


def in_precedence(
    config: Sequence[ThresholdRule] = (),
    markers: Sequence[ThresholdRule] = (),
    hook: Sequence[ThresholdRule] = (),
) -> tuple[ThresholdRule, ...]:
    """All rules of a pair, weakest first: config files in order, markers, hook.

    `markers` come as pytest's `iter_markers` gives them, closest to the test first.
    """
    return (*config, *reversed(markers), *hook)


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
