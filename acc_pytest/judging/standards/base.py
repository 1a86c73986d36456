"""`Standard`: a named way to the thresholds of a pair of dumps, or of an output of an operator."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base.reason import Reason
from ...errors import Incomparable, SettingsError
from ...metrics.measurement import EXACT, ElementTolerance, default_tolerance
from ...tensors.dtypes import by_name
from ..derive import NONFINITE, derived, is_exact
from ..threshold import JudgeContext, Threshold
from ..tolerance import Tolerance, layers_before

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Adjustment of a standard by rules before they are laid over it.

    `factor` multiplies its bounds and `origin` says which rule wants that. `tolerance` is a T that a rule
    set; a standard whose bounds follow from T derives them from this one.
    """

    factor: float = 1.0
    origin: str = ""
    tolerance: Tolerance | None = None

    @property
    def text(self) -> str:
        """The factor as the end of a reason; empty where there is none."""
        return Reason(", times {:g} from {}", self.factor, self.origin) if self.factor != 1.0 else ""


class Second(enum.Enum):
    """Source of the second golden of an output: none, another device, our own low-precision run."""

    NONE = enum.auto()
    DEVICE = enum.auto()
    COMPUTED = enum.auto()


def _no_second(context: JudgeContext, has_second: bool) -> Second:
    return Second.NONE


@dataclass(frozen=True, slots=True)
class Standard:
    """A named set of rules.

    `about` is the standard in one line, for a report's header. `thresholds` gives the bounds of tensors that
    are not empty, from their place in the model and their measurement; each reason names the row of the
    standard's table and every term of the bound. `elements`, where the standard bounds single elements,
    gives the tolerance to count them with, from the dtypes of golden and mine; it is asked before measuring.

    The others are for single operators: `requirement` is the bound in the words of the old result sheet,
    `second` says whose second golden is needed, by whether there is a second device's dump. `samples` says
    that outputs drawn at random are judged as samples.
    """

    name: str
    about: str
    thresholds: Callable[[JudgeContext, Measurement, Adjustment], tuple[Threshold, ...]]
    elements: Callable[[JudgeContext, tuple[str, str], Adjustment], ElementTolerance | None] | None = None
    requirement: Callable[[JudgeContext, Measurement, Adjustment], str] | None = None
    second: Callable[[JudgeContext, bool], Second] = _no_second
    samples: bool = False


def kind_of(context: JudgeContext) -> str:
    """The kind of the type that an operator writes: float, int, uint, bool or complex."""
    return "float" if context.written == "hifloat8" else by_name(context.written).kind


def of_output(measurement: Measurement, *bounds: Threshold) -> tuple[Threshold, ...]:
    """Bounds of an operator's output where it has a finite element, and that NaN and infinities agree.

    No standard may overlook the latter.
    """
    reason = "NaN and infinities have to be the same on both sides"
    finite = bounds if measurement.compared else ()
    return (*finite, Threshold("nonfinite_mismatch", 0.0, False, reason))


WHOLE_NUMBERS = Threshold("max_absolute_error", 0.0, False, "whole numbers are exact")


def unknown_dtype(standard: str, context: JudgeContext) -> SettingsError:
    """The error for a type that a standard has no bound for."""
    return SettingsError(
        f"standard {standard} has no bound for {context.written} outputs of {context.mine_op_type}"
    )


# The standard `default`: T, derived from the dtypes and the place in the model (`derive.py`).


def derived_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    """The derived bounds, which other standards fall back to where they say nothing."""
    return derived(context, measurement, adjustment.factor, adjustment.origin, adjustment.tolerance)


DEFAULT = Standard(
    "default", "T, derived from dtype, length of sums, depth and size of the tensor", derived_thresholds
)


# The standard `open`: mean relative error below T, largest below 10 T, as Ascend asks of open operators.
#
# The relative error of an element is |error| / (|golden| + 1e-7), for one operator given equal inputs. Whole
# numbers have to be equal. The standard `ascend` takes the table for pairs of operators that ATB has not.


MEAN = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-13,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
"""T by the output's type; a type that is not here has no bound."""

LARGEST = 10
"""The largest relative error, as a multiple of T."""


def _open_t(context: JudgeContext, adjustment: Adjustment) -> float | None:
    """T of an output; `None` for whole numbers. Raises `SettingsError` for a type without a bound."""
    if kind_of(context) != "float":
        return None
    if context.written not in MEAN:
        raise unknown_dtype("open", context)
    return MEAN[context.written] * adjustment.factor


def _open_tolerance(
    context: JudgeContext, dtypes: tuple[str, str], adjustment: Adjustment
) -> ElementTolerance:
    t = _open_t(context, adjustment)
    return EXACT if t is None else ElementTolerance(LARGEST * t, scale="relative")


def _open_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    t, dtype = _open_t(context, adjustment), context.written
    if t is None:
        return of_output(measurement, WHOLE_NUMBERS)
    return of_output(
        measurement,
        Threshold("mere", t, False, Reason("mean relative error of {} below T", dtype), strict=True),
        Threshold(
            "mare", LARGEST * t, False, Reason("largest relative error of {} below 10 T", dtype), strict=True
        ),
    )


def _open_requirement(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> str:
    t = _open_t(context, adjustment)
    return f"100%({EXACT})" if t is None else f"MERE < {t:.6g}, MARE < {LARGEST * t:.6g}"


OPEN = Standard(
    "open",
    "the open Ascend operator standard: mean and largest relative error",
    _open_thresholds,
    _open_tolerance,
    _open_requirement,
)


# The standard `msit`: the old tool's share of elements within a relative error, by the output's type.
#
# Its mistakes are not kept: a bool output can pass (the share has to reach 100, not exceed it), `±1` of
# integers means a difference and not a relative error of 100 %, and where golden is 0 an element is held
# to the same number instead of passing whatever it is.


_MSIT_RULES = {
    "float32": (ElementTolerance(2.0**-20, scale="relative"), 99.99),
    "float16": (ElementTolerance(2.0**-10, scale="relative"), 99.9),
    "bfloat16": (ElementTolerance(2.0**-8, scale="relative"), 99.9),
    **dict.fromkeys(
        ("float64", "int32", "uint32", "int64", "uint64"), (ElementTolerance(1e-4, scale="relative"), 99.99)
    ),
    **dict.fromkeys(("int8", "int16", "uint16"), (ElementTolerance(1.0), 99.9)),
    "uint8": (ElementTolerance(1.0), 99.0),
    "bool": (EXACT, 100.0),
}


def _msit_rule(context: JudgeContext, adjustment: Adjustment) -> tuple[ElementTolerance, float]:
    if context.written not in _MSIT_RULES:
        raise unknown_dtype("msit", context)
    tolerance, rate = _MSIT_RULES[context.written]
    return tolerance.times(adjustment.factor), rate


def _msit_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    tolerance, rate = _msit_rule(context, adjustment)
    reason = Reason("share of elements of {} with {}{}", context.written, tolerance, adjustment.text)
    return of_output(measurement, Threshold("rel_precision_rate", rate, True, reason))


def _msit_requirement(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> str:
    tolerance, rate = _msit_rule(context, adjustment)
    return f"{rate}%(error<{tolerance.atol})"


MSIT = Standard(
    "msit",
    "the old tool's share of elements within a relative error",
    _msit_thresholds,
    lambda context, dtypes, adjustment: _msit_rule(context, adjustment)[0],
    _msit_requirement,
)


# The standard `torch`: every element within the tolerance of `torch.testing.assert_close` for its type.
#
#     |mine - golden| <= atol + rtol * |golden|
#
# with the larger rtol and the larger atol of both dtypes. Integers and booleans have to be equal. NaN equals
# NaN, as with `equal_nan=True`, and dtypes may differ, as with `check_dtype=False`. The table is
# `metrics/measurement.py`, which adds fp8; the pass counts the elements beyond it.


def _torch_tolerance(
    context: JudgeContext, dtypes: tuple[str, str], adjustment: Adjustment
) -> ElementTolerance:
    return default_tolerance(*dtypes).times(adjustment.factor)


def _torch_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    """Raises `Incomparable` for elements that were counted with another tolerance."""
    if is_exact(measurement):
        return derived_thresholds(context, measurement, adjustment)
    if measurement.golden_max_abs is None:
        return NONFINITE
    dtypes = (measurement.golden_dtype, measurement.mine_dtype)
    limits = _torch_tolerance(context, dtypes, adjustment)
    if (measurement.rtol, measurement.atol) != (limits.rtol, limits.atol):
        raise Incomparable(
            f"elements were counted with rtol {measurement.rtol:g} and atol {measurement.atol:g}, and the "
            f"standard torch wants rtol {limits.rtol:g} and atol {limits.atol:g}; compare the dumps again"
        )
    rows = " and ".join(dict.fromkeys(dtypes))
    reason = Reason(
        "assert_close's row {}: every element within atol {:g} + rtol {:g}*|golden| ({} not forgiven){}",
        *(rows, limits.atol, limits.rtol, layers_before(context.depth), adjustment.text),
    )
    return (Threshold("beyond_fraction", 0.0, False, reason), *NONFINITE)


TORCH = Standard(
    "torch",
    "the tolerances of torch.testing.assert_close, element by element",
    _torch_thresholds,
    _torch_tolerance,
)
