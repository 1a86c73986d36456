"""Measurement and context of a pair, as flat scalars and back: enough to judge it again without tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, Union

from ..metrics.catalogue import STATISTICS, STATISTICS_METRICS
from ..metrics.measurement import Measurement, Moments, NonFinite, SliceErrors
from ..tensors.header import Statistics
from .statistics import StatisticsMeasurement
from .threshold import JudgeContext

Scalar = Union[None, bool, int, float, str]

_NESTED = {"nonfinite": NonFinite, "moments": Moments, "slices": SliceErrors}
_FIELDS = {name: tuple(field.name for field in fields(kind)) for name, kind in _NESTED.items()}
_LEFT_OUT_IF = {"slices": SliceErrors()}
"""Parts that many tensors do not have, as they are there."""
_REPLICA = "replica"
_ROUNDING = "stated.rounding"
_DIGITS = "stated.digits"
_LEFT_OUT = ("worst", "custom", "elements", "further")
"""Values of elements, of the user's own metrics and of operators: rows have them in words of their own."""
_ALWAYS_STATED = ("max", "min", "mean", "l2norm")
"""Statistics that a row has a place for, known or not."""
_STORED = tuple(field.name for field in fields(Measurement) if field.name not in _LEFT_OUT)

_PLAIN = tuple(name for name in _STORED if name not in (*_NESTED, "shape"))
_NESTED_FIELDS = {name: [f"{name}.{field}" for field in names] for name, names in _FIELDS.items()}
_ALWAYS = (
    *_PLAIN,
    *(field for name, names in _NESTED_FIELDS.items() if name not in _LEFT_OUT_IF for field in names),
)
_ALWAYS_VALUES = attrgetter(*_ALWAYS)
_SOMETIMES_VALUES = {name: attrgetter(*_FIELDS[name]) for name in _LEFT_OUT_IF}

_CONTEXT = {field.name: field.default for field in fields(JudgeContext)}
_CONTEXT_VALUES = attrgetter(*_CONTEXT)


def context_scalars(context: JudgeContext) -> dict[str, Scalar]:
    """The context by field, neutral values left out."""
    values = zip(_CONTEXT.items(), _CONTEXT_VALUES(context))
    return {name: value for (name, neutral), value in values if value != neutral}


def context_of(scalars: Mapping[str, Scalar]) -> JudgeContext:
    """The context that `context_scalars` was given."""
    fields: Any = {name: scalars[name] for name in _CONTEXT if name in scalars}
    return JudgeContext(**fields)


def statistics_scalars(measurement: Measurement) -> dict[str, Scalar]:
    """The measurement by field, those of its parts as `moments.golden`; the shape as `2x3x4`."""
    scalars: dict[str, Scalar] = {"shape": "x".join(map(str, measurement.shape))}
    scalars.update(zip(_ALWAYS, _ALWAYS_VALUES(measurement)))
    for name, values in _SOMETIMES_VALUES.items():
        record = getattr(measurement, name)
        if record != _LEFT_OUT_IF[name]:
            scalars.update(zip(_NESTED_FIELDS[name], values(record)))
    return scalars


def measurement_of(
    scalars: Mapping[str, Scalar], custom: Mapping[str, tuple[float | str, str]] | None = None
) -> Measurement:
    """The measurement that `statistics_scalars` was given, without its worst element.

    `custom` are the user's own metrics, which a row keeps apart. Raises `KeyError` or `TypeError` for
    scalars that lack a field.
    """
    fields: dict[str, Any] = {}
    for name in _STORED:
        if name == "shape":
            fields["shape"] = tuple(int(size) for size in str(scalars["shape"]).split("x") if size)
        elif name in _NESTED:
            if name not in _LEFT_OUT_IF or f"{name}.{_FIELDS[name][0]}" in scalars:
                fields[name] = _NESTED[name](**{field: scalars[f"{name}.{field}"] for field in _FIELDS[name]})
        else:
            fields[name] = scalars[name]
    return Measurement(worst=None, custom=custom or {}, **fields)


def with_replicas(
    scalars: Mapping[str, Scalar], replicas: Iterable[Mapping[str, Scalar]]
) -> dict[str, Scalar]:
    """The scalars of one replica, and those of the others as `replica1.numel` and so on."""
    merged = dict(scalars)
    for number, replica in enumerate(replicas, start=1):
        merged |= {f"{_REPLICA}{number}.{name}": value for name, value in replica.items()}
    return merged


def replicas_of(scalars: Mapping[str, Scalar]) -> list[dict[str, Scalar]]:
    """The scalars of each replica, those of the row first. The inverse of `with_replicas`."""
    replicas: dict[str, dict[str, Scalar]] = {"": {}}
    for name, value in scalars.items():
        replica, _, rest = name.partition(".")
        if replica.startswith(_REPLICA):
            replicas.setdefault(replica, {})[rest] = value
        else:
            replicas[""][name] = value
    return list(replicas.values())


def stated_scalars(measurement: StatisticsMeasurement) -> dict[str, Scalar]:
    """The measurement of a pair of which only statistics were dumped, golden's as `stated.max`."""
    return {
        "numel": measurement.numel,
        "golden_dtype": measurement.golden_dtype,
        "mine_dtype": measurement.mine_dtype,
        **({_ROUNDING: measurement.rounding} if measurement.rounding else {}),
        **({_DIGITS: measurement.digits} if measurement.digits else {}),
        **{
            f"stated.{name}": value
            for name in STATISTICS
            if (value := getattr(measurement.golden, name)) is not None or name in _ALWAYS_STATED
        },
        **measurement.values,
    }


def is_stated(scalars: Mapping[str, Scalar]) -> bool:
    """Whether these are scalars of `stated_scalars`."""
    return "stated.max" in scalars


def stated_of(scalars: Mapping[str, Scalar]) -> StatisticsMeasurement:
    """The measurement that `stated_scalars` was given. Raises `KeyError` for scalars that lack a field."""
    values: Any = scalars
    return StatisticsMeasurement(
        values["numel"],
        values["golden_dtype"],
        values["mine_dtype"],
        Statistics(**{name: values.get(f"stated.{name}") for name in STATISTICS}),
        {name: values[name] for name in STATISTICS_METRICS if name in values},
        values.get(_ROUNDING, 0.0),
        values.get(_DIGITS, 0.0),
    )
