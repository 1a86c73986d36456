"""Norms by torch's functions in float64, gradients by autograd, softmax over flattened axes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from acc_pytest.base.older_torch import rms_norm as rms_norm_of

from .expected import TINY, Expected, U
from .table import Inputs, Param, oracle

_PARTS = ("normParam", "normParam", "preNormParam", "postNormParam")


def _rms(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm, and its error: the mean of n squares is off by n + 1 roundings, its root by half of them."""
    value = rms_norm_of(x, weight.shape, weight, epsilon)  # over the dimensions of the weight
    return value, (weight.numel() + 8) * U * value.abs()


@oracle("RmsNormOperation")
def rms_norm(p: Param, t: Inputs) -> Sequence[Expected]:
    """All kinds; what is added before is rounded once in float32, which moves the result by as much."""
    part, dtype = p[_PARTS[p["layerType"]]], t["x"].dtype
    total = t["x"].double()
    parts = total.abs()
    for name in ("bias", "residual"):
        if name in t:
            total, parts = total + t[name].double(), parts + t[name].double().abs()
    weight = t["gamma"].double() + (1 if part.get("modelType") == 1 else 0)
    if weight.ndim > 1 and weight.shape[0] == 1:
        weight = weight[0]
    value, error = _rms(total, weight, part["epsilon"])
    # a sum that cancels is off by U times its parts; the norm divides that by the root mean square
    rstd = 1 / (total.square().mean(tuple(range(-weight.ndim, 0)), keepdim=True) + part["epsilon"]).sqrt()
    if "residual" in t:
        lost = 2 * U * parts * rstd
        error = error + weight.abs() * lost + value.abs() * lost.amax(-1, keepdim=True)
    if part.get("modelType") == 1:
        error = error + U * value.abs()
    before = Expected(total, dtype, 2 * U * parts)
    if part["quantType"] == 0:
        plain = [Expected(value, dtype, error)]
        if p["layerType"] == 2:
            plain.append(before)
        if part.get("rstd"):
            plain.append(Expected(rstd, torch.float32, (weight.numel() + 8) * U * rstd))
        return plain
    if "beta" in t:
        value = value + t["beta"].double()
        error = error + U * value.abs()
    if p["layerType"] == 1 and part["dynamicQuantType"]:
        return by_row(value, error, shifted=part["dynamicQuantType"] == 2)
    scale, offset = t["scale"].double(), t["offset"].double()
    small = value / scale + offset
    error8 = (error + U * value.abs()) / scale + U * small.abs()
    quantised = Expected(small, torch.int8, error8)
    if p["layerType"] == 1:
        return [quantised]
    return [quantised, before if p["layerType"] == 2 else Expected(value, dtype, error)]


def by_row(value: torch.Tensor, error: torch.Tensor, *, shifted: bool) -> list[Expected]:
    """The largest of each row becomes 127; or the range of each row 255 steps, its middle 0."""
    off = error.amax(-1)
    if shifted:
        high, low = value.amax(-1), value.amin(-1)
        scale, middle = (high - low) / 255, (high + low) / 2
        rows = torch.where(scale > 0, scale, 1.0)
        # the scale is off by what both ends are, and so is the middle
        relative = 2 * off / (255 * rows) + 4 * U
        offset, small = -middle / rows, value / rows[..., None]
        moved = off / rows + offset.abs() * relative + 2 * U * (high.abs() + low.abs()) / rows
        lost = error / rows[..., None] + small.abs() * relative[..., None] + moved[..., None]
        steps = small + offset[..., None]
        return [
            Expected(steps, torch.int8, lost + 2 * U * steps.abs()),
            Expected(scale, torch.float32, 2 * off / 255 + 2 * U * scale),
            Expected(offset, torch.float32, moved),
        ]
    largest = value.abs().amax(-1)
    scale = largest / 127
    rows = torch.where(scale > 0, scale, 1.0)[..., None]
    small = value / rows
    # the scale is off by as much as the largest value is
    lost = error / rows + small.abs() * (off / torch.where(largest > 0, largest, 1.0))[..., None]
    return [
        Expected(small, torch.int8, lost + 3 * U * small.abs()),
        Expected(scale, torch.float32, off / 127 + U * scale + TINY),
    ]


def _layer(
    x: torch.Tensor, lost: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of `x`, whose elements are off by `lost` already, and its error.

    The mean loses (n + 1) U of the mean size; what is left of each element is off by that and its own
    loss, d. The variance is then off by 2 d |x - mean| on average, d^2, and its own n + 1 roundings.
    """
    n, dims = gamma.numel(), tuple(range(-gamma.ndim, 0))
    value = F.layer_norm(x, list(gamma.shape), gamma, beta, epsilon)
    far = x - x.mean(dims, keepdim=True)
    d = (n + 1) * U * x.abs().mean(dims, keepdim=True) + lost.amax(dims, keepdim=True) + U * far.abs()
    variance = far.square().mean(dims, keepdim=True) + epsilon
    off = (2 * d * far.abs() + d.square()).mean(dims, keepdim=True) + (n + 2) * U * variance
    plain = far / variance.sqrt()
    # 1 / sqrt is steepest where the variance is smallest; off is far below it but for constant rows
    slope = off / (2 * (variance - off).clamp(min=epsilon / 2))
    error = gamma.abs() * (d / variance.sqrt() + plain.abs() * (slope + 4 * U)) * (1 + slope)
    return value, error + U * (value.abs() + beta.abs())


@oracle("LayerNormOperation")
def layer_norm(p: Param, t: Inputs) -> Sequence[Expected]:
    """All kinds; int8 multiplies by its scale."""
    kind, dtype = p["layerType"], t["x"].dtype
    part = p[_PARTS[kind]]
    x = t["x"].double()
    lost = torch.zeros_like(x)
    if kind != 1:
        zoom = 1.0 if part["quantType"] else part["zoomScaleValue"]
        x = x + zoom * t["residual"].double()
        lost = 2 * U * (t["x"].double().abs() + abs(zoom) * t["residual"].double().abs())
    value, error = _layer(x, lost, t["gamma"].double(), t["beta"].double(), part["epsilon"])
    if part["quantType"] == 0:
        return [Expected(value, dtype, error), *([Expected(x, dtype, lost)] if kind == 2 else [])]
    if kind == 1 and part["dynamicQuantType"]:
        return by_row(value, error, shifted=part["dynamicQuantType"] == 2)
    scale = t["scale"].double()
    small = value * scale + t["offset"].double()
    eight = Expected(small, torch.int8, error * scale + U * (value * scale).abs() + U * small.abs())
    return [Expected(value, dtype, error), eight] if kind == 3 else [eight]


@oracle("CohereLayerNormOperation")
def cohere_layer_norm(p: Param, t: Inputs) -> Sequence[Expected]:
    """A layer norm of the last dimension without weight, then the weight of each head."""
    x, weight = t["x"].double(), t["weight"].double()
    one = torch.ones(x.shape[-1], dtype=torch.float64)
    value, error = _layer(x, torch.zeros_like(x), one, torch.zeros_like(one), p["epsilon"])
    return [Expected(value * weight, t["x"].dtype, (error + U * value.abs()) * weight.abs())]


@oracle("GatherPreRmsNormOperation")
def gather_pre_rms_norm(p: Param, t: Inputs) -> Sequence[Expected]:
    """Rows added one by one, then the norm in float32."""
    rows = [t["residual"][int(i)].double() for i in t["indices"]]
    x, residual = t["x"].double(), torch.stack(rows)
    total, weight = x + residual, t["gamma"].double()
    value, error = _rms(total, weight, p["epsilon"])
    rstd = 1 / (total.square().mean(-1, keepdim=True) + p["epsilon"]).sqrt()
    lost = U * (x.abs() + residual.abs())
    error = error + weight.abs() * lost * rstd + value.abs() * (lost * rstd).amax(-1, keepdim=True)
    return [Expected(value, torch.float32, error), Expected(total, t["x"].dtype, lost)]


@oracle("RmsNormBackwardOperation")
def rms_norm_backward(p: Param, t: Inputs) -> Sequence[Expected]:
    """Autograd through x * r * gamma, where r = (mean(x^2) + c)^-1/2 with c such that r is the given one."""
    x, gamma = t["x"].double().requires_grad_(), t["gamma"].double().requires_grad_()
    given, dy = t["rstd"].double(), t["dy"].double()
    mean = x.square().mean(-1, keepdim=True)
    rest = (given**-2 - mean).detach()
    y = x * torch.rsqrt(mean + rest) * gamma
    dx, dgamma = torch.autograd.grad(y, (x, gamma), dy)
    x, gamma, n = x.detach(), gamma.detach(), gamma.numel()
    part = (dy * gamma).abs() * given
    second = (part * given.square() * x.abs()).mean(-1, keepdim=True) * x.abs()
    rows = dy.numel() // n
    sums = (dy * x * given).abs().reshape(-1, n).sum(0)
    return [
        Expected(dx, t["x"].dtype, 3 * U * part + (n + 8) * U * second),
        Expected(dgamma, torch.float32, (rows + 3) * U * sums),
    ]


@oracle("SoftmaxOperation")
def softmax(p: Param, t: Inputs) -> Sequence[Expected]:
    """exp over its sum, axes moved to the end first."""
    x = t["x"].double()
    axes = sorted(axis % x.ndim for axis in p["axes"])
    rest = [dim for dim in range(x.ndim) if dim not in axes]
    moved = x.permute(*rest, *axes)
    flat = moved.reshape(*(x.shape[dim] for dim in rest), -1)
    powers = flat.exp()
    back = sorted(range(x.ndim), key=lambda dim: (*rest, *axes)[dim])
    value = (powers / powers.sum(-1, keepdim=True)).reshape(moved.shape).permute(back)
    # the difference from the largest is rounded before exp, which makes its error relative
    spread, n = float(flat.amax() - flat.amin()), flat.shape[-1]
    return [Expected(value, t["x"].dtype, (n + 8 + 2 * spread) * U * value + TINY)]


def _view(t: Inputs) -> torch.Tensor:
    """The view element by element."""
    x, steps, first = t["x"], t["strides"].tolist(), int(t["offset"])
    flat = x.flatten().tolist()
    places = itertools.product(*map(range, x.shape))
    picked = [flat[first + sum(i * s for i, s in zip(place, steps))] for place in places]
    return torch.tensor(picked, dtype=torch.float64).reshape(x.shape)


@oracle("RmsNormWithStrideOperation")
def rms_norm_with_stride(p: Param, t: Inputs) -> Sequence[Expected]:
    """The plain norm of the view."""
    value, error = _rms(_view(t), t["gamma"].double(), p["normParam"]["epsilon"])
    return [Expected(value, t["x"].dtype, error)]


@oracle("LayerNormWithStrideOperation")
def layer_norm_with_stride(p: Param, t: Inputs) -> Sequence[Expected]:
    """The plain norm of the view."""
    x = _view(t)
    gamma, beta = t["gamma"].double(), t["beta"].double()
    value, error = _layer(x, torch.zeros_like(x), gamma, beta, p["normParam"]["epsilon"])
    return [Expected(value, t["x"].dtype, error)]


def _squares(p: Param, flat: torch.Tensor) -> list[torch.Tensor]:
    """Each row of each head of each sequence."""
    rows, place = [], 0
    for n in p["qSeqLen"]:
        for _ in range(p["headNum"] * n):
            rows.append(flat[place : place + n].double())
            place += n
    return rows


@oracle("FastSoftMaxOperation")
def fast_softmax(p: Param, t: Inputs) -> Sequence[Expected]:
    """Softmax row by row."""
    rows = [row.exp() / row.exp().sum() for row in _squares(p, t["x"])]
    value = torch.cat(rows)
    spread, n = float(t["x"].double().max() - t["x"].double().min()), max(p["qSeqLen"])
    return [Expected(value, t["x"].dtype, (n + 8 + 2 * spread) * U * value + TINY)]


@oracle("FastSoftMaxGradOperation")
def fast_softmax_grad(p: Param, t: Inputs) -> Sequence[Expected]:
    """The product with the Jacobian diag(y) - y y^T of each row."""
    values, errors = [], []
    for y, dy in zip(_squares(p, t["y"]), _squares(p, t["dy"])):
        jacobian = torch.diag(y) - torch.outer(y, y)
        values.append(jacobian @ dy)
        errors.append((len(y) + 3) * U * (y * (dy.abs() + (y * dy).abs().sum())))
    return [Expected(torch.cat(values), t["y"].dtype, torch.cat(errors))]
