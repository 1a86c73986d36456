"""Whether a tensor is what one operator makes of its inputs: beside what rounding was measured to do there.

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
Rows that weigh alike, and what is too large or small as a whole, are bounded too (`row_bounds`).

Of complex results the real and the imaginary parts are judged together, as numbers of one row.

Float32 is computed in float64, but modules may cast to float32 on the way; so there the bound is never below
that of `one_operator`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..errors import OperatorError
from ..ge_operators import Unrounded
from ..judging.tolerance import scatter_of, scatter_text
from ..tensors.dtypes import FloatFormat, by_torch
from .complex_values import for_real_and_imaginary, in_reals, unrounded_in_reals
from .one_operator import SIZE, accumulated, agrees, each_element, judged, one_operator_tolerance
from .recomputation import Recomputation
from .row_bounds import RATIO, RowErrors, fewest_samples, with_bias, with_part_bias, with_typical

HALVES_RATIO = 1.5
ROW_RATIO = 4.0
LEAST_ROW = 8
"""Elements of the shortest row that is looked at by itself."""
_SINGLE = 2.0**-24
_WORTH_ADDING = 0.01


@dataclass(frozen=True, slots=True)
class Twice:
    """An output of an operator, computed finely and as mine rounds; `how` says the latter in words.

    It is made of sums of so many `terms`, whose `sizes` are known where they may cancel. `in_two` is a
    product of which two halves were rounded and added up. `draws` are further computations that round as mine
    does: a row has the noise of the worst of them, for of what cancels there is much, and so has the whole.
    `shared` says that the noise is that of weights: all rows have the same, so that it may well have a
    direction, and rows are no further samples of it.
    """

    fine: torch.Tensor
    rounded: torch.Tensor
    how: str
    terms: int = 1
    sizes: torch.Tensor | None = None
    in_two: torch.Tensor | None = None
    draws: tuple[torch.Tensor, ...] = ()
    shared: bool = False


def agrees_as_measured(
    expected: Unrounded, rounded: Callable[[], torch.Tensor], mine: torch.Tensor, how: str
) -> Recomputation:
    """Whether `mine` is what an operator was computed to write, beside `rounded`, where that can be computed.

    What is moved, chosen or counted, and what may be one of several, is judged as `one_operator` does.
    """
    if expected.value.is_complex() and mine.is_complex():
        expected, mine = unrounded_in_reals(expected), in_reals(mine)
    fine = expected.value
    floats = fine.is_floating_point() and mine.is_floating_point()
    if not floats or expected.moved or expected.others or expected.image or fine.numel() != mine.numel():
        return agrees(expected, mine)
    try:
        second = in_reals(rounded())
    except OperatorError as error:
        return _by_derived(agrees(expected, mine), str(error))
    sizes = None if expected.magnitude is None else expected.magnitude().double().expand_as(fine)
    outcome = judged_twice(Twice(fine, second, how, expected.terms, sizes), mine)
    if outcome.outcome == "right" and expected.singly:
        return each_element(fine.reshape(mine.shape), mine, outcome)
    return outcome


def judged_twice(twice: Twice, mine: torch.Tensor) -> Recomputation:
    """Whether `mine` is what the operator makes, but for its rounding."""
    if twice.fine.is_complex() and mine.is_complex():
        twice, mine = _in_reals(twice), in_reals(mine)
    fine, rounded = twice.fine, twice.rounded
    if fine.numel() != mine.numel() or rounded.numel() != mine.numel():
        return Recomputation(why=SIZE)
    fine, rounded = fine.reshape(mine.shape), rounded.reshape(mine.shape)
    if not (mine.is_floating_point() and fine.is_floating_point() and rounded.is_floating_point()):
        return _chosen(fine, rounded, mine)
    fmt = by_torch(mine.dtype).format
    assert fmt is not None
    exact, approximate = fine.double(), rounded.double()
    largest = torch.finfo(mine.dtype).max
    if not float(exact.norm()) <= largest:  # else no element is larger either
        exact = torch.where(exact.abs() > largest, torch.sign(exact) * math.inf, exact)
    tried = _Comparison(twice, fmt, (exact, approximate, mine.double()))
    if tried.rounded_overflows:
        return _by_derived(judged(exact, mine, twice.terms), "the other overflows")
    return tried.outcome()


def _in_reals(twice: Twice) -> Twice:
    return replace(
        twice,
        fine=in_reals(twice.fine),
        rounded=in_reals(twice.rounded),
        sizes=None if twice.sizes is None else for_real_and_imaginary(twice.sizes),
        in_two=None if twice.in_two is None else in_reals(twice.in_two),
        draws=tuple(map(in_reals, twice.draws)),
    )


def _by_derived(outcome: Recomputation, why: str) -> Recomputation:
    """An outcome by the bound that is derived."""
    return replace(outcome, reason=f"only one computation is possible ({why}): {outcome.reason}")


def _chosen(fine: torch.Tensor, rounded: torch.Tensor, mine: torch.Tensor) -> Recomputation:
    """Whether whole numbers and truth values are each as one of the computations has it."""
    equal = (fine.to(mine.dtype) == mine) | (rounded.to(mine.dtype) == mine)
    if bool(equal.all()):
        return Recomputation("right", 0.0)
    if bool((fine == rounded.to(fine.dtype)).all()):
        count = int((~equal).sum())
        return Recomputation("wrong", None, f"{count} of {mine.numel()} elements are not those it makes")
    return Recomputation(why="it chose other elements, which it may among equal ones")


class _Comparison:
    """Mine beside both computations, all in float64; what is not finite on a side counts as equal zeros."""

    def __init__(self, twice: Twice, fmt: FloatFormat, tensors: tuple[torch.Tensor, ...]) -> None:
        fine, rounded, mine = tensors
        self._twice = twice
        self._fmt = fmt
        self._new = self._lost = 0
        self.rounded_overflows = False
        self._mine = mine
        self._fine, self._error, self._noise = fine, mine - fine, rounded - fine
        self._norms = self._measured()
        if all(map(math.isfinite, self._norms)):
            return
        finite = fine.isfinite() & rounded.isfinite() & mine.isfinite()
        self.rounded_overflows = bool((fine.isfinite() & ~rounded.isfinite()).any())
        self._new = int((fine.isfinite() & rounded.isfinite() & ~mine.isfinite()).sum())
        self._lost = int((~fine.isfinite() & ~rounded.isfinite() & mine.isfinite()).sum())
        self._fine, self._mine = torch.where(finite, fine, 0.0), torch.where(finite, mine, 0.0)
        self._error = torch.where(finite, self._error, 0.0)
        self._noise = torch.where(finite, self._noise, 0.0)
        self._norms = self._measured()

    def _measured(self) -> tuple[float, float, float]:
        """The norms of the fine result, the error and the noise: one that is not finite has such elements."""
        return float(self._fine.norm()), float(self._error.norm()), float(self._noise.norm())

    def outcome(self) -> Recomputation:
        count = self._fine.numel()
        for number, what in ((self._new, "are NaN or infinite"), (self._lost, "should not be finite")):
            if number:
                return Recomputation("wrong", None, f"{number} of {count} elements {what}")
        size, error, noise = self._norms
        if not size:
            smallest = self._fmt.smallest_normal
            wrong = count and float(self._error.abs().max()) > max(
                smallest, 2 * float(self._noise.abs().max())
            )
            return (
                Recomputation("wrong", None, "it makes zeros only") if wrong else Recomputation("right", 0.0)
            )
        judged, summed = self._by_norms(size, error / size, noise / size, count)
        if judged.outcome == "wrong":
            independent = self._mine.shape[-1] if self._twice.shared else count
            few = min(independent, fewest_samples(self._mine, count))
            judged, summed = self._by_norms(size, error / size, noise / size, few)
        return judged if judged.outcome == "wrong" else self._row_by_row(judged, size, summed)

    def _by_norms(self, size: float, error: float, noise: float, samples: int) -> tuple[Recomputation, float]:
        """The outcome of the norms, of errors that are made of so many independent numbers; and what sums
        that cancel may be off."""
        scatter = scatter_of(samples)
        floor, why = self._floor(size)
        allowed = max(RATIO * scatter * noise, floor)
        halved = self._halved(size)
        summed = 0.0
        if self._twice.sizes is not None:
            summed = accumulated(self._twice.terms, self._fmt.roundoff, self._twice.sizes) / size
        times = scatter_text(samples)
        reason = f"{RATIO:g}{times} times the noise of this operator, {noise:.3g} ({self._twice.how})"
        if allowed == floor:
            reason = f"{why}, which is more than {reason}"
        if (apart := HALVES_RATIO * scatter * halved) > allowed:
            allowed = apart
            reason = f"{HALVES_RATIO:g}{times} times that of a product summed in two halves, {halved:.3g}"
        if error > allowed and (drawn := RATIO * scatter * self._noisiest() / size) > allowed:
            allowed = drawn
            reason = f"{RATIO:g}{times} times the noise of the noisiest of {len(self._twice.draws)} draws"
        if summed > _WORTH_ADDING * allowed:
            reason += f", and {summed:.3g} for sums that cancel"
        allowed += summed
        outcome = "right" if error <= allowed else "wrong"
        return Recomputation(outcome, error, "", noise, allowed, reason), summed

    def _noisiest(self) -> float:
        """The noise of the noisiest draw; 0 without draws."""
        return max((float(self._off(draw).norm()) for draw in self._twice.draws), default=0.0)

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
        u = max(fmt.roundoff, fmt.spacing / 2 / rms)
        if fmt.roundoff <= _SINGLE:
            single = one_operator_tolerance(fmt.name, fmt.name, self._twice.terms, rms)
            return single.value, single.reason
        return u / math.sqrt(3), f"u/sqrt(3) = {u / math.sqrt(3):.3g}, the rounding of {fmt.name}"

    def _row_by_row(self, overall: Recomputation, size: float, summed: float) -> Recomputation:
        """The outcome of all rows: `overall` where each is right too."""
        shape = self._fine.shape
        length = shape[-1] if len(shape) > 1 else 0
        if length < LEAST_ROW:
            return overall
        draws = [self._off(draw) for draw in self._twice.draws]
        rows = RowErrors.of(self._fine, self._error, self._noise, self._mine, draws)
        errors = (rows.error - ROW_RATIO * summed * size / math.sqrt(len(rows.size))).clamp_min(0.0)
        sizes = rows.size.clamp_min(
            self._fmt.roundoff**2 * size / math.sqrt(len(rows.size))
        )  # rows of nothing
        rows = replace(rows, error=errors, size=sizes)
        floor, _ = self._floor(size)
        allowed = ROW_RATIO * max(scatter_of(length) * float((rows.worst_noise / sizes).max()), floor)
        shares = errors / sizes
        worst = int(shares.argmax())
        overall = replace(overall, row_error=float(shares[worst]), row_allowed=allowed)
        if not float(shares[worst]) > allowed:
            return self._alike(overall, rows, floor, summed)
        beyond = int((shares > allowed).sum())
        row = [int(place) for place in np.unravel_index(worst, shape[:-1])]
        reason = (
            f"{beyond} of {len(shares)} rows are wrong; row {row} is {float(shares[worst]):.3g} off, "
            f"of a row at most {allowed:.3g} is allowed"
        )
        return replace(overall, outcome="wrong", why=reason)

    def _alike(self, overall: Recomputation, rows: RowErrors, floor: float, summed: float) -> Recomputation:
        """The outcome of rows that weigh alike. In float32 modules may round on the way, in any direction,
        and so may sums that cancel; and what all rows share has one."""
        judged = with_typical(overall, rows, floor)
        directed = self._fmt.roundoff > _SINGLE and summed <= _WORTH_ADDING * floor
        if self._twice.shared or not directed or judged.outcome == "wrong":
            return judged
        judged = with_bias(judged, rows, self._fmt.roundoff)
        return judged if judged.outcome == "wrong" else with_part_bias(judged, rows, self._fmt.roundoff)
