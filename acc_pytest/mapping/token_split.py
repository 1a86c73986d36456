"""Tokens that are split over ranks (sequence parallelism), by the number of rows of each rank.

Norms and what is added to the residual stream need no other token. So each of P ranks may have the rows of
1/P of them, in rank order; where they are gathered again there may be padding up to a multiple of P. Ranks
share tokens only if all were given the same ids (`TokenLayout.shared`): else each has tokens of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..errors import AccError, NoPayload
from ..lazy_torch import torch
from ..tensors.ref import TensorRef
from .engine_views import TokenLayout, TokenSplit
from .shapes import Shape
from .token_order import has_heads_first

_SAMPLE = 1 << 16
"""Elements of a tensor that tell whether ranks hold the same."""


def split_of(shapes: Sequence[Shape], layout: TokenLayout, single: bool = False) -> TokenSplit | None:
    """The split of the tokens of a step over the tensors of all ranks; `None` where each has all rows.
    `single`: where each has one row it is a token or padding, and not anything."""
    ranks = len(shapes)
    for axis, rows in _places(shapes[0], layout):
        if len({(len(shape), *shape[:axis], *shape[axis + 1 :]) for shape in shapes}) > 1:
            continue
        sizes = [shape[axis] for shape in shapes]
        apart = min(sizes) < max(sizes) or 1 - single < max(sizes) < max(rows, 2)
        if apart and len(shapes[0]) > 1 and rows <= sum(sizes) < rows + ranks:
            return TokenSplit(axis, rows, joined=True)
        padded = -(-rows // ranks) * ranks
        if len(set(sizes)) > 1:
            continue
        if sizes[0] == padded > rows:
            return TokenSplit(axis, rows, joined=False)
        # Heads one below the other.
        if len(shapes[0]) == 2 and sizes[0] % rows and not sizes[0] % padded:
            return TokenSplit(axis, rows * (sizes[0] // padded), joined=False)
    return None


def joined(shards: list[torch.Tensor], split: TokenSplit) -> list[torch.Tensor]:
    """The tensors of ranks without padding, one of their pieces. Raises `NoPayload` for padding alone."""
    if not split.rows:
        raise NoPayload("this rank has rows of padding only, which are not compared")
    tensors = [torch.cat(shards, split.axis)] if split.joined else shards
    return [shard.narrow(split.axis, 0, split.rows) for shard in tensors]


def ranks_alike(refs: Sequence[TensorRef]) -> bool:
    """Whether all ranks hold the same values, as far as their first elements tell."""
    try:
        tensors = [ref.open() for ref in refs]
    except (AccError, OSError):
        return False
    first, *replicas = (tensor.reshape(-1)[:_SAMPLE] for tensor in tensors)
    return all(torch.equal(first, replica) for replica in replicas)


def _places(shape: Shape, layout: TokenLayout) -> Iterator[tuple[int, int]]:
    """The dimensions that may be those of tokens, and how many there are."""
    if len(layout.shape) == 1 and shape:
        yield 0, layout.shape[0]
    elif len(layout.shape) == 2 and len(shape) > 1 and not has_heads_first(shape, layout):
        tokens = 0 if layout.turned else 1
        if len(shape) > 2 and shape[1 - tokens] == layout.shape[1 - tokens]:
            yield tokens, layout.shape[tokens]
        elif layout.shape[1 - tokens] == 1:
            yield 0, math.prod(layout.shape)


def tokens_of(ids: Shape, embedded: Shape, ranks: int) -> tuple[Shape, bool] | None:
    """The layout of the tokens of an embedding of `ranks` that was handed `ids`, and whether it is `[tokens,
    batch]`; `None` where the shape of its rows says no more than itself."""
    rows = embedded[:-1]
    if len(ids) == 1 and len(rows) == 1 and rows != ids and _is_share(rows[0], ids[0], ranks):
        return ids, False
    if len(ids) != 2 or len(rows) != 2 or rows == ids:
        return None
    batch, length = ids
    if rows[1] == batch and (rows[0] == length or _is_share(rows[0], length, ranks)):
        return (length, batch), True
    if rows[0] == batch and _is_share(rows[1], length, ranks):
        return ids, False
    return None


def _is_share(rows: int, tokens: int, ranks: int) -> bool:
    """Whether a rank has its part of the tokens, or all of them and the padding."""
    return ranks > 1 and rows in (-(-tokens // ranks), -(-tokens // ranks) * ranks, tokens // ranks)
