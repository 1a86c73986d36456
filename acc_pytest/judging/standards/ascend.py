"""The standard `ascend`: the published bounds of Ascend for single operators, also held against pairs.

    an ATB operator       max_scaled_error <= the row of its class and type (`atb_bounds.py`)
    any other operator    mean_relative_error <= T, max_relative_error <= 10 T of its type (`open_standard`)
    whole numbers         equal; int8 of a quantising class one step
    NaN and infinities    where golden has them

Both tables are for one operator that is given equal inputs. An operator check does that, and knows the
class under the operator's parameters and the length of its sums. Other than ATB's suite we ask NaN and
infinities to be in the same places (it sets them to 0 on both sides), and treat the integer outputs of
operators that compute with floats (indices) as exact.

For pairs the tables are applied as published: nothing is added for layers before. Where they cannot mean
anything between two runs the derived T stands: results that only move or cast what came before (exact on
equal inputs, and no more exact than their inputs here), layers and other composites, golden all zero, types
without a row. The parameters of a pair are not known, so the loosest class that they choose between is
taken, and the length of sums is golden's last dimension. Elements of golden near zero have no relative
error here (docs/metrics.md), where the open standard divides by 1e-7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...base.reason import Reason
from ...metrics.measurement import EXACT as EQUAL
from ...metrics.measurement import ElementTolerance
from ..derive import NONFINITE, is_exact, is_zero
from ..threshold import JudgeContext, Threshold
from ..tolerance import coarser, layers_before
from .base import LARGEST, MEAN, Adjustment, Second, Standard, derived_thresholds, kind_of, of_output

if TYPE_CHECKING:
    from ...metrics.elements import ElementErrors
    from ...metrics.measurement import Measurement


_COMPONENTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_SUMMING = {"LinearOperation": 1, "LinearParallelOperation": 2}
"""Operators whose sums ATB counts, and how many addends for each of the shared dimension."""
_ONE_STEP = "one step of the quantised value"
_METRICS = {"absolute": "max_absolute_error", "scaled": "max_scaled_error", "ulp": "max_ulp_error"}
"""The metric that bounds every element, by the scale of the tolerance."""


def atb_operator(context: JudgeContext) -> str:
    """The ATB operator of a pair, that of mine before that of golden; empty where neither is one."""
    for op_type in (context.mine_op_type, context.golden_op_type):
        if op_type.endswith("Operation"):
            return op_type
    return ""


def _of_operator(context: JudgeContext, adjustment: Adjustment) -> tuple[ElementTolerance, str]:
    """The bound of each element of an operator's output, and why."""
    kind, dtype = context.op_class, context.written
    if kind in EXACT:
        return EQUAL, Reason("{}: the result is exact", kind)
    if dtype in STEPPED:
        return ElementTolerance(1.0, scale="ulp"), Reason("{}, {}: one step of the type", kind, dtype)
    if dtype == "int8" and kind == "COMPUTE_QUANT":
        return ElementTolerance(1.0), Reason("{}, int8: {}", kind, _ONE_STEP)
    if kind_of(context) != "float":
        return EQUAL, Reason("{}, {}: whole numbers are exact", kind, dtype)
    bound = element_bound(kind, dtype, context.length)
    reason = Reason("{}, {}{}: {}{}", kind, dtype, _sums(context.length), _power(bound), adjustment.text)
    return ElementTolerance(bound * adjustment.factor, scale="scaled"), reason


def requirement(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> str:
    """The bound of an operator's output in the words of the old result sheet."""
    return f"100%({_of_operator(context, adjustment)[0]})"


def _thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    if context.written:
        tolerance, reason = _of_operator(context, adjustment)
        bound = Threshold(_METRICS[tolerance.scale], tolerance.atol, False, reason)
        return of_output(measurement, bound)
    operator = atb_operator(context)
    kind = class_by_name(operator) if operator else ""
    if is_exact(measurement):
        if kind == "COMPUTE_QUANT" and measurement.golden_dtype == measurement.mine_dtype == "int8":
            reason = Reason("{}, int8: {}{}", kind, _ONE_STEP, adjustment.text)
            return (Threshold("max_absolute_error", 1.0 * adjustment.factor, False, reason),)
        return derived_thresholds(context, measurement, adjustment)
    if measurement.golden_max_abs is None:
        return NONFINITE
    dtype = coarser(measurement.golden_dtype, measurement.mine_dtype).name
    dtype = _COMPONENTS.get(dtype, dtype)
    silent = _silent(context, measurement, kind, dtype)
    if silent:
        derived = derived_thresholds(context, measurement, adjustment)
        return tuple(
            threshold._replace(reason=Reason("{}; {}", silent, threshold.reason)) for threshold in derived
        )
    bounds = (
        _by_class(context, operator, kind, dtype, adjustment) if kind else _open(dtype, context, adjustment)
    )
    return (*bounds, *NONFINITE)


def _silent(context: JudgeContext, measurement: Measurement, kind: str, dtype: str) -> str:
    """The reason why the tables do not cover a pair of float tensors; empty where they do."""
    if is_zero(measurement):
        return "the tables bound no tensor of zeros"
    if kind in EXACT:
        return Reason("{} is exact on equal inputs, which two runs do not have", kind)
    if context.level in ("layer", "module"):
        return Reason("the tables are for operators, and this is a {}", context.level)
    if dtype not in MEAN and not (kind and dtype == "float64"):
        return Reason("no row for {}", dtype)
    return ""


def _by_class(
    context: JudgeContext, operator: str, kind: str, dtype: str, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    """The row of ATB's table. (fp8 has no bound of elements there: one step, which is the open T.)"""
    if dtype.startswith("float8"):
        return _open(dtype, context, adjustment)
    times = _SUMMING.get(operator, 0)
    length = context.length * times if context.length is not None and times else None
    bound = element_bound(kind, dtype, length)
    reason = Reason(
        "ATB's row {}, {}{}: every element within {}*max(1,|golden|){}{}",
        *(kind, dtype, _sums(length), _power(bound), _equal_inputs(context), adjustment.text),
    )
    return (Threshold("max_scaled_error", bound * adjustment.factor, False, reason),)


def _open(dtype: str, context: JudgeContext, adjustment: Adjustment) -> tuple[Threshold, ...]:
    t = MEAN[dtype]
    row = Reason("the open standard's row {}, T = {}", dtype, _power(t))
    rest = Reason("{}{}", _equal_inputs(context), adjustment.text)
    bounds = (
        ("mean_relative_error", 1, "mean", "T"),
        ("max_relative_error", LARGEST, "largest", f"{LARGEST} T"),
    )
    return tuple(
        Threshold(
            metric,
            times * t * adjustment.factor,
            False,
            Reason("{}: {} relative error up to {}{}", row, what, limit, rest),
        )
        for metric, times, what, limit in bounds
    )


def _sums(length: int | None) -> str:
    return "" if length is None else Reason(", sums of {}", length)


def _equal_inputs(context: JudgeContext) -> str:
    return Reason(", for one operator on equal inputs ({} not forgiven)", layers_before(context.depth))


def _power(value: float) -> str:
    return f"2^{math.log2(value):.0f}"


ASCEND = Standard(
    "ascend",
    "the open Ascend operator standard, and ATB's own table by class of operator",
    _thresholds,
    lambda context, dtypes, adjustment: _of_operator(context, adjustment)[0] if context.written else None,
    requirement,
)


# ATB's own table: how far one element of an operator's output may be off, by class, type and length of sums.
#
# An element passes when |error| <= bound * max(1, |golden|). The classes are those of `atb_classes.py`. The
# table is that of ATB's test suite (its "new standard"), for one operator that both sides give equal inputs.


EXACT = frozenset({"MOVE", "CAST", "COMPUTE_INTEGER"})
"""Classes whose results are equal or wrong."""

STEPPED = ("float8_e5m2", "float8_e4m3fn", "hifloat8")
"""Types whose values may be one step off."""

LENGTHS = (2048, 16384)
"""Numbers of addends at which a row's bounds change: below the first, below the second, and beyond."""

_BOUNDS = {
    ("COMPUTE_FLOAT", "float16"): (2.0**-8, 2.0**-7, 2.0**-7),
    ("COMPUTE_FLOAT", "bfloat16"): (2.0**-7, 2.0**-6, 2.0**-6),
    ("COMPUTE_FLOAT", "float32"): (2.0**-11, 2.0**-10, 2.0**-9),
    ("VECTOR_FUSION", "float16"): (2.0**-9,) * 3,
    ("VECTOR_FUSION", "bfloat16"): (2.0**-7,) * 3,
    ("VECTOR_FUSION", "float32"): (2.0**-12,) * 3,
}


def element_bound(kind: str, dtype: str, length: int | None = None) -> float:
    """The bound of the class `kind` for float outputs of `dtype`, whose elements sum `length` addends.

    COMPUTE_QUANT has the bounds of COMPUTE_FLOAT, types that are not in the table those of float32, and an
    unknown length those of short sums, as ATB does it.
    """
    row = "COMPUTE_FLOAT" if kind == "COMPUTE_QUANT" else kind
    bounds = _BOUNDS.get((row, dtype), _BOUNDS[(row, "float32")])
    return bounds[sum((length or 0) >= limit for limit in LENGTHS)]


# The class of an ATB operator, from which the `ascend` standard takes its bound: MOVE, COMPUTE_FLOAT, ...
#
# ATB's test suite asks each operator for its class under given parameters. What is not listed is
# COMPUTE_FLOAT. CV_FUSION needs the result of a second device; without one ATB judges it as VECTOR_FUSION.


_OF_CLASS = {
    "MOVE": "AllGather AllGatherV AllToAll AllToAllV AllToAllVV2 AsStrided BlockCopy Broadcast Concat Fill "
    "Gather GenAttentionMask GroupTopk KvCache Pad PadWithHiddenState PagedCacheLoad Recv ReshapeAndCache "
    "ReshapeAndCacheOmni ReshapeAndCacheWithStride Send SetValue Slice Split Unpad UnpadWithHiddenState",
    "CAST": "Transdata Transpose",
    "COMPUTE_INTEGER": "Onehot Gating",
    "VECTOR_FUSION": "FusedAddTopkDiv GroupedMatmulInplaceAdd LaserAttention LaserAttentionGrad "
    "MlaPreprocess MultiLatentAttention PagedAttention RelayAttention RingMLA RmsNormBackward "
    "RmsNormWithStride SelfAttention",
    "COMPUTE_QUANT": "SwigluQuant",
}
_BY_NAME = {f"{name}Operation": kind for kind, names in _OF_CLASS.items() for name in names.split()}
_ELEWISE = {1: "CAST"} | dict.fromkeys((7, 11, 12, 13, 14, 16), "COMPUTE_INTEGER")
_ELEWISE |= dict.fromkeys((6, 17, 18, 19, 20), "COMPUTE_QUANT")
_NORMS = {1: "normParam", 2: "preNormParam", 3: "postNormParam", 4: "preNormParam"}
_FUSED_ACTIVATIONS = (4, 7, 8)
_MAX_MIN = (1, 2)
_TWO_GOLDENS = (
    *("LaserAttention", "LaserAttentionGrad", "MultiLatentAttention", "PagedAttention", "RelayAttention"),
    *("RingMLA", "SelfAttention"),
)
_CV_FUSION = frozenset(f"{name}Operation" for name in _TWO_GOLDENS)


def has_two_goldens(operator: str, param: Mapping[str, Any]) -> bool:
    """Whether ATB judges the operator by two goldens where it has both (its class CV_FUSION)."""
    if operator in ("ReduceScatterOperation", "ReduceScatterVOperation"):
        return param["reduceType"] not in ("max", "min")
    return operator in _CV_FUSION


def op_class(operator: str, param: Mapping[str, Any]) -> str:
    """The class of `operator` under its complete parameters."""
    short = operator.removesuffix("Operation")
    if short == "Elewise":
        return _ELEWISE.get(param["elewiseType"], "COMPUTE_FLOAT")
    if short == "Activation":
        return "VECTOR_FUSION" if param["activationType"] in _FUSED_ACTIVATIONS else "COMPUTE_FLOAT"
    if short == "Reduce":
        return "MOVE" if param["reduceType"] in _MAX_MIN else "COMPUTE_FLOAT"
    if short in ("ReduceScatter", "ReduceScatterV"):
        return "MOVE" if param["reduceType"] in ("max", "min") else "VECTOR_FUSION"
    if short == "AllReduce":
        return "COMPUTE_QUANT" if param["quantType"] > 0 else "COMPUTE_FLOAT"
    if short in ("LayerNorm", "RmsNorm"):
        kind = param["layerType"]
        inner = param[_NORMS[kind]] if kind in _NORMS else {}
        if inner.get("quantType", 0):
            return "COMPUTE_QUANT"
        return "COMPUTE_FLOAT" if short == "LayerNorm" and kind == 1 else "VECTOR_FUSION"
    return _BY_NAME.get(operator, "COMPUTE_FLOAT")


def class_by_name(operator: str) -> str:
    """The class of `operator` where its parameters are not known: of those it may have, the loosest.

    The outputs in question are float ones: what a norm quantises is int8.
    """
    short = operator.removesuffix("Operation")
    if short in ("RmsNorm", "ReduceScatter", "ReduceScatterV"):
        return "VECTOR_FUSION"
    return _BY_NAME.get(operator, "COMPUTE_FLOAT")


# ATB's rule for fused attention (its class CV_FUSION), and the standard `two-golden` that always applies
# it.
#
# An attention output may be so small that a bound of max(1, |golden|) says nothing of it, and so cancelled
# that a relative bound is too much to ask. ATB therefore takes two goldens: the exact value t (float64, not
# rounded), and a result g in the precision of the device, computed as another device would. With errors
# relative to t, the largest of mine may be 10 times that of g, its mean and its root mean square twice;
# errors of g below the type's own step count as that step.
#
# g is the second device's output (`--acc-opcheck-other`), or our operator computed with every intermediate
# value in the type of the output. The bound on single elements that ATB has without g holds as well: a mean
# over a million elements does not see one. The standard `three-way` has the ratios alone.


FLOOR = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-14}
"""Floor of the error of g."""

RATIOS = {"mare": 10.0, "mere": 2.0, "rmse": 2.0}
"""Factors of the error of g that mine may have: largest and mean relative error, root mean square."""

RATIO_TEXT = ", ".join(f"{name} ratio <= {allowed:g}" for name, allowed in RATIOS.items())
"""The rule in the words of the old result sheet."""


def error_ratios(mine: ElementErrors, second: ElementErrors, dtype: str) -> dict[str, float]:
    """The ratios by name, and what they are of; both errors are those against t."""
    numbers: dict[str, float] = {}
    for name in RATIOS:
        ours, theirs = getattr(mine, name), getattr(second, name)
        numbers |= {
            f"{name}_ratio": ours / max(theirs, FLOOR[dtype]), f"{name}_of_mine": ours,
            f"{name}_of_second": theirs,
        }  # fmt: skip
    return numbers


def ratio_thresholds(measurement: Measurement, adjustment: Adjustment, whose: str) -> tuple[Threshold, ...]:
    """The three ratios, where they were measured; `whose` second golden it is."""
    numbers = measurement.further
    return tuple(
        Threshold(
            f"{name}_ratio",
            allowed * adjustment.factor,
            False,
            Reason(
                "{} of mine {:.3g}, of {} {:.3g}",
                *(name, numbers[f"{name}_of_mine"], whose, numbers[f"{name}_of_second"]),
            ),
        )
        for name, allowed in RATIOS.items()
        if f"{name}_ratio" in numbers
    )


def _second_of(context: JudgeContext, has_second: bool) -> Second:
    if not context.two_goldens or context.written not in FLOOR:
        return Second.NONE
    return Second.DEVICE if has_second else Second.COMPUTED


def _two_golden_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    ratios = ratio_thresholds(measurement, adjustment, "the low-precision golden")
    return (*ASCEND.thresholds(context, measurement, adjustment), *ratios)


def _two_golden_requirement(context: JudgeContext, measurement: Measurement, adjustment: Adjustment) -> str:
    sentence = requirement(context, measurement, adjustment)
    return f"{sentence}, {RATIO_TEXT}" if "mare_ratio" in measurement.further else sentence


TWO_GOLDEN = replace(
    ASCEND,
    name="two-golden",
    about="as ascend; fused attention also beside a second golden",
    thresholds=_two_golden_thresholds,
    requirement=_two_golden_requirement,
    second=_second_of,
)


# The standard `distribution`: of random operators only what was drawn from has to be the same.
#
# For devices whose random numbers cannot be repeated (another C library, a seed that no dump holds). ATB's
# suite has the rule, p > 0.01, for a class RAND that none of its operators is of. Everything that is not
# drawn is judged as by `ascend`.


LEAST = 0.01
"""Below this probability two samples are not of one distribution."""

SHIFT = 2.576
"""Standard errors that the means of two samples of one distribution keep to in 99 of 100 runs."""

_SAMPLE_BOUNDS = (
    Threshold(
        "ks_p_value", LEAST, True, "both samples may be of one distribution (Kolmogorov, Smirnov)", True
    ),
    Threshold("impossible_draws", 0.0, False, "what is drawn has a probability"),
    Threshold("mean_shift", SHIFT, False, "difference of the means in standard errors"),
)


def _sample_thresholds(
    context: JudgeContext, measurement: Measurement, adjustment: Adjustment
) -> tuple[Threshold, ...]:
    drawn = tuple(bound for bound in _SAMPLE_BOUNDS if bound.metric in measurement.further)
    return drawn or ASCEND.thresholds(context, measurement, adjustment)


DISTRIBUTION = replace(
    ASCEND,
    name="distribution",
    about="as ascend; random draws by their distribution",
    thresholds=_sample_thresholds,
    requirement=lambda context, measurement, adjustment: (
        f"KS p > {LEAST}"
        if "ks_p_value" in measurement.further
        else requirement(context, measurement, adjustment)
    ),
    samples=True,
)
