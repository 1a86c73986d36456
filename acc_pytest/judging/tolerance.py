"""The tolerance T between two right computations of one float tensor, and its reason.

    T = min(1/4, factor * 8 * (u + sqrt(K) * a) * sqrt(1 + depth) * exp(3.72 / sqrt(n)) * 2^(1 / sqrt(rows)))

T bounds the relative L2 error. One operation adds, relative to its result, at most

* `u`, the unit roundoff of the coarser dtype of the two sides, when the result is stored. Below the
  normal range the spacing `s` of the numbers is constant, so there `u` becomes `s / 2 / rms(golden)`;
* `sqrt(K) * a`, the accumulation of sums of `K` terms in a format of unit roundoff `a` (2^-24, or
  2^-53 where both sides are float64): with roundings of random sign the worst-case `K * a` becomes
  `sqrt(K) * a` (Higham & Mary, SIAM J. Sci. Comput. 41(5), 2019; Ipsen & Zhou, arXiv 1906.10465).

On the longest path through a decoder layer about 16 results are stored one after another; errors of
random sign add like a random walk, sqrt(16) = 4, and 2 is the safety factor. Layers add the same
way: sqrt(1 + depth) with `depth` layers completed before.

A tensor of `n` elements is a sample: the squared norms of error and golden scatter around their
expectations with a relative variance of 2/n each, so the logarithm of their ratio's root has a standard
deviation of 1/sqrt(n), and 3.72 of them are exceeded once in 10,000 tensors (normal quantile). It
matters below a few thousand elements: 1.06 at 4096, 1.4 at 128, 14 for the two logits of a toy router.

Rows are tokens, and rounding does more to some than to others: to a typical one up to the safety factor 2
more than to the whole (`slices.py`), so to the mean of several 2^(1/sqrt(rows)). It matters in decode steps,
whose tensors are one token: 2 for one row, 1.3 for 8, 1.04 for 300.

The cap 1/4 keeps T a gate at any depth
and dtype: unrelated tensors differ by sqrt(2), zeros by 1, a forgotten operand by 0.3 to 1.
docs/bounds.md has the derivation, docs/figures.md what was measured.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

from ..base.reason import Reason, joined
from ..tensors.dtypes import FloatFormat, by_name

ROUNDINGS_PER_LAYER = 16
SAFETY = 2.0
CAP = 0.25
CAPPED = "{}, capped at 0.25"
"""The formula of a T that ends at `CAP`."""
PER_LAYER = SAFETY * math.sqrt(ROUNDINGS_PER_LAYER)
SAMPLE_SIGMAS = 3.72
_RARE = 1e-4
TYPICAL_LENGTH = 4096
"""`K` where the last dimension is unknown: the hidden width of a 7B model."""
_WORTH_SAYING = 1.01
"""Scatter that is left out of T and of its reason: tensors of 140,000 elements and more."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """T, the coarser format of the two sides, and the reason in words.

    `rounding` is what one operation adds, u + sqrt(K) * a, times the factor of a rule.
    """

    value: float
    format: FloatFormat
    reason: str
    rounding: float

    @classmethod
    def stated(cls, t: float, dtypes: tuple[str, str], reason: str) -> Tolerance:
        """A T that somebody states, for `reason`: its rounding is that of one layer with this T."""
        fmt = coarser(*dtypes)
        return cls(t, fmt, reason, max(fmt.roundoff, t / PER_LAYER))


@functools.lru_cache(maxsize=4096)
def tolerance(
    golden_dtype: str,
    mine_dtype: str,
    depth: int,
    length: int | None,
    subnormal_rms: float | None = None,
    factor: float = 1.0,
    factor_origin: str = "",
    elements: int | None = None,
    computed_in: str = "",
    rows: int | None = None,
) -> Tolerance:
    """The tolerance T of the module docstring. At least one dtype must be a float or complex one.

    `subnormal_rms` is golden's root mean square where it is below the smallest normal number of the
    coarser format (and above zero), else `None`. `factor` and where it was set come from a rule.
    `elements` is the number of elements compared, `None` for so many that they are no sample.
    `computed_in` is the coarsest dtype of what the tensor was computed from, empty where it is not known: its
    rounding is still there, whatever the tensor itself is stored in. `rows` is how many rows the tensor has,
    `None` for so many that they are no sample, and where all rows are rounded alike.
    """
    fmt, roundoff, reasons = _rounding(coarser(golden_dtype, mine_dtype), computed_in, subnormal_rms)
    terms = TYPICAL_LENGTH if length is None else max(1, length)
    accumulator = min(fmt.roundoff, 2.0**-24)
    rounding = factor * (roundoff + math.sqrt(terms) * accumulator)
    value = PER_LAYER * rounding * math.sqrt(1 + depth)
    reasons.append(Reason("sums of {} terms at {}", terms, _power(accumulator)))
    reasons.append(layers_before(depth))
    formula = f"T = {PER_LAYER:g}*(u + sqrt({terms})*{_power(accumulator)})*sqrt(1+{depth})"
    for multiplier, why in _of_few(elements, rows):
        value *= multiplier
        formula += f"*{multiplier:.3g}"
        reasons.append(why)
    if factor != 1.0:
        formula += f" * {factor:g}"
        reasons.append(Reason("factor {:g} from {}", factor, factor_origin))
    if value > CAP:
        value = CAP
        formula = Reason(CAPPED, formula)
    return Tolerance(value, fmt, Reason("{} = {:.3g} ({})", formula, value, joined(", ", reasons)), rounding)


def layers_before(depth: int) -> str:
    """How many layers came before."""
    return Reason("{} layer before", depth) if depth == 1 else Reason("{} layers before", depth)


def _of_few(elements: int | None, rows: int | None) -> Iterator[tuple[float, str]]:
    """The factors of a tensor of few elements and few rows, and the words of each."""
    scatter = scatter_of(elements) if elements else 1.0
    if scatter >= _WORTH_SAYING:
        yield scatter, Reason("{:.3g} for the scatter of only {} elements", scatter, elements)
    spread = SAFETY ** (1 / math.sqrt(rows)) if rows else 1.0
    if spread >= _WORTH_SAYING:
        yield spread, Reason("{:.3g} for the spread of only {} row{}", spread, rows, "" if rows == 1 else "s")


def _rounding(
    fmt: FloatFormat, computed_in: str, subnormal_rms: float | None
) -> tuple[FloatFormat, float, list[str]]:
    """The format whose rounding is there, its u for values of this size, and both in words."""
    origin = by_name(computed_in).format
    clause = ""
    if origin is not None and origin.roundoff > fmt.roundoff:
        fmt, clause = origin, ", which it was computed from"
    if subnormal_rms is None:
        return fmt, fmt.roundoff, [Reason("u = {} of {}{}", _power(fmt.roundoff), fmt.name, clause)]
    u = max(fmt.roundoff, fmt.spacing / 2 / subnormal_rms)
    return (
        fmt,
        u,
        [Reason("u = {:.2g}, the spacing of subnormal {} against rms {:.2g}", u, fmt.name, subnormal_rms)],
    )


def cap_of(factor: float) -> float:
    """The largest T under a rule's factor: whoever set that meant it, but half of golden is no rounding."""
    return CAP * min(SAFETY, max(1.0, factor))


def scatter_of(elements: int, runs: int = 1, count: int = 1) -> float:
    """The bound that the ratio of two norms of so many elements exceeds once in 10,000 tensors; of the
    largest norm among `count`, to the largest in several `runs`."""
    return math.exp(_sigmas(runs, 1 << count.bit_length() - 1) / math.sqrt(max(1, elements)))


@functools.lru_cache
def _sigmas(runs: int, count: int) -> float:
    """By how much the largest of `count` normal values exceeds that of `runs` times as many once in 10,000
    times, in standard deviations of the difference of two."""
    if runs == count == 1:
        return SAMPLE_SIGMAS
    normal = NormalDist()
    points = [number / 16 for number in range(-128, 129)]
    below = [normal.cdf(point) for point in points]
    weights = [count * normal.pdf(x) * share ** (count - 1) / 16 for x, share in zip(points, below)]
    low, high = 0.0, SAMPLE_SIGMAS * math.sqrt(2)
    while high - low > 0.01:
        middle = (low + high) / 2
        beyond = sum(w * normal.cdf(x - middle) ** (count * runs) for x, w in zip(points, weights))
        low, high = (middle, high) if beyond > _RARE else (low, middle)
    return high / math.sqrt(2)


def scatter_text(elements: int, runs: int = 1) -> str:
    """The scatter as a factor in a reason; empty where it is not worth a mention."""
    scatter = scatter_of(elements, runs)
    return Reason("*{:.3g} (scatter of {} elements)", scatter, elements) if scatter >= _WORTH_SAYING else ""


@functools.lru_cache(maxsize=1024)
def coarser(golden_dtype: str, mine_dtype: str) -> FloatFormat:
    """The float format with the larger unit roundoff; an integer side counts as exact.

    Raises `ValueError` where neither side is float: such tensors have no tolerance.
    """
    formats = [fmt for name in (golden_dtype, mine_dtype) if (fmt := by_name(name).format) is not None]
    if not formats:
        raise ValueError(f"one dtype must be a float dtype, got {golden_dtype} and {mine_dtype}")
    return max(formats, key=lambda fmt: (fmt.roundoff, fmt.smallest_normal))


def _power(value: float) -> str:
    exponent = math.log2(value)
    return f"2^{exponent:.0f}" if exponent == round(exponent) else f"{value:.2g}"
