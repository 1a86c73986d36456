"""Is the result of a linear layer right? Told from the projection of golden's weight, without the weight.

With x what mine gave the layer and y what it made, P and b the projections of golden's weight and bias
(`tensors.projection`) and S the signs, the error e of y shows as

    e S = y S - x P - b S,    |e|^2 = mean over the columns of the squares, summed over rows

Storing y in the type of mine, of unit roundoff u, leaves u |y| / sqrt(6): an error spread evenly over half
of a spacing, which is u to 2 u of a value. Mine may have twice that, as in `twice`, and 1.5 times
that of a product that is summed in two halves, whose sizes the projection tells as well. Where the weights
of mine may have been rounded, that counts as noise too: in proportion to each weight, or evenly where weights
are whole numbers of steps. Rows that weigh alike, and what is too large or small as a whole, are bounded as
in `rows`: a row of the error is as many numbers as P has columns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import nn

from ..base.reason import Reason
from ..base.threads import threads_for
from ..capture.torch_hooks.model import module_tree
from ..dumps.torch_model import Outline
from ..errors import OperatorError
from ..judging.tolerance import PER_LAYER, scatter_of
from ..mapping.pair import Operand, Pair
from ..mapping.reconcile import open_pair
from ..tensors.dtypes import FloatFormat, by_name, by_torch
from ..tensors.projection import MOST_WIDTH, projection, signs
from ..tensors.source import Source
from .golden_model.models import is_linear
from .recomputation import Recomputation
from .rows import (
    HALVES_RATIO,
    RATIO,
    ROW_RATIO,
    SINGLE,
    RowErrors,
    alike,
    by_norms,
    fewest_samples,
    worst_row,
)
from .twice import SIZE, one_operator_tolerance

_ROWS = 1 << 20
"""Elements of a block of rows that is looked at together: 8 MiB in float64."""


class WeightError(NamedTuple):
    """The relative rms error of a weight by its rounding; `is_even` of steps that are as wide for small
    values as for large ones."""

    relative: float
    is_even: bool = False


@dataclass(frozen=True, slots=True)
class ProjectedLinear:
    """A linear layer of golden: what reads or makes the projection of its weight, and its bias if it has one,
    how many features it gives, and the error of the weights of mine by their rounding: 0 where they are known
    to be golden's, `None` where they may have been rounded to the type of the result."""

    projection: Callable[[], torch.Tensor]
    bias: Callable[[], torch.Tensor] | None
    outputs: int
    weight_error: WeightError | None


@dataclass(slots=True)
class _Squares:
    """Of each row, float64: the error, the result, its two halves, the sum of its terms squared and of what
    the same weights spread evenly would make, the right result by its projection, and the product of that
    with the error; each is a mean over `width` numbers."""

    width: int
    error: torch.Tensor
    size: torch.Tensor
    halves: torch.Tensor
    terms: torch.Tensor
    even_terms: torch.Tensor
    right: torch.Tensor
    along: torch.Tensor


def as_stated(layer: ProjectedLinear, stated: str) -> ProjectedLinear:
    """The layer where mine is stated to compute with codes of 8 bits: what it reads is rounded to steps of
    its rows, and its weights are, unless more is known of these."""
    if not by_name(stated).is_coded:
        return layer
    step = by_name(stated).roundoff or 0.0
    weights = step if layer.weight_error is None else layer.weight_error.relative
    return replace(layer, weight_error=WeightError(math.hypot(step, weights), is_even=True))


def judged_by_projection(
    layer: ProjectedLinear,
    inputs: torch.Tensor,
    mine: torch.Tensor,
    limit: int,
    dtype: torch.dtype | None = None,
) -> Recomputation:
    """Whether `mine` is the output of the layer for `inputs`, but for the rounding of `dtype` (its own).

    Of tensors of more than `limit` elements in all every second row is looked at, or every third and so on.
    Raises `AccError` where the projection cannot be read.
    """
    projection = layer.projection().double()
    features, count = inputs.shape[-1], mine.shape[-1]
    width = projection.shape[-1] if projection.ndim == 2 else 0
    fits = projection.shape == (features, width) and 0 < width <= MOST_WIDTH and count == layer.outputs
    if not fits or inputs.shape[:-1] != mine.shape[:-1]:
        return Recomputation(why=SIZE)
    shift = torch.zeros(width, dtype=torch.float64)
    if layer.bias is not None:
        bias = layer.bias().double()
        if bias.shape != (count,):
            return Recomputation(why=SIZE)
        shift = bias @ signs(count, width)
    every = max(1, -(-(inputs.numel() + mine.numel()) // limit))
    x, y = inputs.reshape(-1, features)[::every], mine.reshape(-1, count)[::every]
    fmt = by_torch(dtype or mine.dtype).format
    assert fmt is not None
    with threads_for(x.numel() + y.numel() + projection.numel()):
        squares = _squares(x, y, projection, shift)
        judged = _judged(layer, squares, y, fmt, mine.shape[:-1], every)
    return replace(judged, reason=Reason("{}, one row in {}", judged.reason, every)) if every > 1 else judged


def _squares(
    inputs: torch.Tensor, mine: torch.Tensor, projection: torch.Tensor, shift: torch.Tensor
) -> _Squares:
    drawn, half = signs(mine.shape[1], projection.shape[1]), inputs.shape[1] // 2
    energies = projection.square().mean(1)
    blocks = []
    rows = max(1, _ROWS // (inputs.shape[1] + mine.shape[1]))
    for start in range(0, len(mine), rows):
        x, y = inputs[start : start + rows].double(), mine[start : start + rows].double()
        first, second = x[:, :half] @ projection[:half], x[:, half:] @ projection[half:]
        right = first + second + shift
        error, exact = y @ drawn - right, right.square().mean(1)
        size = torch.maximum(y.square().sum(1), exact)
        halves = (first.square() + second.square()).mean(1)
        squares, along = x.square(), (error * right).mean(1)
        terms, even = squares @ energies, squares.sum(1) * energies.mean()
        blocks.append((error.square().mean(1), size, halves, terms, even, exact, along))
    parts = [torch.cat(part) for part in zip(*blocks)] if blocks else [torch.zeros(0)] * 7
    return _Squares(projection.shape[1], *parts)


def _judged(
    layer: ProjectedLinear,
    squares: _Squares,
    mine: torch.Tensor,
    fmt: FloatFormat,
    shape: Sequence[int],
    every: int,
) -> Recomputation:
    """The outcome of rows of mine, one in `every` of a tensor of as many as `shape` says."""
    total = float(squares.size.sum())
    if not math.isfinite(total + float(squares.error.sum())):
        raise OperatorError("it has values that are not finite")
    if not total:
        return Recomputation("right", 0.0)
    # The rounding of each row, squared: storing it, storing two halves, adding up what cancels.
    length, rounding = mine.shape[-1], fmt.roundoff / math.sqrt(6)
    relative, is_even = layer.weight_error or WeightError(rounding)
    of_weights = relative**2 * (squares.even_terms if is_even else squares.terms)
    stored = rounding**2 * squares.size + length * fmt.spacing**2 / 12 + of_weights
    halved = stored + rounding**2 * squares.halves
    summed = (PER_LAYER * SINGLE) ** 2 * length * squares.terms
    error, noise, apart, cancelled = (
        math.sqrt(float(term.sum()) / total) for term in (squares.error, stored, halved, summed)
    )
    floor, why = 0.0, ""
    if fmt.roundoff <= SINGLE:  # a device may multiply with less
        single = one_operator_tolerance(fmt.name, fmt.name, length, math.sqrt(total / mine.numel()))
        floor, why = single.value, single.reason

    def by_norm(samples: int) -> Recomputation:
        what = Reason("the rounding of {}, {:.3g}", fmt.name, noise)
        held = by_norms(error, noise, samples, what, floor=floor, why=why, halved=apart, summed=cancelled)
        return replace(held, reason=Reason("{} (by a projection of golden's weight)", held.reason))

    samples = round(squares.width * total**2 / float(squares.size.square().sum()))
    overall = by_norm(samples)
    if overall.outcome == "wrong":
        overall = by_norm(fewest_samples(mine, samples))
    if overall.outcome == "wrong" or not shape or overall.allowed is None:
        return overall
    least = fmt.roundoff**4 * float(squares.size.mean())
    sizes, exact = squares.size.clamp_min(least), squares.right.clamp_min(least)
    bounds = ROW_RATIO * scatter_of(squares.width) * (halved / sizes).sqrt() + (summed / sizes).sqrt()
    if fmt.roundoff <= SINGLE:
        bounds = bounds.clamp_min(ROW_RATIO * overall.allowed)
    overall = worst_row(overall, (squares.error / sizes).sqrt(), bounds, shape, every)
    if overall.outcome == "wrong" or fmt.roundoff <= SINGLE:
        return overall
    rounding_of_rows = (torch.maximum(stored, (HALVES_RATIO / RATIO) ** 2 * halved) + summed).sqrt()
    rows = RowErrors(
        squares.error.sqrt(),
        rounding_of_rows,
        sizes.sqrt(),
        squares.along,
        torch.zeros_like(sizes),
        squares.width,
        mine,
    )
    return alike(overall, rows, 0.0, fmt.roundoff, exact.sqrt())


# Linear layers of mine beside the projections of golden's weights, whatever the two call them and however
# mine shares them out: packed (qkv, gate and up), by columns or by rows over ranks.
#
# The output is looked at as its pair compares it, which is golden's, whole. The input is the same on all
# ranks, or a part of it lies on each.


_UNRELATED = 0.5
"""The relative error of tensors that have nothing to do with each other is sqrt(2): rows in another order."""


def layers_of(outline: Outline) -> dict[str, ProjectedLinear]:
    """The linear layers that golden outlines; the weights of mine may have been rounded."""
    layers = {}
    for name, projection_ref in outline.projections.items():
        bias = outline.weights.get(f"{name}.bias")
        if name in outline.outputs:
            read_bias = bias.open if bias is not None else None
            layers[name] = ProjectedLinear(projection_ref.open, read_bias, outline.outputs[name], None)
    return layers


def layers_of_model(model: nn.Module) -> dict[str, ProjectedLinear]:
    """The linear layers of golden's model, each projected once it is asked for."""
    linears = {place.name: place.module for place in module_tree(model).walk()}
    return {
        name: ProjectedLinear(
            functools.cache(functools.partial(projection, linear.weight)),
            linear.bias.detach if linear.bias is not None else None,
            linear.out_features,
            None,
        )
        for name, linear in linears.items()
        if is_linear(linear) and not linear.weight.is_meta
    }


def judged_by_golden(
    pair: Pair,
    layers: Mapping[str, ProjectedLinear],
    inputs: Sequence[torch.Tensor],
    limit: int,
    stated: torch.dtype | None = None,
) -> Recomputation:
    """Whether the output of a linear layer of mine is what golden's makes of `inputs`, one for each rank, but
    for the rounding of the `stated` type, or of its own.

    An output that its own side multiplies next (`Operand.onward`) may be the layer's before or after that.
    Raises `AccError` where that cannot be said.
    """
    layer = layers.get(pair.golden.node)
    multiplied = pair if pair.mine.onward else None
    pair = replace(pair, golden=replace(pair.golden, onward=()), mine=replace(pair.mine, onward=()))
    if len(pair.mine.refs) == 1 and pair.mine.split is None:  # the rows of its input, in their order
        pair = replace(pair, golden=replace(pair.golden, tokens=None), mine=replace(pair.mine, tokens=None))
    if (
        layer is None
        or pair.golden.slot != "output[0]"
        or not is_plain(pair.golden)
        or not is_plain(pair.mine)
    ):
        raise OperatorError("golden's dump does not outline it")
    dtype = pair.mine.refs[0].open().dtype
    if by_torch(dtype).format is None or not all(tensor.is_floating_point() for tensor in inputs):
        raise OperatorError("it is quantised")
    x = _together(inputs, layer.projection().shape[0])

    def outcome(opened: Pair) -> Recomputation:
        y = whole(open_pair(opened).mine)
        if not layer.outputs or y.numel() % layer.outputs:
            raise OperatorError(Reason("golden's dump outlines a layer of {} outputs", layer.outputs))
        return judged_by_projection(layer, x, y.reshape(-1, layer.outputs), limit, stated or dtype)

    recomputed = outcome(pair)
    if recomputed.outcome == "wrong" and multiplied is not None:
        recomputed = outcome(multiplied)
    if recomputed.error is None or recomputed.error > _UNRELATED:
        raise OperatorError("its input has other rows, or another order of columns")
    return recomputed


def is_plain(operand: Operand) -> bool:
    """Whether the rows of a tensor are those of its operator, as floats."""
    return not (
        operand.tokens
        or operand.split
        or operand.experts
        or operand.slots_by
        or operand.scales
        or operand.onward
    )


def whole(source: Source) -> torch.Tensor:
    """All of a source."""
    return source.read(0, math.prod(source.shape)).reshape(source.shape)


def _together(inputs: Sequence[torch.Tensor], features: int) -> torch.Tensor:
    """The input of a layer of so many features: the same on all ranks, or a part of it on each.

    Raises `OperatorError` where ranks have other values of what should be the same.
    """
    rows = [tensor.reshape(-1, tensor.shape[-1]) for tensor in inputs]
    if rows[0].shape[-1] != features:
        return torch.cat(rows, -1)
    if not all(torch.equal(rows[0], tensor) for tensor in rows[1:]):
        raise OperatorError("its input is not the same on all ranks")
    return rows[0]
