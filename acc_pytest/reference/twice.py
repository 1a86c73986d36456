"""The one rule: is a tensor what an operator makes of its inputs, but for what rounding does to it there?

The operator is computed twice from the inputs of mine: finely, and as mine rounds. With E the fine result, N
the rounded one and M that of mine, n elements, and u the unit roundoff of the type of mine,

    |M - E| / |E|  <=  max(2 * exp(3.72 / sqrt(n)) * |N - E| / |E|,  u / sqrt(3))

* 2: mine may round at four times as many places as N; errors of random sign add to sqrt(4) times as much.
* exp(3.72 / sqrt(n)): both errors are samples, see `judging.tolerance`.
* u / sqrt(3): the root mean square of what storing alone may do. An error of storing is spread evenly over
  +-u at most, and where every value is representable N shows none.

A product may be summed in two halves, each of them rounded, as two devices have it: where these cancel,
rounding them is most of the error. Its noise is measured too, and mine may have 1.5 times that (it is another
way to compute already, so that 1.5 is for safety alone).

The same holds for every row (the last dimension), so that a row of large values hides nothing of another:
with 4 for 2, because the worst of many rows is looked at, and against the largest share of noise of any row.
Rows that weigh alike, and what is too large or small as a whole, are bounded too (`rows`).

Of complex results the real and the imaginary parts are judged together, as numbers of one row: of a product
one part may cancel, so that an error is relative to the numbers of a row, not to one part.

Where there is no second computation the bound is derived: the tolerance T of `judging.tolerance` with no
layer before it and no allowance for the scatter of few elements (each is rounded once). Float32 is computed
in float64, but modules may cast to float32 on the way; so there the bound is never below that. Nothing at all
is allowed for what is moved or cast between whole numbers.

Where addends cancel, an error is relative to their sizes: sums of K terms at unit roundoff a are off by
sqrt(K) * a times the sum of the sizes (Higham & Mary, see `judging.tolerance`), times the factor of T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from ..base.reason import Reason
from ..errors import OperatorError
from ..ge_operators import Unrounded
from ..judging.derive import derived, is_exact
from ..judging.threshold import JudgeContext
from ..judging.tolerance import PER_LAYER, Tolerance, coarser, scatter_of, tolerance
from ..judging.verdict import judge
from ..metrics.kernel import measure
from ..tensors.dtypes import FloatFormat, by_name, by_torch
from ..tensors.ref import TensorRef
from ..tensors.source import TensorSource
from .recomputation import LOOKING, Recomputation
from .rows import ROW_RATIO, SINGLE, RowErrors, alike, by_norms, fewest_samples, worst_row

LEAST_ROW = 8
"""Elements of the shortest row that is looked at by itself."""
_WORTH_ADDING = 0.01
_ONE_STEP = 1.0
"""What a quantised value may be off: the side to which a value between two is rounded."""
SIZE = "its output has another size than the operator writes"


@dataclass(frozen=True, slots=True)
class Twice:
    """An output of an operator, computed finely, and by `rounded` as mine rounds, whose type it is given;
    `how` names the latter: a reason, or the template of one (`{}` for the type). Without it the rounding is
    derived.

    `in_two` is a product of which two halves were rounded and added up. `draws` are further computations that
    round as mine does: a row has the noise of the worst of them, for of what cancels there is much, and so
    has the whole. What is wrong is held against what `further` makes, with such draws. `shared` says that the
    noise is that of weights: all rows have the same, so that it may well have a direction, and rows are no
    further samples of it.
    """

    exact: Unrounded
    rounded: Callable[[torch.dtype], torch.Tensor] | None = None
    how: str = ""
    in_two: torch.Tensor | None = None
    draws: tuple[torch.Tensor, ...] = ()
    shared: bool = False
    further: Callable[[], Twice] | None = None

    @classmethod
    def of(cls, fine: torch.Tensor, rounded: torch.Tensor, how: str, terms: int = 1) -> Twice:
        """The two computations of sums of at most `terms` terms."""
        return cls(Unrounded(fine, terms), lambda _: rounded, how)

    @property
    def alone(self) -> Twice:
        """The exact result by itself, whose rounding is derived."""
        return Twice(self.exact)

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Twice:
        """The same with `change` made to every result."""
        rounded = self.rounded
        return replace(
            self,
            exact=replace(self.exact, value=change(self.exact.value)),
            rounded=None if rounded is None else lambda dtype: change(rounded(dtype)),
            in_two=None if self.in_two is None else change(self.in_two),
            draws=tuple(map(change, self.draws)),
        )


def hold(twice: Twice, mine: torch.Tensor) -> Recomputation:
    """Whether `mine` is what an operator was computed to write, but for its rounding.

    What is moved, chosen or counted, and what may be one of several, is held by derived bounds.
    """
    outcome = _held(twice, mine)
    if twice.further is None or outcome.outcome != "wrong" or outcome.error is None:
        return outcome
    return _held(twice.further(), mine)


def _held(twice: Twice, mine: torch.Tensor) -> Recomputation:
    """The outcome of a pair of computations, without further ones."""
    exact, dtype = twice.exact, mine.dtype
    if mine.numel() != exact.value.numel():
        return Recomputation(why=SIZE)
    if exact.value.is_complex() and mine.is_complex():
        twice = replace(twice.each(in_reals), exact=_in_reals(exact))
        exact, mine = twice.exact, in_reals(mine)
    floats = exact.value.is_floating_point() and mine.is_floating_point()
    if twice.rounded is None or not floats or exact.moved or exact.others or exact.image:
        return _by_derived(exact, mine)
    try:
        rounded = twice.rounded(dtype)
    except OperatorError as error:
        return _by_derived(exact, mine, str(error))
    if rounded.numel() != mine.numel():
        return Recomputation(why=SIZE)
    fmt = by_torch(mine.dtype).format
    assert fmt is not None
    fine, approximate = exact.value.reshape(mine.shape).double(), rounded.reshape(mine.shape).double()
    largest = torch.finfo(mine.dtype).max
    if not float(fine.norm()) <= largest:  # else no element is larger either
        fine = torch.where(fine.abs() > largest, torch.sign(fine) * math.inf, fine)
    tried = _Comparison(twice, fmt, (fine, approximate, mine.double()))
    if tried.rounded_overflows:
        alone = replace(exact, singly=False, magnitude=None)
        outcome = _by_derived(alone, mine, "the other overflows")
    else:
        outcome = tried.outcome()
    if outcome.outcome == "right" and exact.singly:
        return _each_element(exact.value.reshape(mine.shape), mine, outcome)
    return outcome


def _masks_as_many(fine: torch.Tensor, rounded: torch.Tensor) -> bool:
    """Whether all that is not finite is -inf, as a mask puts it, at as many places in each row of both."""
    masks = [values.isneginf() for values in (fine, rounded)]
    only = all(torch.equal(mask, ~values.isfinite()) for mask, values in zip(masks, (fine, rounded)))
    return only and torch.equal(*(mask.sum(-1) for mask in masks))


class _Comparison:
    """Mine beside both computations, all in float64; what is not finite on a side counts as equal zeros."""

    def __init__(self, twice: Twice, fmt: FloatFormat, tensors: tuple[torch.Tensor, ...]) -> None:
        fine, rounded, mine = tensors
        self._twice = twice
        how, name = twice.how, fmt.name
        self._how = how if isinstance(how, Reason) else Reason.of(how.format(name), how, [name])
        self._fmt = fmt
        self._new = self._lost = 0
        self.rounded_overflows = False
        self._mine = mine
        self._fine, self._error, self._noise = fine, mine - fine, rounded - fine
        self._norms = self._measured()
        if all(map(math.isfinite, self._norms)):
            return
        finite = fine.isfinite() & rounded.isfinite() & mine.isfinite()
        overflows = bool((fine.isfinite() & ~rounded.isfinite()).any())
        self.rounded_overflows = overflows and not _masks_as_many(fine, rounded)
        self._new = int((fine.isfinite() & rounded.isfinite() & ~mine.isfinite()).sum())
        self._lost = int((~fine.isfinite() & ~rounded.isfinite() & mine.isfinite()).sum())
        self._fine, self._mine, self._error, self._noise = (
            torch.where(finite, values, 0.0) for values in (fine, mine, self._error, self._noise)
        )
        self._norms = self._measured()

    def _measured(self) -> tuple[float, float, float]:
        """The norms of the fine result, the error and the noise: one that is not finite has such elements."""
        return float(self._fine.norm()), float(self._error.norm()), float(self._noise.norm())

    def outcome(self) -> Recomputation:
        count = self._fine.numel()
        if self._new:
            return Recomputation(
                "wrong", None, Reason("{} of {} elements are NaN or infinite", self._new, count)
            )
        if self._lost:
            return Recomputation(
                "wrong", None, Reason("{} of {} elements should not be finite", self._lost, count)
            )
        size, error, noise = self._norms
        if not size:
            least = max(self._fmt.smallest_normal, 2 * float(self._noise.abs().max())) if count else 0.0
            zeros = not count or float(self._error.abs().max()) <= least
            return (
                Recomputation("right", 0.0) if zeros else Recomputation("wrong", None, "it makes zeros only")
            )
        exact, summed = self._twice.exact, 0.0
        if exact.magnitude is not None:
            sizes = exact.magnitude().double().expand_as(exact.value)
            summed = accumulated(exact.terms, self._fmt.roundoff, sizes) / size
        floor, why = self._floor(size)
        halved = self._halved(size)

        def held(samples: int) -> Recomputation:
            return by_norms(
                error / size, noise / size, samples,
                Reason("the noise of this operator, {:.3g} ({})", noise / size, self._how),
                floor=floor, why=why, halved=halved, summed=summed, drawn=self._drawn(size),
            )  # fmt: skip

        overall = held(count)
        if overall.outcome == "wrong":
            independent = self._mine.shape[-1] if self._twice.shared else count
            overall = held(min(independent, fewest_samples(self._mine, count)))
        return overall if overall.outcome == "wrong" else self._row_by_row(overall, size, summed, floor)

    def _drawn(self, size: float) -> Callable[[], tuple[float, int]]:
        """The noise of the noisiest draw, and how many there are."""
        draws = self._twice.draws
        return lambda: (max((float(self._off(d).norm()) / size for d in draws), default=0.0), len(draws))

    def _off(self, draw: torch.Tensor) -> torch.Tensor:
        """The error of a draw; zeros where it is not finite."""
        return (draw.double().reshape(self._fine.shape) - self._fine).nan_to_num(0.0, 0.0, 0.0)

    def _halved(self, size: float) -> float:
        """The noise of a product that is summed in two halves; 0 where it is none."""
        if self._twice.in_two is None:
            return 0.0
        error = self._twice.in_two.double().reshape(self._fine.shape) - self._fine
        if not math.isfinite(norm := float(error.norm())):
            error = torch.where(error.isfinite(), error, 0.0)
            norm = float(error.norm())
        self._noise = torch.where(error.abs() > self._noise.abs(), error, self._noise)
        return norm / size

    def _floor(self, size: float) -> tuple[float, str]:
        """The error that storing alone may make, relative to values of this size in all; and why."""
        fmt = self._fmt
        rms = size / math.sqrt(self._fine.numel())
        if fmt.roundoff <= SINGLE:
            single = one_operator_tolerance(fmt.name, fmt.name, self._twice.exact.terms, rms)
            return single.value, single.reason
        u = max(fmt.roundoff, fmt.spacing / 2 / rms)
        return u / math.sqrt(3), Reason("u/sqrt(3) = {:.3g}, the rounding of {}", u / math.sqrt(3), fmt.name)

    def _row_by_row(self, overall: Recomputation, size: float, summed: float, floor: float) -> Recomputation:
        """The outcome of all rows: `overall` where each is right too. In float32 modules may round on the
        way, in any direction, and so may sums that cancel; and what all rows share has one."""
        shape = self._fine.shape
        length = shape[-1] if len(shape) > 1 else 0
        if length < LEAST_ROW:
            return overall
        draws = [self._off(draw) for draw in self._twice.draws]
        rows = RowErrors.of(self._fine, self._error, self._noise, self._mine, draws)
        typical = size / math.sqrt(len(rows.size))
        errors = (rows.error - ROW_RATIO * summed * typical).clamp_min(0.0)
        sizes = rows.size.clamp_min(self._fmt.roundoff**2 * typical)  # rows of nothing
        rows = replace(rows, error=errors, size=sizes)
        noise = rows.noise if rows.draws is None else torch.maximum(rows.noise, rows.draws.noise.amax(0))
        allowed = ROW_RATIO * max(scatter_of(length) * float((noise / sizes).max()), floor)
        overall = worst_row(overall, errors / sizes, torch.full_like(sizes, allowed), shape[:-1])
        if overall.outcome == "wrong":
            return overall
        small = self._fmt.roundoff > SINGLE and summed <= _WORTH_ADDING * floor
        directed = small and not self._twice.shared
        return alike(overall, rows, floor, self._fmt.roundoff if directed else None)


# Bounds that are derived.


def too_large(refs: Iterable[TensorRef], limit: int) -> Reason | None:
    """Why tensors of more than `limit` elements in all are not computed; `None` for fewer."""
    elements = sum(ref.header().numel for ref in refs)
    if elements <= limit:
        return None
    return Reason("it has {} elements, and of more than {} none is computed again", elements, limit)


def check_size(refs: Iterable[TensorRef], limit: int = LOOKING.limit) -> int:
    """The elements of the largest of an operator's tensors. Raises `OperatorError` above `limit` in all."""
    refs = list(refs)
    if (reason := too_large(refs, limit)) is not None:
        raise OperatorError(reason)
    return max((ref.header().numel for ref in refs), default=0)


def _by_derived(exact: Unrounded, mine: torch.Tensor, why: str = "") -> Recomputation:
    """Whether `mine` is the exact result, or another that the operator may as well have; `why` says what
    kept a second computation from being made."""
    results = (_agrees_with(exact, value.reshape(mine.shape), mine) for value in (exact.value, *exact.others))
    first = next(results)
    if first.outcome != "right":
        first = next((alternative for alternative in results if alternative.outcome == "right"), first)
    if not why:
        return first
    return replace(first, reason=Reason("only one computation is possible ({}): {}", why, first.reason))


def _agrees_with(expected: Unrounded, exact: torch.Tensor, mine: torch.Tensor) -> Recomputation:
    if expected.image is not None:
        return moved(expected.image(exact), expected.image(mine))
    integral = not exact.is_floating_point() and not mine.is_floating_point()
    if expected.moved and not exact.is_floating_point():
        return moved(exact.to(mine.dtype), mine)
    if integral:  # counted, so that no bound of rounding is exceeded
        return replace(moved(exact.to(mine.dtype), mine), allowed=None, reason="")
    if expected.moved and mine.is_floating_point() and _holds(mine.dtype, exact):
        return moved(exact.to(mine.dtype), mine)
    by_norm = judged(exact, mine, expected.terms)
    if not exact.is_floating_point() or not mine.is_floating_point():
        return by_norm
    if by_norm.outcome == "wrong":
        return replace(by_norm, outcome="right", why="") if _cancelled(expected, exact, mine) else by_norm
    return _each_element(exact, mine, by_norm) if expected.singly else by_norm


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
    return PER_LAYER * math.sqrt(terms) * min(roundoff, SINGLE) * float(sizes.norm())


def _each_element(exact: torch.Tensor, mine: torch.Tensor, by_norm: Recomputation) -> Recomputation:
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


def in_reals(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as one of twice as many real numbers; any other as it is."""
    if not tensor.is_complex():
        return tensor
    return torch.view_as_real(tensor.resolve_conj()).reshape(*tensor.shape[:-1], -1)


def _in_reals(exact: Unrounded) -> Unrounded:
    """A complex output of an operator as a real one, with a size for each part of a number."""
    magnitude = exact.magnitude

    def sizes() -> torch.Tensor:
        assert magnitude is not None
        complex_sizes = magnitude().abs().expand_as(exact.value)
        return complex_sizes.repeat_interleave(2, -1) if complex_sizes.dim() else complex_sizes.repeat(2)

    return replace(
        exact,
        value=in_reals(exact.value),
        others=tuple(map(in_reals, exact.others)),
        magnitude=None if magnitude is None else sizes,
        singly=False,
    )
