"""Measurement and context of a pair, as flat scalars and back: enough to judge it again without tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Union

from ..errors import AccError
from ..metrics.measurement import STATISTICS, STATISTICS_METRICS, Measurement, Moments, NonFinite, SliceErrors
from ..tensors.header import Statistics
from .derive import ELEMENT_SIGMAS
from .standards import DEFAULT, Standard
from .statistics import NORMAL_SPREAD, StatisticsMeasurement, thresholds_for_statistics
from .threshold import JudgeContext, Threshold, ThresholdRule, by_rule
from .thresholds import factor_of, matching_rules, thresholds_for, tolerance_of_rules

Scalar = Union[None, bool, int, float, str]

_NESTED = {"nonfinite": NonFinite, "moments": Moments, "slices": SliceErrors}
_FIELDS = {name: tuple(field.name for field in fields(kind)) for name, kind in _NESTED.items()}
ROWS_OFF = "slices.rows_off"
_ADDED = frozenset({ROWS_OFF, "slices.last_row_error"})
"""Fields that rows of version 0.1 have not: they have their defaults there."""
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
                keys = [(field, f"{name}.{field}") for field in _FIELDS[name]]
                keys = [(field, key) for field, key in keys if key in scalars or key not in _ADDED]
                fields[name] = _NESTED[name](**{field: scalars[key] for field, key in keys})
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


# The thresholds of a pair apart from its data: what rules and standards allow, in a form that can be kept.
#
# Thresholds depend on the tensors: the bound of one element on the size of golden, T on the number of
# elements, that of a noise run on its errors. What the same rules allow for a standard tensor (of rms 1/8
# and largest element 1, so large that it is no sample, with a noise run that is off by 1 %) depends on
# dtypes, place in the model and rules alone: it changes when somebody changes a rule, and not with the
# prompt.


NO_SAMPLE = 2**40
_NO_SAMPLE_SHAPE = (2**20, 2**20)
_NO_SAMPLE_NORMS = {"l2norm": math.sqrt(NO_SAMPLE), "l1norm": NO_SAMPLE / NORMAL_SPREAD}
NOISE = 0.01
_STANDARD_NOISE: dict[str, Any] = {
    **dict.fromkeys(("noise_error", "noise_max_absolute_error"), NOISE),
    **dict.fromkeys(("noise_mismatches", "noise_new_nonfinite", "noise_lost_nonfinite"), 0),
    "noise_typical_row": None,
}
OFF = "off"


@dataclass(frozen=True, slots=True)
class NominalBound:
    """One bound: `<= 0.005`, `>= 0.999` or off (an infinite `bound`), and the rule that it comes from."""

    bound: float
    at_least: bool
    rule: str

    def __str__(self) -> str:
        sign = OFF if math.isinf(self.bound) else f"{'>=' if self.at_least else '<='} {self.bound!r}"
        return f"{sign} {self.rule}"

    @classmethod
    def parse(cls, text: str) -> NominalBound:
        """The bound that `str` was made of. Raises `ValueError`."""
        if text == OFF or text.startswith(f"{OFF} "):
            return cls(math.inf, False, text[len(OFF) + 1 :])
        sign, _, rest = text.partition(" ")
        bound, _, rule = rest.partition(" ")
        if sign not in ("<=", ">="):
            raise ValueError(f"a bound must look like '<= 0.005 default', got {text!r:.100}")
        return cls(float(bound), sign == ">=", rule)

    def looser_than(self, other: NominalBound) -> float:
        """The ratio of the allowed error to that of `other`; 1 where it is equal, infinite where none was."""
        if math.isinf(other.bound):
            return 1.0 if math.isinf(self.bound) else 0.0
        if math.isinf(self.bound) or self.at_least is not other.at_least:
            return math.inf
        now, before = self.bound, other.bound
        if self.at_least:
            # A floor of a similarity by the noise it stands for: noise r leaves 1 - r^2/2.
            if max(now, before) > 1:
                return math.inf if now < before else 1.0 if now == before else 0.0
            now, before = math.sqrt(1 - now), math.sqrt(1 - before)
        if before <= 0:
            return 1.0 if now <= before else math.inf
        return now / before


def nominal_bounds(
    context: Mapping[str, Scalar],
    statistics: Mapping[str, Scalar],
    rules: Sequence[ThresholdRule],
    standard: Standard = DEFAULT,
) -> dict[str, str]:
    """The nominal bounds of a pair by metric, as text; empty where nothing can be judged.

    `context` and `statistics` are those of its row (`replay`).
    """
    try:
        place = context_of(context)
        noise = {"noise_nearby": None} if place.noise_error is None else _STANDARD_NOISE
        place = replace(place, **noise)
        if is_stated(statistics):
            stated = stated_of(statistics)
            dtypes = (stated.golden_dtype, stated.mine_dtype)
            golden = replace(stated.golden, max=1.0, min=-1.0, mean=0.0, **_NO_SAMPLE_NORMS)
            stated = replace(stated, numel=NO_SAMPLE, golden=golden)
            thresholds = thresholds_for_statistics(place, stated, rules, standard)
        else:
            measurement = measurement_of(statistics)
            dtypes = (measurement.golden_dtype, measurement.mine_dtype)
            tensor = replace(
                measurement,
                numel=NO_SAMPLE,
                compared=NO_SAMPLE,
                golden_rms=1.0 / ELEMENT_SIGMAS,
                golden_max_abs=1.0,
                shape=_NO_SAMPLE_SHAPE,
                slices=SliceErrors() if measurement.slices.bias is None else SliceErrors(bias=0.0),
            )
            thresholds = thresholds_for(place, tensor, rules, standard)
    except (AccError, KeyError):
        return {}
    matching = matching_rules(place, dtypes, rules)
    return {
        threshold.metric: str(
            NominalBound(threshold.bound, threshold.at_least, _rule(threshold, matching, dtypes, standard))
        )
        for threshold in thresholds
    }


def _rule(
    threshold: Threshold, rules: Sequence[ThresholdRule], dtypes: tuple[str, str], standard: Standard
) -> str:
    """The origin of a bound, without the arithmetic."""
    if by_rule(threshold.reason):
        return threshold.reason
    rule_tolerance = tolerance_of_rules(rules, dtypes)
    if rule_tolerance is not None:
        return f"{standard.name}, {rule_tolerance.reason}"
    factor, origin = factor_of(rules)
    return f"{standard.name}, factor {factor:g} from {origin}" if factor != 1.0 else standard.name
