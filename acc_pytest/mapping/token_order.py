"""Which row of one dump is the token of which row of the other: by token ids, masks, positions and lengths.

A batch of Hugging Face is `[batch, tokens]` with padding on either side; an engine puts sequences one after
the other, in an order of its own, and perhaps only what it had not cached. TokenLayout meet by their ids.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..errors import AccError
from ..tensors.ref import TensorRef
from .engine_views import TokenLayout, TokenPick
from .fed import BLOCKED

_MOST = 1 << 22
"""Token ids that are looked at; no step has more."""


@dataclass(frozen=True, slots=True)
class TokenOrder:
    """Numbers of rows of both sides that belong together, the last of each sequence, and of the sequences."""

    rows: dict[str, torch.Tensor]
    last: dict[str, torch.Tensor]
    sequences: dict[str, torch.Tensor]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Sequence:
    """The rows of one sequence, its ids (empty where they are not known), and its first position."""

    rows: Sequence[int]
    ids: Sequence[int]
    start: int | None = None


def pick_tokens(shard: torch.Tensor, tokens: TokenPick) -> torch.Tensor:
    """The rows of a tensor that count, as `[rows, ...]`; what has no row for each token stays as it is."""
    order = token_order(tokens.golden, tokens.mine)
    if order is None:
        return shard
    by_token = rows_by_token(shard, tokens.layout, tokens.heads_first)
    if by_token is not None:
        return _select(by_token, (order.last if tokens.last else order.rows)[tokens.own])
    shape = tuple(shard.shape)
    if (
        tokens.last
        and len(shape) > 1
        and shape[0] == order.counts[tokens.own]
        and (len(shape) == 2 or shape[1] == 1)
    ):
        return _select(shard, order.sequences[tokens.own])
    return shard


def rows_by_token(
    tensor: torch.Tensor, layout: TokenLayout, heads_first: bool = False
) -> torch.Tensor | None:
    """A tensor with one row for each token, `None` where it has none."""
    shape = tuple(tensor.shape)
    if heads_first and has_heads_first(shape, layout):
        return tensor.transpose(1, 2).flatten(0, 1)
    count = 1
    for size in layout.shape:
        count *= size
    if shape[: len(layout.shape)] == layout.shape and len(layout.shape) > 1:
        return tensor.flatten(0, len(layout.shape) - 1)
    if has_heads_first(shape, layout):
        return tensor.transpose(1, 2).flatten(0, 1)
    if not shape or not count:
        return None
    if shape[0] == count:
        return tensor
    if len(shape) > 2 and shape[:2] == (1, count):
        return tensor[0]
    # Heads one below the other, as norms of heads are called by engines.
    return tensor.reshape(count, -1) if len(shape) == 2 and shape[0] % count == 0 else None


def has_heads_first(shape: tuple[int, ...], layout: TokenLayout) -> bool:
    """Whether a tensor may be `[batch, heads, tokens, size]`."""
    return len(shape) == 4 and (shape[0], shape[2]) == layout.shape


def _select(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a tensor: itself or a part of it where that is what they are, else a copy."""
    count = len(rows)
    if tensor.device.type == "meta":
        return tensor.new_empty((count, *tensor.shape[1:]))
    first = int(rows[0]) if count else 0
    if torch.equal(rows, torch.arange(first, first + count)):
        return tensor[first : first + count]
    return tensor.index_select(0, rows)


@functools.lru_cache(maxsize=16)
def token_order(golden: TokenLayout, mine: TokenLayout) -> TokenOrder | None:
    """`None` where the dumps do not tell, or do not hold the same tokens."""
    met = _met(golden, mine)
    if met is None:
        return None
    pairs, counts = met
    rows = {side: [row for pair in pairs for row in pair[number][1]] for number, side in enumerate(_SIDES)}
    last = {side: [pair[number][1][-1] for pair in pairs] for number, side in enumerate(_SIDES)}
    numbers = {side: [pair[number][0] for pair in pairs] for number, side in enumerate(_SIDES)}
    return TokenOrder(_tensors(rows), _tensors(last), _tensors(numbers), counts)


def _tensors(rows: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    return {side: torch.tensor(numbers) for side, numbers in rows.items()}


_SIDES = ("golden", "mine")
_Met = tuple[int, Sequence[int]]
"""The number of a sequence and its rows that both sides have."""


def _met(golden: TokenLayout, mine: TokenLayout) -> tuple[list[tuple[_Met, _Met]], dict[str, int]] | None:
    goldens, mines = _sequences(golden, mine), _sequences(mine, golden)
    if not goldens or not mines:
        return None
    counts = {"golden": len(goldens), "mine": len(mines)}
    known = _as_before(golden, mine, counts)
    pairs: list[tuple[_Met, _Met]] = []
    free = dict(enumerate(goldens))
    for number, sequence in enumerate(mines):
        wanted = [known[number]] if known is not None else list(free)
        for other in wanted:
            rows = _common(free[other], sequence) if other in free else None
            if rows is not None:
                del free[other]
                pairs.append(((other, rows[0]), (number, rows[1])))
                break
        else:
            # Batches of captured graphs end in rows that are no tokens.
            return None if free else (pairs, counts)
    return None if free else (pairs, counts)


def _as_before(golden: TokenLayout, mine: TokenLayout, counts: dict[str, int]) -> dict[int, int] | None:
    """Which sequence of golden is which of mine by the prefill, where it had as many."""
    if golden.before is None or mine.before is None:
        return None
    order = token_order(golden.before, mine.before)
    if order is None or order.counts != counts:
        return None
    return dict(zip(order.sequences["mine"].tolist(), order.sequences["golden"].tolist()))


def _common(golden: _Sequence, mine: _Sequence) -> tuple[Sequence[int], Sequence[int]] | None:
    """The rows of the tokens that two sequences have in common, where one is a piece of the other."""
    if len(golden.rows) >= len(mine.rows):
        start = _place(golden, mine)
        return None if start is None else (golden.rows[start : start + len(mine.rows)], mine.rows)
    start = _place(mine, golden)
    return None if start is None else (golden.rows, mine.rows[start : start + len(golden.rows)])


def _place(longer: _Sequence, shorter: _Sequence) -> int | None:
    """Where the shorter one begins: at its position, at the end (cached before, padded), or at the start."""
    rest = len(longer.rows) - len(shorter.rows)
    if not longer.ids or not shorter.ids:
        return 0 if not rest else None
    wanted = list(shorter.ids)
    places = [shorter.start - (longer.start or 0)] if shorter.start is not None else []
    for start in dict.fromkeys([*places, rest, 0]):
        if 0 <= start <= rest and list(longer.ids[start : start + len(wanted)]) == wanted:
            return start
    return None


def _sequences(side: TokenLayout, other: TokenLayout) -> list[_Sequence]:
    ids = _numbers(side.ids)
    count = 1
    for size in side.shape:
        count *= size
    if not 0 < count <= _MOST or (ids is not None and len(ids) != count):
        return []
    known = ids or []
    if len(side.shape) > 1:
        return list(_padded(side, known))
    starts = _numbers(side.positions) or []
    starts = starts if len(starts) == count else []
    borders = _borders(side, count, starts, other)
    return [
        _Sequence(range(low, high), known[low:high], starts[low] if starts else None)
        for low, high in itertools.pairwise(borders)
    ]


def _padded(side: TokenLayout, ids: Sequence[int]) -> Iterator[_Sequence]:
    *_, length = side.shape
    batch = 1
    for size in side.shape[:-1]:
        batch *= size
    real = _real(side, batch, length)
    for number in range(batch):
        rows = range(number * length, (number + 1) * length)
        if real is not None:
            kept = [row for row, there in zip(rows, real[number]) if there]
            yield _Sequence(kept, [ids[row] for row in kept] if ids else [])
        else:
            yield _Sequence(rows, ids[rows.start : rows.stop])


def _real(side: TokenLayout, batch: int, length: int) -> list[list[bool]] | None:
    """Which tokens of a batch are no padding, by its mask; `None` without one."""
    mask = _opened(side.mask)
    if mask is None or mask.dim() not in (2, 4) or mask.shape[0] != batch or mask.shape[-1] < length:
        return None
    if mask.dim() == 2:
        seen = mask[:, -length:] != 0
    elif mask.shape[-2] < length:
        return None
    else:
        own = mask[:, 0, -length:, -length:].diagonal(dim1=-2, dim2=-1)
        seen = own > BLOCKED / 2 if own.is_floating_point() else own != 0
    return seen.tolist() if bool(seen.any(-1).all()) else None


def _borders(side: TokenLayout, count: int, positions: Sequence[int], other: TokenLayout) -> list[int]:
    """Where sequences that follow each other begin, and the end of the last one."""
    lengths = _numbers(side.lengths) or []
    if lengths and len(lengths) == count:
        return list(range(count + 1))
    if lengths and sum(lengths) == count and min(lengths) > 0:
        borders = [0]
        for length in lengths:
            borders.append(borders[-1] + length)
        return borders
    if positions:
        breaks = [row for row in range(1, count) if positions[row] != positions[row - 1] + 1]
        return [0, *breaks, count]
    if len(other.shape) > 1 and count % other.shape[-1] == 0:
        return list(range(0, count + 1, other.shape[-1]))
    return [0, count]


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
