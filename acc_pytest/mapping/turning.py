"""A query or key turned by position tables, in the way that the other side turned it.

Tables hold the angles of a head, or of the first part of it: as halves `[a, b, a, b]` or as neighbours
`[a, a, b, b]`. Models turn by halves or by neighbours whatever their tables look like, and some turn nothing
in some layers. Which of these it is tells the nearest to the other side; that only turning lies between the
two tells the length of heads, which turning keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from ..errors import Incomparable, NoPayload
from .engine_views import Turned
from .operand_shards import OperandShards
from .pair import Whole
from .shapes import rows_and_width

_ROWS = 512
"""Rows by which the way of turning is told."""
_KEPT = 0.05
"""How far lengths of heads may be from each other; turning keeps them."""


def turned_alike(side: OperandShards, other: OperandShards) -> tuple[OperandShards, str]:
    """A side that is `Turned` with that done, and how; other sides as they are.

    Raises `NoPayload` where more than turning lies between the two, `Incomparable` for tables that do not
    fit.
    """
    if not isinstance(side.view, Turned):
        return side, ""
    if side.shards[0].device.type == "meta":
        return replace(side, view=Whole()), ""
    cos, sin = side.angles
    rows, angles = cos.shape
    width = side.shards[0].numel() // rows if rows else 0
    if cos.shape != sin.shape or side.shape[0] != rows or not angles or not width or width % angles:
        raise Incomparable(
            f"position tables of shape {list(cos.shape)} do not turn a tensor of shape {side.describe()}"
        )
    plain = [shard.reshape(rows, width) for shard in side.shards]
    first = plain[0][:_ROWS].float()
    wanted = _beside(first, other)
    ways = list(_ways(width, angles))
    errors = [
        _distance(wanted, _turned(first, cos[:_ROWS], sin[:_ROWS], *way)[:, : wanted.shape[1]])
        for way in ways
    ]
    best = min(range(len(ways)), key=errors.__getitem__)
    untouched = _distance(wanted, first[:, : wanted.shape[1]])
    if untouched < errors[best] / 4:
        return replace(side, shards=plain, view=Whole()), "not turned in this layer"
    size, by_halves = ways[best]
    if not _same_lengths(first[:, : wanted.shape[1]], wanted, size):
        raise NoPayload("what attention is handed is not only turned by the position tables")
    shards = [_turned(shard.float(), cos, sin, *ways[best]).to(shard.dtype) for shard in plain]
    note = f"turned by position tables, heads of {size} by {'halves' if by_halves else 'neighbours'}"
    return replace(side, shards=shards, view=Whole()), note


def _ways(width: int, angles: int) -> Iterator[tuple[int, bool]]:
    """Sizes of heads whose first part the tables may turn, and by halves or by neighbours."""
    for size in (angles, 2 * angles, 4 * angles):
        if width % size == 0 and angles % 2 == 0:
            yield from ((size, True), (size, False))


def _beside(first: torch.Tensor, other: OperandShards) -> torch.Tensor:
    """The first rows of the first rank of the other side, as far as it is wide."""
    shard = other.shards[0]
    rows = first.shape[0] if first.shape[0] < _ROWS else None
    total, width = rows_and_width(tuple(shard.shape))
    if rows is not None and total != rows and (total * width) % rows == 0:
        total, width = rows, total * width // rows
    return shard.reshape(total, width)[:_ROWS, : first.shape[1]].float()


def _turned(
    heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, size: int, by_halves: bool
) -> torch.Tensor:
    rows, width = heads.shape
    apart = heads.reshape(rows, width // size, size)
    angles = cos.shape[-1]
    part, rest = apart[..., :angles], apart[..., angles:]
    half = angles // 2
    if by_halves:
        other = torch.cat((-part[..., half:], part[..., :half]), -1)
        c, s = cos, sin
    else:
        other = torch.stack((-part[..., 1::2], part[..., 0::2]), -1).flatten(-2)
        c, s = (_by_neighbours(table) for table in (cos, sin))
    turned = part * c[:, None].float() + other * s[:, None].float()
    return torch.cat((turned, rest), -1).reshape(rows, width)


def _by_neighbours(table: torch.Tensor) -> torch.Tensor:
    half = table.shape[-1] // 2
    if torch.equal(table[:, :half], table[:, half:]):
        return table[:, :half].repeat_interleave(2, -1)
    return table


def _same_lengths(heads: torch.Tensor, other: torch.Tensor, size: int) -> bool:
    if heads.shape != other.shape or heads.shape[1] % size:
        return False
    lengths = [each.reshape(len(each), -1, size).norm(dim=-1) for each in (heads, other)]
    return _distance(*lengths) <= _KEPT


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    norm, error = float(one.norm()), float((one - other).norm())
    return error / norm if norm else error
