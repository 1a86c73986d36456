"""Rows of a result that weigh alike: what the norms of a whole tensor hide behind its large rows.

A row of 1,000 times the others is all of a norm, and one of sums that cancel is all of what rounding may
do. So the same errors are looked at as shares of their own rows, with e the error of a row of mine, f its
exact result and n the noise of the row (what the other computation is off by):

    typical    median over rows of |e| / |f|            beside the same of n
    bias       median over rows of <e, f> / <f, f>      beside the same of n

The first may be twice that of the noise, as the whole may. The second is how much too large (or small)
mine is: rounding to nearest has no direction, so that a scale that is off is seen far below its noise.
Mine may have twice the bias of the noise, a quarter of the unit roundoff u, and 4 standard errors. That
of a median of R rows is sqrt(pi / 2) / sqrt(R) times that of a row, which is |e| / |f| / sqrt(numbers in
the row). The same is asked of each sixteenth of the channels (heads, what one rank has), with 5 standard
errors. Where the whole has less of a bias than its rows, or one of the other sign, that of the whole
counts.

Noise may have a direction: attention that looks at two tokens nearly alike is off along their difference,
in all channels at once. So what is wrong is held against draws of the noise too. Its noise may scatter as
theirs does: by 7.49 standard deviations of their logarithms, which a ninth beside eight exceeds once in
10,000 times (`noise.along_depth`), though not beyond the noisiest. And it may have as much of a direction.

Roundings are fewer than numbers where a channel is larger than all others, or where rows are alike, whose
equal values round alike (attention that looks at all tokens evenly). Before a bias, or a norm, is called
wrong these are counted: with p the squares as shares of their rows, P their sums over rows, by channel,
and D the distinct values of a channel (or (sum p)^2 / sum p^2 over its rows, if that is less),

    roundings = (sum P)^2 / sum (P^2 / D)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import stdev

import numpy as np
import torch

from ..base.reason import Reason
from ..judging.tolerance import SAMPLE_SIGMAS, scatter_of, scatter_text
from ..noise.along_depth import DEVIATIONS
from .recomputation import Recomputation

SINGLE = 2.0**-24
"""The unit roundoff of float32, in which devices add up."""
RATIO = 2.0
"""What mine may have of the noise: it may round at four times as many places, and sqrt(4) is 2."""
HALVES_RATIO = 1.5
ROW_RATIO = 4.0
_WORTH_ADDING = 0.01
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

    def typical(self, noise: float, size: torch.Tensor) -> float:
        """The noise of a typical row that is `noise` here, as far as it scatters: to the noisiest draw."""
        shares: list[float] = (self.noise / size).median(1).values.tolist()
        if len(shares) < 2 or min(shares) <= 0:
            return noise
        scatter = DEVIATIONS * stdev(map(math.log, shares))
        return min(noise * math.exp(min(scatter, 100.0)), max(noise, *shares))

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


def by_norms(
    error: float,
    noise: float,
    samples: int,
    of_noise: str,
    *,
    floor: float = 0.0,
    why: str = "",
    halved: float = 0.0,
    summed: float = 0.0,
    drawn: Callable[[], tuple[float, int]] = lambda: (0.0, 0),
) -> Recomputation:
    """The outcome of the norms, relative to the result, of errors of so many independent numbers.

    Allowed is the most of `RATIO` times the noise (`of_noise` in words), the `floor`, what two halves make,
    and the noisiest of several draws; and what sums that cancel may be off beside that.
    """
    scatter, times = scatter_of(samples), scatter_text(samples)
    allowed = max(RATIO * scatter * noise, floor)
    reason = Reason("{:g}{} times {}", RATIO, times, of_noise)
    if floor and allowed == floor:
        reason = Reason("{}, which is more than {}", why, reason)
    if (apart := HALVES_RATIO * scatter * halved) > allowed:
        allowed = apart
        reason = Reason(
            "{:g}{} times that of a product summed in two halves, {:.3g}", HALVES_RATIO, times, halved
        )
    if error > allowed:
        noisiest, count = drawn()
        if RATIO * scatter * noisiest > allowed:
            allowed = RATIO * scatter * noisiest
            reason = Reason("{:g}{} times the noise of the noisiest of {} draws", RATIO, times, count)
    if summed > _WORTH_ADDING * allowed:
        reason += Reason(", and {:.3g} for sums that cancel", summed)
    allowed += summed
    return Recomputation("right" if error <= allowed else "wrong", error, "", noise, allowed, reason)


def worst_row(
    overall: Recomputation, shares: torch.Tensor, bounds: torch.Tensor, shape: Sequence[int], every: int = 1
) -> Recomputation:
    """The outcome with that of the worst row, beside its bound. The rows are one in `every` of a tensor of so
    many."""
    worst = int((shares / bounds).argmax())
    share, allowed = float(shares[worst]), float(bounds[worst])
    overall = replace(overall, row_error=share, row_allowed=allowed)
    row = [int(place) for place in np.unravel_index(worst * every, shape)]
    beyond = int((shares > bounds).sum())
    what = Reason("{} of {} rows are wrong; row {} is {:.3g} off", beyond, len(shares), row, share)
    return _bounded(overall, share, allowed, what)


def alike(
    overall: Recomputation,
    rows: RowErrors,
    floor: float,
    roundoff: float | None,
    exact: torch.Tensor | None = None,
) -> Recomputation:
    """The outcome of rows that weigh alike; with the unit roundoff of the type of mine, of their bias too,
    relative to the norms `exact` of the rows where these are not their sizes."""
    judged = with_typical(overall, rows, floor)
    if roundoff is None or judged.outcome == "wrong":
        return judged
    judged = with_bias(judged, rows if exact is None else replace(rows, size=exact), roundoff)
    return judged if judged.outcome == "wrong" else with_part_bias(judged, rows, roundoff)


def with_typical(judged: Recomputation, rows: RowErrors, floor: float) -> Recomputation:
    """The outcome of a tensor with that of its typical row. `floor` is what any row may be off."""
    noise, error = (float((norms / rows.size).median()) for norms in (rows.noise, rows.error))
    if rows.draws is not None:
        noise = rows.draws.typical(noise, rows.size)
    samples = rows.samples * len(rows.size)
    if error > RATIO * scatter_of(samples) * noise:
        samples = fewest_samples(rows.values, samples)
    allowed = max(RATIO * scatter_of(samples) * noise, floor)
    judged = replace(judged, typical_error=error, typical_allowed=allowed)
    return _bounded(judged, error, allowed, Reason("a typical row is {:.3g} off", error))


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
    return _bounded(judged, abs(bias), allowed, Reason("all of it is {}", _off(bias)))


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
    worst_bias, bound, width = float(bias[worst]), float(allowed[worst]), sections.width
    judged = replace(judged, part_bias=abs(worst_bias), part_bias_allowed=bound)
    channels = Reason("channels {} to {} are {}", worst * width, (worst + 1) * width - 1, _off(worst_bias))
    return _bounded(judged, abs(worst_bias), bound, channels)


def _off(bias: float) -> str:
    return Reason("{:.3g} too large" if bias > 0 else "{:.3g} too small", abs(bias))


def _bounded(judged: Recomputation, error: float, allowed: float, what: str) -> Recomputation:
    """The outcome, which is wrong where an error is more than is allowed."""
    if error <= allowed:
        return judged
    return replace(judged, outcome="wrong", why=Reason("{}, {:.3g} is allowed", what, allowed))


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
