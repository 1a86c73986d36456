"""Norms, and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from .registry import REQUIRED, GeCall, Unrounded, ge_operator


@ge_operator("SoftmaxV2", "x axes[]", axes=(-1,), half_to_float=False)
def _softmax(call: GeCall, x: torch.Tensor, axes: list[int]) -> Unrounded:
    axis = _one_axis(call, x, axes)
    return Unrounded(x.softmax(axis), x.shape[axis] if x.ndim else 1)


@ge_operator("LogSoftmaxV2", "logits axes[]", axes=(-1,))
def _log_softmax(call: GeCall, x: torch.Tensor, axes: list[int]) -> Unrounded:
    axis = _one_axis(call, x, axes)
    value = x.log_softmax(axis)
    return Unrounded(value, x.shape[axis] if x.ndim else 1, lambda: x.abs() + value.abs())


def _one_axis(call: GeCall, x: torch.Tensor, axes: list[int]) -> int:
    call.need(len(axes) == 1, f"{len(axes)} axes")
    return call.axis(int(axes[0]), x.ndim)


@ge_operator("LayerNormV4", "x normalized_shape[] gamma? beta?", epsilon=1e-5)
def _layer_norm_v4(
    call: GeCall, x: torch.Tensor, sizes: list[int], gamma: torch.Tensor | None, beta: torch.Tensor | None
) -> list[Unrounded]:
    call.need(sizes == list(x.shape[x.ndim - len(sizes) :]), f"{list(x.shape)} does not end in {sizes}")
    return _layer_norm(call, x, gamma, beta, len(sizes))


@ge_operator("LayerNorm", "x gamma beta", begin_norm_axis=0, begin_params_axis=0, epsilon=1e-7)
@ge_operator("LayerNormV3", "x gamma beta", begin_norm_axis=0, begin_params_axis=0, epsilon=1e-5)
def _layer_norm_from(
    call: GeCall, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor
) -> list[Unrounded]:
    """The third output of the first version is the variance, where later ones give the inverse deviation."""
    first = call.axis(call.attrs["begin_norm_axis"], x.ndim)
    y, mean, deviation = _layer_norm(call, x, gamma, beta, x.ndim - first)
    if call.op_type == "LayerNormV3":
        return [y, mean, deviation]
    variance = x.var(tuple(range(first, x.ndim)), correction=0, keepdim=True)
    return [y, mean, Unrounded(variance, y.terms)]


def _layer_norm(
    call: GeCall, x: torch.Tensor, gamma: torch.Tensor | None, beta: torch.Tensor | None, normed: int
) -> list[Unrounded]:
    """Normed output, mean, inverse standard deviation, over the last `normed` dimensions."""
    call.need(normed > 0, "no dimension to norm over")
    axes = tuple(range(x.ndim - normed, x.ndim))
    terms = max(1, x[(0,) * (x.ndim - normed)].numel()) if x.numel() else 1
    mean = x.mean(axes, keepdim=True)
    variance = x.var(axes, correction=0, keepdim=True)
    deviation = (variance + call.attrs["epsilon"]).rsqrt()
    scale = deviation if gamma is None else deviation * gamma
    shift = torch.zeros((), dtype=torch.float64) if beta is None else beta
    sizes = x.abs().mean(axes, keepdim=True)
    return [
        Unrounded((x - mean) * scale + shift, terms, lambda: (x.abs() + sizes) * scale.abs() + shift.abs()),
        Unrounded(mean, terms, lambda: sizes),
        # The variance of a row that hardly varies is the rest of a difference of squares.
        Unrounded(deviation, terms, lambda: deviation**3 * (x.square().mean(axes, keepdim=True))),
    ]


@ge_operator("AddRmsNorm InplaceAddRmsNorm", "x1 x2 gamma", epsilon=1e-6)
def _add_rms_norm(call: GeCall, x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor) -> list[Unrounded]:
    """Outputs are the normed sum, the inverse root mean square and the sum."""
    total = x1 + x2
    normed, deviation = _rms_norm(call, total, gamma)
    return [normed, deviation, Unrounded(total)]


@ge_operator("RmsNorm", "x gamma", epsilon=1e-6)
def _rms_norm(call: GeCall, x: torch.Tensor, gamma: torch.Tensor) -> list[Unrounded]:
    call.need(
        0 < gamma.ndim <= x.ndim and gamma.shape == x.shape[x.ndim - gamma.ndim :],
        f"gamma {list(gamma.shape)} is not the end of {list(x.shape)}",
    )
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    deviation = (x.square().mean(axes, keepdim=True) + call.attrs["epsilon"]).rsqrt()
    return [Unrounded(x * deviation * gamma, gamma.numel()), Unrounded(deviation, gamma.numel())]


# Sums, means and extremes along axes, and running sums.


_NAMES = ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any")


def _axes(call: GeCall, x: torch.Tensor, axes: Sequence[int]) -> tuple[int, ...]:
    """The dimensions to reduce; without one all of them, unless the attribute says none."""
    if not axes:
        return () if call.attrs.get("noop_with_empty_axes", False) else tuple(range(x.ndim))
    return tuple(sorted({call.axis(axis, x.ndim) for axis in axes})) if x.ndim else ()


def _reduced(call: GeCall, reduction: str, x: torch.Tensor, axes: tuple[int, ...]) -> Unrounded:
    keep_dims = bool(call.attrs["keep_dims"])
    if not axes:
        return Unrounded(x)
    terms = math.prod(x.shape[axis] for axis in axes)
    if reduction in ("Sum", "Mean"):
        call.need(reduction == "Sum" or x.is_floating_point(), "a mean of whole numbers")
        share = 1 if reduction == "Sum" else max(1, terms)
        total = x.sum(axes, keep_dims)
        value = total if reduction == "Sum" else total / share
        return Unrounded(value, max(1, terms), lambda: x.abs().sum(axes, keep_dims) / share)
    if reduction in ("Max", "Min"):
        return Unrounded((torch.amax if reduction == "Max" else torch.amin)(x, axes, keep_dims))
    for axis in reversed(axes):
        x = (
            x.prod(axis, keep_dims)
            if reduction == "Prod"
            else (x.all if reduction == "All" else x.any)(axis, keep_dims)
        )
    return Unrounded(x, max(1, terms))


def _registered(reduction: str) -> None:
    @ge_operator(f"Reduce{reduction}", "x axes[]", keep_dims=False, noop_with_empty_axes=reduction == "Mean")
    @ge_operator(
        f"Reduce{reduction}D", "x axes[]", axes=REQUIRED, keep_dims=False, noop_with_empty_axes=False
    )
    def reduced(call: GeCall, x: torch.Tensor, axes: list[int]) -> Unrounded:
        return _reduced(call, reduction, x, _axes(call, x, axes))


for _way in _NAMES:
    _registered(_way)


@ge_operator("Cumsum", "x axis#", exclusive=False, reverse=False)
@ge_operator("CumsumD", "x axis#", axis=REQUIRED, exclusive=False, reverse=False)
def _cumsum(call: GeCall, x: torch.Tensor, axis: int) -> Unrounded:
    axis = call.axis(axis, x.ndim)

    def total(addends: torch.Tensor) -> torch.Tensor:
        turned = addends.flip(axis) if call.attrs["reverse"] else addends
        sums = turned.cumsum(axis)
        sums = sums - turned if call.attrs["exclusive"] else sums
        return sums.flip(axis) if call.attrs["reverse"] else sums

    return Unrounded(total(x), max(1, x.shape[axis] if x.ndim else 1), lambda: total(x.abs()))


# Rotary position embeddings.


def _half(x: torch.Tensor) -> torch.Tensor:
    """The second half of each head negated, before the first."""
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)


def _interleaved(x: torch.Tensor) -> torch.Tensor:
    """Each pair of neighbours with the second negated and before the first."""
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


_MODES: dict[object, Callable[[torch.Tensor], torch.Tensor]] = {
    0: _half, 1: _interleaved, "half": _half, "interleave": _interleaved,
}  # fmt: skip


def _turned(call: GeCall, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: object) -> Unrounded:
    call.need(mode in _MODES, f"rotation {mode!r:.100} is not known")
    call.need(x.shape[-1] % 2 == 0 and cos.shape == sin.shape, "cos and sin do not fit the heads")
    call.need(call.common(x, cos) == x.shape, "cos and sin do not fit the heads")
    partner = _MODES[mode](x)
    return Unrounded(x * cos + partner * sin, 2, lambda: (x * cos).abs() + (partner * sin).abs())


@ge_operator("RotaryMul", "x r1 r2", rotary_mode="half")
def _rotary_mul(call: GeCall, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Unrounded:
    return _turned(call, x, cos, sin, call.attrs["rotary_mode"])


@ge_operator("RotaryPositionEmbedding", "x cos sin rotate?", mode=0)
def _rotary(
    call: GeCall, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rotate: torch.Tensor | None
) -> Unrounded:
    call.need(rotate is None, "a rotation matrix of its own")
    return _turned(call, x, cos, sin, call.attrs["mode"])


@ge_operator("ApplyRotaryPosEmb", "query key cos sin", layout=1, rotary_mode="half")
def _apply(
    call: GeCall, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> list[Unrounded]:
    call.need(call.attrs["layout"] == 1, "only layout 1 (BSND) is known")
    return [_turned(call, x, cos, sin, call.attrs["rotary_mode"]) for x in (query, key)]
