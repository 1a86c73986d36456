"""Sums, means and extremes along axes, and running sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .registry import REQUIRED, GeCall, Unrounded, ge_operator

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
    terms = 1
    for axis in axes:
        terms *= x.shape[axis]
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
