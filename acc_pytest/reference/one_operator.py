"""Whether a tensor is what one operator makes of its inputs, but for what rounding of that operator allows.

The bound is the tolerance T of `judging.tolerance` with no layer before it and no allowance for the scatter
of few elements (each is rounded once); nothing at all for what is moved or cast between whole numbers.

Where addends cancel, an error is relative to their sizes: sums of K terms at unit roundoff a are off by
sqrt(K) * a times the sum of the sizes (Higham & Mary, see `judging.tolerance`), times the factor of T.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch

from ..base.reason import Reason
from ..errors import OperatorError
from ..ge_operators import Unrounded
from ..judging.derive import derived, is_exact
from ..judging.threshold import JudgeContext
from ..judging.tolerance import PER_LAYER, Tolerance, coarser, tolerance
from ..judging.verdict import judge
from ..metrics.kernel import measure
from ..tensors.dtypes import by_name
from ..tensors.ref import TensorRef
from ..tensors.source import TensorSource
from .recomputation import LOOKING, Recomputation

_ONE_STEP = 1.0
"""What a quantised value may be off: the side to which a value between two is rounded."""
_ACCUMULATOR = 2.0**-24
SIZE = "its output has another size than the operator writes"


def check_size(refs: Iterable[TensorRef], limit: int = LOOKING.limit) -> int:
    """The elements of the largest of an operator's tensors. Raises `OperatorError` above `limit` in all."""
    elements = [ref.header().numel for ref in refs]
    if sum(elements) > limit:
        raise OperatorError(
            f"it has {sum(elements)} elements, and of more than {limit} none is computed again"
        )
    return max(elements, default=0)


def agrees(expected: Unrounded, mine: torch.Tensor) -> Recomputation:
    """Whether `mine` is what an operator was computed to write."""
    if mine.numel() != expected.value.numel():
        return Recomputation(why=SIZE)
    if expected.value.is_complex() and mine.is_complex():
        expected, mine = unrounded_in_reals(expected), in_reals(mine)
    allowed = (expected.value, *expected.others)
    results = (_agrees_with(expected, value.reshape(mine.shape), mine) for value in allowed)
    first = next(results)
    if first.outcome == "right":
        return first
    return next((alternative for alternative in results if alternative.outcome == "right"), first)


def _agrees_with(expected: Unrounded, exact: torch.Tensor, mine: torch.Tensor) -> Recomputation:
    if expected.image is not None:
        return moved(expected.image(exact), expected.image(mine))
    integral = not exact.is_floating_point() and not mine.is_floating_point()
    if integral or (expected.moved and not exact.is_floating_point()):
        return moved(exact.to(mine.dtype), mine)
    if expected.moved and mine.is_floating_point() and _holds(mine.dtype, exact):
        return moved(exact.to(mine.dtype), mine)
    by_norm = judged(exact, mine, expected.terms)
    if not exact.is_floating_point() or not mine.is_floating_point():
        return by_norm
    if by_norm.outcome == "wrong":
        return replace(by_norm, outcome="right", why="") if _cancelled(expected, exact, mine) else by_norm
    return each_element(exact, mine, by_norm) if expected.singly else by_norm


def judged(exact: torch.Tensor, mine: torch.Tensor, length: int) -> Recomputation:
    """Whether `mine` is `exact` but for its rounding; sums are of at most `length` terms."""
    if exact.is_floating_point() and not mine.is_floating_point():
        if mine.dtype == torch.bool:
            return moved(exact != 0, mine)
        limits = torch.iinfo(mine.dtype)
        off = (
            float((exact.clamp(limits.min, limits.max) - mine.double()).abs().max()) if mine.numel() else 0.0
        )
        return Recomputation("right" if off <= _ONE_STEP else "wrong")
    if mine.is_floating_point():
        largest = torch.finfo(mine.dtype).max
        exact = torch.where(exact.abs() > largest, torch.sign(exact) * torch.inf, exact)
    measurement = measure(TensorSource(exact), TensorSource(mine))
    dtypes = measurement.golden_dtype, measurement.mine_dtype
    bound = None if is_exact(measurement) else one_operator_tolerance(*dtypes, length, measurement.golden_rms)
    judgement = judge(measurement, derived(JudgeContext(length=length), measurement, rule_tolerance=bound))
    outcome = "right" if judgement.verdict == "pass" else "wrong"
    if new := measurement.nonfinite.new:
        return Recomputation(
            outcome, None, Reason("{} of {} elements are NaN or infinite", new, mine.numel())
        )
    error = measurement.relative_euclidean_distance
    if bound is None:
        return Recomputation(outcome, error, judgement.sentence)
    return Recomputation(outcome, error, judgement.sentence, allowed=bound.value, reason=bound.reason)


def moved(exact: torch.Tensor, mine: torch.Tensor) -> Recomputation:
    """Whether `mine` holds the very values of `exact`; NaN is a value like any other here."""
    if exact.dtype != mine.dtype:
        return Recomputation(why=Reason("it wrote {} where the operator writes {}", mine.dtype, exact.dtype))
    equal = exact == mine
    if exact.is_floating_point():
        equal |= exact.isnan() & mine.isnan()
    if bool(equal.all()):
        return Recomputation("right", 0.0)
    distance = measure(TensorSource(exact), TensorSource(mine)).relative_euclidean_distance
    return Recomputation(
        "wrong",
        distance,
        Reason("{} of {} elements are not those it moves", int((~equal).sum()), equal.numel()),
        allowed=0.0,
        reason="what is moved is not rounded",
    )


def one_operator_tolerance(golden: str, mine: str, length: int, rms: float | None) -> Tolerance:
    """T of one operator alone, between tensors of these dtypes; `rms` is the size of its values."""
    tiny = rms if rms and rms < coarser(golden, mine).smallest_normal else None
    return tolerance(golden, mine, 0, length, tiny)


def _holds(dtype: torch.dtype, exact: torch.Tensor) -> bool:
    """Whether `dtype` has every value of `exact`, so that moving them there rounds nothing."""
    cast = exact.to(dtype).to(exact.dtype)
    return bool(((cast == exact) | exact.isnan()).all())


def _cancelled(expected: Unrounded, exact: torch.Tensor, mine: torch.Tensor) -> bool:
    """Whether the error is what rounding of addends leaves that cancel."""
    if expected.magnitude is None:
        return False
    fmt = by_name(str(mine.dtype)).format
    assert fmt is not None
    sizes = expected.magnitude().double().expand_as(expected.value).reshape(mine.shape)
    error = float((mine.double() - exact).norm())
    rounding = fmt.roundoff * float(exact.norm()) + fmt.spacing / 2 * math.sqrt(mine.numel())
    return error <= PER_LAYER * rounding + accumulated(expected.terms, fmt.roundoff, sizes)


def accumulated(terms: int, roundoff: float, sizes: torch.Tensor) -> float:
    """The norm of what adding up may be off, of sums of so many terms; `sizes` are those of the terms."""
    return PER_LAYER * math.sqrt(terms) * min(roundoff, _ACCUMULATOR) * float(sizes.norm())


def each_element(exact: torch.Tensor, mine: torch.Tensor, by_norm: Recomputation) -> Recomputation:
    """The outcome with the bound for every element: large ones, as of a mask, hide others in a norm."""
    fmt = by_name(str(mine.dtype)).format
    assert fmt is not None
    finite = exact.isfinite() & mine.isfinite()
    off = (mine.double() - exact).abs()[finite]
    allowed = PER_LAYER * (2 * fmt.roundoff * exact.abs()[finite] + fmt.spacing)
    beyond = int((off > allowed).sum())
    if not beyond:
        return by_norm
    reason = Reason("{} of {} elements are not those of the operator", beyond, mine.numel())
    return replace(by_norm, outcome="wrong", why=reason)


# Complex results as real ones: the parts of a number side by side, each rounded by itself.
#
# Of a product one part may cancel, so that an error is relative to the numbers of a row, not to one part.


def in_reals(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as one of twice as many real numbers; any other as it is."""
    if not tensor.is_complex():
        return tensor
    return torch.view_as_real(tensor.resolve_conj()).reshape(*tensor.shape[:-1], -1)


def for_real_and_imaginary(sizes: torch.Tensor) -> torch.Tensor:
    """A number for each complex one, repeated for its real and its imaginary part."""
    return sizes.repeat_interleave(2, -1) if sizes.dim() else sizes.repeat(2)


def unrounded_in_reals(expected: Unrounded) -> Unrounded:
    """A complex output of an operator as a real one."""
    magnitude = expected.magnitude
    return replace(
        expected,
        value=in_reals(expected.value),
        others=tuple(map(in_reals, expected.others)),
        magnitude=None
        if magnitude is None
        else lambda: for_real_and_imaginary(magnitude().abs().expand_as(expected.value)),
        singly=False,
    )
