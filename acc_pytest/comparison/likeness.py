"""How mine differs where it fails, as far as its values tell: in a factor, in the order of rows or columns.

Either is said where it leaves an eighth of |mine - golden| at most (`metrics.pair_sums.GAP`). Rounding is no
factor: an eighth asks for a cosine of 0.992 between errors and golden, which scatters by 1 / sqrt(n), so that
it is 8 standard errors from 64 elements on. Another computation is no order: its rows would be golden's, with
the ends and the norm of the tensor. Nothing of this changes a verdict.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ..base.imports import torch
from ..base.reason import Reason
from ..metrics.pair_sums import GAP
from ..reporting.row import FITS, LIKENESS, Row
from ..tensors.dtypes import narrower_types

if TYPE_CHECKING:
    from ..tensors.source import Source


FEWEST = 64
"""Elements from which on a factor is no coincidence."""
_LOOKED_AT = 1 << 12
"""Elements that tell a type; and the most rows, and columns, that are looked at for an order."""
_APART = 0.25
"""Relative distance from which on another order is looked for: rows in another order are 1.4 apart."""
_ENDS = 2.0**-5
"""Relative difference of norms, largest and smallest values, of tensors that may be one in another order."""


def with_likeness(row: Row, golden: Source, mine: Source) -> Row:
    """A failing row with what its values tell of the difference: a sentence, and the type that they fit."""
    if row.verdict != "fail" or not (golden.dtype.is_floating_point and mine.dtype.is_floating_point):
        return row
    likeness = _factor(row) or _order(row, golden, mine)
    entries = {LIKENESS: likeness, FITS: _narrower(golden, mine)}
    context = {**row.context, **{name: text for name, text in entries.items() if text}}
    return replace(row, context=context, notes=(*row.notes, *[likeness] * bool(likeness)))


def _narrower(golden: Source, mine: Source) -> str:
    """The narrower type that the first values of a float32 tensor of mine fit, and golden's do not."""
    if not golden.dtype == mine.dtype == torch.float32:
        return ""
    count = min(math.prod(mine.shape), _LOOKED_AT)
    names = narrower_types(mine.read(0, count))
    return next((name for name in names if name not in narrower_types(golden.read(0, count))), "")


def _factor(row: Row) -> str:
    """A sentence on the number that golden times is mine; empty without one."""
    size, error, product = (
        _moment(row, name) for name in ("golden_squared", "difference_squared", "golden_times_difference")
    )
    if int(row.counts.get("elements") or 0) < FEWEST or not (0 < size < math.inf and 0 < error < math.inf):
        return ""
    c, rest = 1 + product / size, max(0.0, error - product * product / size)
    if rest * GAP**2 > error or abs(c) * GAP < 1:
        return ""
    if not rest:
        return Reason("it is golden times {:.4g}", c)
    return Reason("it is golden times {:.4g}, but for {:.1g} of it", c, math.sqrt(rest / size) / abs(c))


def _moment(row: Row, name: str) -> float:
    value = row.statistics.get(f"moments.{name}")
    return value if isinstance(value, float) else 0.0


def _order(row: Row, golden: Source, mine: Source) -> str:
    """A sentence on the other order of rows, or of columns, in which golden is mine; empty without one."""
    shape, apart = tuple(golden.shape), float(row.metrics.get("relative_euclidean_distance") or 0.0)
    norms = (math.sqrt(_moment(row, f"{side}_squared")) for side in ("golden", "mine"))
    ends = norms, (row.golden.max or 0.0, row.mine.max or 0.0), (row.golden.min or 0.0, row.mine.min or 0.0)
    if len(shape) < 2 or apart < _APART or any(abs(a - b) > _ENDS * abs(a) for a, b in ends):
        return ""
    *leading, length, width = shape
    count = min(length, _LOOKED_AT)
    sequences = min(math.prod(leading), max(1, _LOOKED_AT // count))
    if width > _LOOKED_AT or count * width < FEWEST:
        return ""
    sides = (source.read(0, sequences * count * width).float() for source in (golden, mine))
    g, m = (side.reshape(sequences, count, width).nan_to_num(0.0, 0.0, 0.0) for side in sides)
    if count > 2 and _explains(g[:, :-1], m[:, 1:], g[:, 1:]):
        return Reason("each row is golden's row before it")
    if count > 2 and _explains(g[:, 1:], m[:, :-1], g[:, :-1]):
        return Reason("each row is golden's row after it")
    for name, a, b in (("rows", g.flatten(0, 1), m.flatten(0, 1)), ("columns", g[0].T, m[0].T)):
        if (order := _permutation(a, b)) is not None:
            return _in_order(order, name)
    return ""


def _explains(candidate: torch.Tensor, mine: torch.Tensor, golden: torch.Tensor) -> bool:
    return float((mine - candidate).norm()) * GAP < float((mine - golden).norm())


def _permutation(golden: torch.Tensor, mine: torch.Tensor) -> torch.Tensor | None:
    """The other order of golden's vectors in which they are those of mine; `None` without one."""
    normalize = torch.nn.functional.normalize
    near = (normalize(mine) @ normalize(golden).T).argmax(1)
    is_order = len(near.unique()) == len(near)
    return near if is_order and _explains(golden[near], mine, golden) else None


def _in_order(order: torch.Tensor, name: str) -> Reason:
    """The sentence on an order of rows or columns, in the largest blocks that stay together."""
    count = len(order)
    for size in (size for size in range(count // 2, 0, -1) if count % size == 0):
        blocks = order.reshape(-1, size)
        if bool((blocks == blocks[:, :1] + torch.arange(size)).all() and (blocks[:, 0] % size == 0).all()):
            break
    sources = blocks[:, 0] // size
    place = int((sources != torch.arange(len(sources))).nonzero()[0])
    return Reason(
        "its {} are golden's in another order, {} at a time: number {} is golden's {}",
        *(name, size, place, int(sources[place])),
    )
