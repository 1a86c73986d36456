"""The sequences of a step: which rows are theirs, their token ids, and where in the sequence they begin.

Told by the mask of a padded batch, and by lengths and positions where sequences follow each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import AccError
from ..lazy_torch import torch
from ..tensors.ref import TensorRef
from .engine_views import TokenLayout
from .fed import BLOCKED

_MOST = 1 << 22
"""Token ids that are looked at; no step has more."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """The rows of one sequence, its ids (empty where they are not known), and its first position."""

    rows: Sequence[int]
    ids: Sequence[int]
    start: int | None = None


def sequences_of(side: TokenLayout, opposite: TokenLayout) -> list[TokenSequence]:
    """The sequences of a step by its ids, mask, positions and lengths, else by the `opposite` layout."""
    ids = _numbers(side.ids)
    count = math.prod(side.shape)
    if not 0 < count <= _MOST or (ids is not None and len(ids) != count):
        return []
    tokens = ids or []
    if len(side.shape) > 1:
        return list(_padded(side, tokens))
    starts = _numbers(side.positions) or []
    starts = starts if len(starts) == count else []
    borders = _borders(side, count, starts, opposite)
    return [
        TokenSequence(range(low, high), tokens[low:high], starts[low] if starts else None)
        for low, high in itertools.pairwise(borders)
    ]


def _padded(side: TokenLayout, ids: Sequence[int]) -> Iterator[TokenSequence]:
    count = math.prod(side.shape)
    length = side.shape[0] if side.turned else side.shape[-1]
    batch = count // length
    masked = _masked(side, batch, length)
    positions = _numbers(side.positions) or []
    positions = positions * batch if len(positions) == length else positions
    for number in range(batch):
        first, tokens = number * length, ids[number * length : (number + 1) * length]
        rows = range(number, count, batch) if side.turned else range(first, first + length)
        if masked is not None:
            places = [place for place, is_token in enumerate(masked.real[number]) if is_token]
            start = masked.before[number] if masked.tells_start else None
            real_ids = [tokens[place] for place in places] if tokens else []
            yield TokenSequence([rows[place] for place in places], real_ids, start)
        else:
            yield TokenSequence(rows, tokens, positions[first] if len(positions) == count else None)


@dataclass(frozen=True, slots=True)
class _Masked:
    """Tokens of a batch that are no padding, and the number before them in each sequence, if it says so."""

    real: list[list[bool]]
    before: list[int]
    tells_start: bool


def _masked(side: TokenLayout, batch: int, length: int) -> _Masked | None:
    """The mask of a batch by sequence; `None` without one."""
    mask = _opened(side.mask)
    if mask is None or mask.dim() not in (2, 4) or mask.shape[0] != batch or mask.shape[-1] < length:
        return None
    if mask.dim() == 4 and mask.shape[-2] < length:
        return None
    visible = mask > BLOCKED / 2 if mask.is_floating_point() and mask.dim() == 4 else mask != 0
    if mask.dim() == 2:
        real, before = visible[:, -length:], visible[:, :-length].sum(-1)
    else:
        real = visible[:, 0, -length:, -length:].diagonal(dim1=-2, dim2=-1)
        before = visible[:, 0, -1].sum(-1) - real.sum(-1)
    if not bool(real.any(-1).all()):
        return None
    return _Masked(real.tolist(), before.clamp(min=0).tolist(), mask.shape[-1] > 1)


def _borders(side: TokenLayout, count: int, positions: Sequence[int], opposite: TokenLayout) -> list[int]:
    """Rows where sequences that follow each other begin, and the end of the last one."""
    if (borders := borders_by_lengths(side)) is not None:
        return borders
    if positions:
        breaks = [row for row in range(1, count) if positions[row] != positions[row - 1] + 1]
        return [0, *breaks, count]
    if len(opposite.shape) > 1 and count % opposite.shape[-1] == 0:
        return list(range(0, count + 1, opposite.shape[-1]))
    return [0, count]


def borders_by_lengths(side: TokenLayout) -> list[int] | None:
    """The borders of sequences that follow each other by their lengths, or by where they begin; `None` where
    these are not of the tokens of this step."""
    lengths, count = _numbers(side.lengths) or [], math.prod(side.shape)
    if not lengths or len(side.shape) > 1:
        return None
    if len(lengths) == count:
        return list(range(count + 1))
    if sum(lengths) == count and min(lengths) > 0:
        return [0, *itertools.accumulate(lengths)]
    rising = len(lengths) > 1 and sorted(set(lengths)) == lengths
    return lengths if rising and lengths[0] == 0 and lengths[-1] == count else None


def _numbers(ref: TensorRef | None) -> list[int] | None:
    tensor = _opened(ref)
    if tensor is None or tensor.is_floating_point() or tensor.is_complex():
        return None
    return tensor.reshape(-1).tolist()


def _opened(ref: TensorRef | None) -> torch.Tensor | None:
    try:
        tensor = ref.open() if ref is not None else None
    except (AccError, OSError):
        return None
    return tensor if tensor is not None and 0 < tensor.numel() <= _MOST * 64 else None
