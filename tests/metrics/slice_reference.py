"""Errors of rows and channels by their definitions, in float64, from whole tensors."""

from __future__ import annotations

import math

import numpy as np
import torch

from acc_pytest.metrics.measurement import SliceErrors


def slice_errors(golden: torch.Tensor, mine: torch.Tensor) -> SliceErrors:
    """As `SliceErrors` says it; none for tensors with fewer than 8 rows or channels, or without a float."""
    if not golden.is_floating_point() and not mine.is_floating_point():
        return SliceErrors()
    if golden.dim() < 2 or min(golden.shape[-1], golden.numel() // max(1, golden.shape[-1])) < 8:
        return SliceErrors()
    g = golden.double().reshape(-1, golden.shape[-1])
    d = mine.double().reshape(g.shape) - g
    kept = g.isfinite() & d.isfinite()
    g, d = (torch.where(kept, each, 0.0) for each in (g, d))
    rows, channels = _errors(g, d, 1), _errors(g, d, 0)
    row, channel = int(rows.argmax()), int(channels.argmax())
    index = np.unravel_index(row, golden.shape[:-1])
    norms = g.norm(dim=0)
    bulk = norms <= 4 * (_ranked(norms, 0.5) or _ranked(norms[norms > 0], 0.5))
    of_rows, of_channels = _bias(g, d, 1), _bias(g, d, 0)
    three = [float((g * d).sum() / (g * g).sum()), _ranked(of_rows, 0.5), _ranked(of_channels, 0.5)]
    agree = all(one > 0 for one in three) or all(one < 0 for one in three)
    at, channels_at = divmod(int(d.abs().argmax()), g.shape[1])
    return SliceErrors(
        worst_row_error=float(rows[row]),
        worst_row=f"[{', '.join(str(int(i)) for i in index)}, :]",
        row_error_p90=_ranked(rows, 0.9),
        typical_row_error=_ranked(rows, 0.5),
        worst_channel_error=float(channels[channel]),
        worst_channel=f"[..., {channel}]",
        channel_error_p90=_ranked(channels, 0.9),
        bulk_error=float(d[:, bulk].norm() / g[:, bulk].norm()),
        bias=min(three, key=abs) if agree else 0.0,
        bias_deviation=max(_deviation(of_rows), _deviation(of_channels)),
        neighbour_error=_neighbours(d, at, channels_at),
        last_row_error=_last(g, d, golden.shape[-2]),
    )


def _errors(g: torch.Tensor, d: torch.Tensor, along: int) -> torch.Tensor:
    norms = g.norm(dim=along)
    floor = _ranked(norms, 0.5) or _ranked(norms[norms > 0], 0.5)
    return d.norm(dim=along) / norms.clamp(min=floor)


def _last(g: torch.Tensor, d: torch.Tensor, count: int) -> float | None:
    last_g, last_d = (x.reshape(-1, count, x.shape[-1])[:, -1].norm() for x in (g, d))
    return float(last_d / last_g) if count > 1 and last_g else None


def _bias(g: torch.Tensor, d: torch.Tensor, along: int) -> torch.Tensor:
    size = (g * g).sum(along)
    return (g * d).sum(along)[size > 0] / size[size > 0]


def _deviation(each: torch.Tensor) -> float:
    low, high = (_ranked(each, part) for part in (0.25, 0.75))
    return (high - low) / 1.349 * math.sqrt(math.pi / 2) / math.sqrt(min(len(each), 4096))


def _ranked(values: torch.Tensor, part: float) -> float:
    """The quantile by nearest rank, of many values that of at least 4096."""
    values = values[:: len(values) // 4096 | 1]
    return float(values.sort().values[math.ceil(part * len(values)) - 1])


def _neighbours(d: torch.Tensor, row: int, channel: int) -> float:
    in_row, in_channel = _rest(d[row], channel), _rest(d[:, channel], row)
    overall = _rest(d.flatten(), row * d.shape[1] + channel)
    return max(in_row, in_channel, in_row * in_channel / overall if overall else 0.0)


def _rest(errors: torch.Tensor, place: int) -> float:
    others = torch.cat((errors[:place], errors[place + 1 :]))
    return float(others.square().mean().sqrt())
