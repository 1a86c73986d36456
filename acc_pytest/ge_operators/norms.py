"""Norms, and softmax."""

from __future__ import annotations

import torch

from .registry import GeCall, Unrounded, ge_operator


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
