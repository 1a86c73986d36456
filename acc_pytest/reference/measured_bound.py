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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..errors import OperatorError
from ..ge_operators import Unrounded
from ..judging.tolerance import SAMPLE_SIGMAS, scatter_of, scatter_text
from ..tensors.dtypes import FloatFormat, by_torch
from .one_operator import (
    SIZE,
    accumulated,
    agrees,
    each_element,
    for_real_and_imaginary,
    in_reals,
    judged,
    one_operator_tolerance,
    unrounded_in_reals,
)
from .recomputation import Recomputation

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
        twice = replace(
            twice,
            fine=in_reals(twice.fine),
            rounded=in_reals(twice.rounded),
            sizes=None if twice.sizes is None else for_real_and_imaginary(twice.sizes),
            in_two=None if twice.in_two is None else in_reals(twice.in_two),
            draws=tuple(map(in_reals, twice.draws)),
        )
        mine = in_reals(mine)
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
        noise = rows.noise if rows.draws is None else torch.maximum(rows.noise, rows.draws.noise.amax(0))
        allowed = ROW_RATIO * max(scatter_of(length) * float((noise / sizes).max()), floor)
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


# Rows that weigh alike: what the norms of a whole tensor hide behind its large rows.
#
# A row of 1,000 times the others is all of a norm, and one of sums that cancel is all of what rounding may
# do. So the same errors are looked at as shares of their own rows, with e the error of a row of mine, f its
# exact result and n the noise of the row (what the other computation is off by):
#
#     typical    median over rows of |e| / |f|            beside the same of n
#     bias       median over rows of <e, f> / <f, f>      beside the same of n
#
# The first may be twice that of the noise, as the whole may. The second is how much too large (or small)
# mine is: rounding to nearest has no direction, so that a scale that is off is seen far below its noise.
# Mine may have twice the bias of the noise, a quarter of the unit roundoff u, and 4 standard errors. That
# of a median of R rows is sqrt(pi / 2) / sqrt(R) times that of a row, which is |e| / |f| / sqrt(numbers in
# the row). The same is asked of each sixteenth of the channels (heads, what one rank has), with 5 standard
# errors. Where the whole has less of a bias than its rows, or one of the other sign, that of the whole
# counts.
#
# Noise may have a direction: attention that looks at two tokens nearly alike is off along their difference,
# in all channels at once. So what is wrong is held against draws of the noise too: its noise may vary as
# theirs does, and may have as much of a direction.
#
# Roundings are fewer than numbers where a channel is larger than all others, or where rows are alike, whose
# equal values round alike (attention that looks at all tokens evenly). Before a bias, or a norm, is called
# wrong these are counted: with p the squares as shares of their rows, P their sums over rows, by channel,
# and D the distinct values of a channel (or (sum p)^2 / sum p^2 over its rows, if that is less),
#
#     roundings = (sum P)^2 / sum (P^2 / D)


RATIO = 2.0
"""What mine may have of the noise: it may round at four times as many places, and sqrt(4) is 2."""
DIRECTED = 1 / 4
"""Of the unit roundoff: what an approximation inside of a kernel may do to all of its results alike."""
PARTS = 16
"""Parts of the channels whose bias is looked at by itself."""
_SIGMAS = 4.0
_SIGMAS_OF_PARTS = 5.0
"""The worst of 16 is looked at: 4.6 of a normal distribution are as rare there as 4 are in one."""
_MEDIAN = math.sqrt(math.pi / 2)
_NORMAL = 3
_LEAST_SAMPLES = math.ceil((SAMPLE_SIGMAS / math.log(math.sqrt(6))) ** 2)


@dataclass(frozen=True, slots=True)
class RowErrors:
    """Errors of each row, float64: the norms of error, noise and exact result, and the parts of error and
    noise that lie along the result, as <e, f>. `samples` are the numbers that the error of a row is made of,
    `values` those of mine, [rows, channels]. `draws` is further noise.
    """

    error: torch.Tensor
    noise: torch.Tensor
    size: torch.Tensor
    along: torch.Tensor
    noise_along: torch.Tensor
    samples: int
    values: torch.Tensor
    parts: ChannelParts | None = None
    draws: Draws | None = None

    @classmethod
    def of(
        cls,
        fine: torch.Tensor,
        error: torch.Tensor,
        noise: torch.Tensor,
        mine: torch.Tensor,
        draws: Sequence[torch.Tensor] = (),
    ) -> RowErrors:
        """Errors of tensors of one shape: the first three in float64, `mine` as stored, `draws` as errors."""
        length = mine.shape[-1]
        count = PARTS if length % PARTS == 0 else 1

        def products(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return (first * second).reshape(-1, count, length // count).sum(2)

        channels = ChannelParts(
            products(fine, fine), products(noise, noise), products(error, fine), products(noise, fine),
            length // count,
        )  # fmt: skip
        return cls(
            error.reshape(-1, length).norm(dim=1),
            channels.noise.sum(1).sqrt(),
            channels.fine.sum(1).sqrt(),
            channels.along.sum(1),
            channels.noise_along.sum(1),
            length,
            mine.reshape(-1, length),
            channels if count == PARTS else None,
            Draws(
                torch.stack([products(draw, draw) for draw in draws]),
                torch.stack([products(draw, fine) for draw in draws]),
            )
            if draws
            else None,
        )


@dataclass(frozen=True, slots=True)
class ChannelParts:
    """Errors of each part of the channels, `width` of them, [rows, parts]: squares of the fine result and of
    the noise, and the products of error and noise with the fine result."""

    fine: torch.Tensor
    noise: torch.Tensor
    along: torch.Tensor
    noise_along: torch.Tensor
    width: int


@dataclass(frozen=True, slots=True)
class Draws:
    """Noise of inputs that are off by roundings, as the inputs of mine are not. Several draws tell how it
    varies, and whether it has a direction. Its squares, and its products with the fine result, are of shape
    [draws, rows, parts].
    """

    squares: torch.Tensor
    along: torch.Tensor

    @property
    def noise(self) -> torch.Tensor:
        """Its norm, [draws, rows]."""
        return self.squares.sum(2).sqrt()

    def spread(self, size: torch.Tensor) -> float:
        """The noise of a typical row in the noisiest draw, as a multiple of that in the quietest."""
        shares = (self.noise / size).median(1).values
        return float(shares.max() / shares.min()) if float(shares.min()) > 0 else 1.0

    def direction(self, size: torch.Tensor) -> float:
        """The bias of a draw as a share of its noise in a typical row, at most."""
        shares = (self.noise / size).median(1).values
        biases = [abs(_bias(draw.sum(1), size)) for draw in self.along]
        return max((bias / share for bias, share in zip(biases, shares.tolist()) if share > 0), default=0.0)

    def part_directions(self, squares: torch.Tensor) -> torch.Tensor:
        """The bias of a draw as a share of its noise, at most, for each part of the channels, whose squares
        are [rows, parts]."""
        shares = (self.squares / squares).median(1).values.sqrt()
        biases = (self.along / squares).median(1).values.abs()
        return torch.where(shares > 0, biases / shares, 0.0).amax(0)


def with_typical(judged: Recomputation, rows: RowErrors, floor: float) -> Recomputation:
    """The outcome of a tensor with that of its typical row. `floor` is what any row may be off."""
    noise, error = (float((norms / rows.size).median()) for norms in (rows.noise, rows.error))
    if rows.draws is not None:
        noise *= rows.draws.spread(rows.size)
    samples = rows.samples * len(rows.size)
    if error > RATIO * scatter_of(samples) * noise:
        samples = fewest_samples(rows.values, samples)
    allowed = max(RATIO * scatter_of(samples) * noise, floor)
    judged = replace(judged, typical_error=error, typical_allowed=allowed)
    if error <= allowed:
        return judged
    reason = f"a typical row is {error:.3g} off, {allowed:.3g} is allowed"
    return replace(judged, outcome="wrong", why=reason)


def with_bias(judged: Recomputation, rows: RowErrors, roundoff: float) -> Recomputation:
    """The outcome of a tensor with its bias; `roundoff` is that of the type of mine."""
    bias, expected = _bias(rows.along, rows.size), _bias(rows.noise_along, rows.size)
    spread = max(float((rows.noise / rows.size).median()), roundoff / math.sqrt(3))
    if rows.draws is not None:
        expected = max(abs(expected), rows.draws.direction(rows.size) * spread)
    base = RATIO * abs(expected) + DIRECTED * roundoff + spread**2 / 2
    standard = RATIO * spread * _MEDIAN / math.sqrt(rows.samples * len(rows.size))
    if abs(bias) > base + _SIGMAS * standard:
        standard = max(standard, RATIO * spread * _MEDIAN / math.sqrt(roundings(rows.values)))
    allowed = base + _SIGMAS * standard
    judged = replace(judged, bias=bias, bias_allowed=allowed, bias_noise=expected, bias_deviation=standard)
    if abs(bias) <= allowed:
        return judged
    reason = f"all of it is {abs(bias):.3g} too {'large' if bias > 0 else 'small'}, {allowed:.3g} is allowed"
    return replace(judged, outcome="wrong", why=reason)


def with_part_bias(judged: Recomputation, rows: RowErrors, roundoff: float) -> Recomputation:
    """The outcome of a tensor with the largest bias of a sixteenth of the channels: of some heads, of what
    one rank has."""
    sections = rows.parts
    if sections is None:
        return judged
    squares = sections.fine.clamp_min(roundoff**4 * float(sections.fine.mean()))
    bias, expected, noise = (
        (sums / squares).median(0).values for sums in (sections.along, sections.noise_along, sections.noise)
    )
    spread = noise.sqrt().clamp_min(roundoff / math.sqrt(3))
    if rows.draws is not None:
        expected = torch.maximum(expected.abs(), rows.draws.part_directions(squares) * spread)
    base = RATIO * expected.abs() + DIRECTED * roundoff + spread**2 / 2
    deviations = _SIGMAS_OF_PARTS * RATIO * _MEDIAN * spread
    allowed = base + deviations / math.sqrt(len(squares) * sections.width)
    for section in (bias.abs() > allowed).nonzero()[:, 0].tolist():
        values = rows.values[:, section * sections.width : (section + 1) * sections.width]
        allowed[section] = base[section] + deviations[section] / math.sqrt(roundings(values))
    worst = int((bias.abs() / allowed).argmax())
    worst_bias, bound = float(bias[worst]), float(allowed[worst])
    judged = replace(judged, part_bias=abs(worst_bias), part_bias_allowed=bound)
    if abs(worst_bias) <= bound:
        return judged
    width = sections.width
    reason = (
        f"channels {worst * width} to {(worst + 1) * width - 1} are {abs(worst_bias):.3g} too "
        f"{'large' if worst_bias > 0 else 'small'}, {bound:.3g} is allowed"
    )
    return replace(judged, outcome="wrong", why=reason)


def fewest_samples(values: torch.Tensor, count: int) -> int:
    """The number of independent numbers in the norm of an error, of values that have `count`.

    Normal values are all of them, though their squares weigh like those of a third as many. It is no less
    than scatter by sqrt(6): one rounding is off by u at most, and by u / sqrt(6) as its root mean square.
    """
    rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    return min(count, max(_LEAST_SAMPLES, round(_NORMAL * roundings(rows))))


def roundings(values: torch.Tensor) -> float:
    """The number of independent roundings in the bias of values [rows, channels]; at least 1."""
    squares = values.double().square()
    shares = squares / squares.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    channels = shares.sum(0)
    distinct = 1.0 + (values.sort(0).values.diff(dim=0) != 0).sum(0)
    weighed = channels.square() / shares.square().sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    independent = torch.minimum(distinct, weighed.clamp_min(1.0))
    return max(1.0, float(channels.sum() ** 2 / (channels.square() / independent).sum()))


def _bias(along: torch.Tensor, size: torch.Tensor) -> float:
    """The share by which a typical row is too large, as far as all of it is too."""
    squares = size.square()
    typical, overall = float((along / squares).median()), float(along.sum() / squares.sum())
    if typical * overall <= 0:
        return 0.0
    return typical if abs(typical) <= abs(overall) else overall
