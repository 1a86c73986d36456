"""What judging sees of a pair, as flat scalars and back: enough to judge it again without its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Union

from ..metrics.measurement import Measurement, Moments, NonFinite
from ..tensors.header import Statistics
from .catalogue import STATISTICS, STATISTICS_METRICS
from .statistics import StatisticsMeasurement
from .threshold import JudgeContext

Scalar = Union[None, bool, int, float, str]

_NESTED = {"nonfinite": NonFinite, "moments": Moments}
_REPLICA = "replica"
_LEFT_OUT = ("worst", "custom")
"""Values of elements, and of the user's own metrics: rows have them in words of their own."""


def context_scalars(context: JudgeContext) -> dict[str, Scalar]:
    """The context by field, neutral values left out."""
    found = ((one.name, getattr(context, one.name), one.default) for one in fields(JudgeContext))
    return {name: value for name, value, default in found if value != default}


def context_of(scalars: Mapping[str, Scalar]) -> JudgeContext:
    """The context that `context_scalars` was given."""
    known: Any = {one.name: scalars[one.name] for one in fields(JudgeContext) if one.name in scalars}
    return JudgeContext(**known)


def statistics_scalars(measurement: Measurement) -> dict[str, Scalar]:
    """The measurement by field, those of its parts as `moments.golden`; the shape as `2x3x4`."""
    found: dict[str, Scalar] = {}
    for one in fields(Measurement):
        value = getattr(measurement, one.name)
        if one.name == "shape":
            found["shape"] = "x".join(map(str, value))
        elif one.name in _NESTED:
            found |= {f"{one.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
        elif one.name not in _LEFT_OUT:
            found[one.name] = value
    return found


def measurement_of(
    scalars: Mapping[str, Scalar], custom: Mapping[str, tuple[float | str, str]] | None = None
) -> Measurement:
    """The measurement that `statistics_scalars` was given, without its worst element.

    `custom` are the user's own metrics, which a row keeps apart. Raises `KeyError` or `TypeError` for
    scalars that lack a field.
    """
    known: dict[str, Any] = {}
    for one in fields(Measurement):
        if one.name == "shape":
            known["shape"] = tuple(int(size) for size in str(scalars["shape"]).split("x") if size)
        elif one.name in _NESTED:
            kind = _NESTED[one.name]
            known[one.name] = kind(**{p.name: scalars[f"{one.name}.{p.name}"] for p in fields(kind)})
        elif one.name not in _LEFT_OUT:
            known[one.name] = scalars[one.name]
    return Measurement(worst=None, custom=custom or {}, **known)


def with_replicas(scalars: Mapping[str, Scalar], others: Iterable[Mapping[str, Scalar]]) -> dict[str, Scalar]:
    """The scalars of one replica, and those of the others as `replica1.numel` and so on."""
    found = dict(scalars)
    for number, other in enumerate(others, start=1):
        found |= {f"{_REPLICA}{number}.{name}": value for name, value in other.items()}
    return found


def replicas_of(scalars: Mapping[str, Scalar]) -> list[dict[str, Scalar]]:
    """The scalars of each replica, those of the row first. The inverse of `with_replicas`."""
    found: dict[str, dict[str, Scalar]] = {"": {}}
    for name, value in scalars.items():
        replica, _, rest = name.partition(".")
        if replica.startswith(_REPLICA):
            found.setdefault(replica, {})[rest] = value
        else:
            found[""][name] = value
    return list(found.values())


def stated_scalars(measurement: StatisticsMeasurement) -> dict[str, Scalar]:
    """What is known of a pair of which only statistics were dumped, those of golden as `stated.max`."""
    return {
        "numel": measurement.numel,
        "golden_dtype": measurement.golden_dtype,
        "mine_dtype": measurement.mine_dtype,
        **{f"stated.{name}": getattr(measurement.golden, name) for name in STATISTICS},
        **measurement.values,
    }


def is_stated(scalars: Mapping[str, Scalar]) -> bool:
    """Whether these are scalars of `stated_scalars`."""
    return "stated.max" in scalars


def stated_of(scalars: Mapping[str, Scalar]) -> StatisticsMeasurement:
    """The measurement that `stated_scalars` was given. Raises `KeyError` for scalars that lack a field."""
    known: Any = scalars
    return StatisticsMeasurement(
        known["numel"],
        known["golden_dtype"],
        known["mine_dtype"],
        Statistics(**{name: known[f"stated.{name}"] for name in STATISTICS}),
        {name: known[name] for name in STATISTICS_METRICS if name in known},
    )
