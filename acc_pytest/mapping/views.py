"""Views: how a dumped tensor is to be looked at, so that it is what the other side has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from ..tensors.ref import TensorRef
from .engine_views import ColumnRange, Largest, RowParallel, TopPlaces, Turned, WithResidual


@dataclass(frozen=True, slots=True)
class Whole:
    """The tensor as it is (leading or trailing rows may still be picked to agree with the other side)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Slice `index` of a tensor that packs several along its last dimension (qkv, gate-up).

    `widths_of` are the tensors of the other side, one per part in packing order, whose last
    dimensions are the widths.
    """

    index: int
    widths_of: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True)
class OwnPart:
    """Slice `index` of a tensor that packs several, cut as its own side cuts it later.

    `widths_of` are the pieces, tensors of the same dump. With one shard per rank, each packs its shares of
    all pieces, so that the shards cannot be put together before they are cut.
    """

    index: int
    widths_of: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a position table (cos, sin): the dimension before the last is position.

    `start` is the first position of this step, `None` for the last rows of the table. `component` is an
    entry of the last dimension where that holds cos and sin side by side (GLM: `[positions, width, 2]`).
    """

    start: int | None
    component: int | None = None


@dataclass(frozen=True, slots=True)
class CacheTail:
    """Newest tokens of a key or value cache `[batch, heads, tokens, size]`, as `[tokens, heads*size]`.

    `part` 0 is the leading, 1 the trailing piece of every head, as wide as the other side's last
    dimension (a rotation that turns half of each head); `None` the whole head.
    """

    part: int | None = None


@dataclass(frozen=True, slots=True)
class HeadPart:
    """Piece `index` of every head of a tensor whose last dimension holds the heads side by side.

    `widths_of` are the tensors of the other side that a head was cut into, in their order, whose last
    dimensions are the widths. With `several` there must be more than one head: pieces that hold all heads
    side by side do not tell where one ends.
    """

    index: int
    widths_of: tuple[TensorRef, ...]
    several: bool = False


@dataclass(frozen=True, slots=True)
class SlotRows:
    """Rows of a paged cache `[blocks, block, ...]` that this step wrote, as `[tokens, ...]`.

    `slots` are the integer tensors of the same dump, one per rank, that hold the places of the tokens,
    counted through all blocks; a negative place is padding and written nowhere.
    """

    slots: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True)
class LastToken:
    """Only the last token of every sequence may be there (`lm_head` of a prefill, a slice before it).

    The side with more rows gives up all but the last row of each sequence. A `padded` vocabulary may be wider
    than the other side's: then the columns behind that are no tokens.
    """

    padded: bool = False


@dataclass(frozen=True, slots=True)
class RankSum:
    """Partial results of a row-parallel operator: the tensor is the sum over ranks."""


@dataclass(frozen=True, slots=True)
class WithBias:
    """A product whose bias a later operator adds: the bias (one per rank) is added before comparing.

    `summed` says that the product is a partial result, to be summed over ranks first.
    """

    bias: tuple[TensorRef, ...]
    summed: bool = False


@dataclass(frozen=True, slots=True)
class Permuted:
    """The dimensions in another order: a transposed weight, where the other side has it as stored.

    `order` are the places of the dimensions, as `torch.permute` takes them.
    """

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """The other run had a batch `times` as large, of the same sequences over and over (ATB against ATB).

    Where the tensor is smaller by just that factor it stands for the whole batch, tiled along its
    first dimension (rows 0 1 2 0 1 2); elsewhere it is taken as it is.
    """

    times: int


View = Union[
    Whole,
    Part,
    OwnPart,
    TableRows,
    CacheTail,
    HeadPart,
    SlotRows,
    LastToken,
    RankSum,
    WithBias,
    ColumnRange,
    RowParallel,
    WithResidual,
    Turned,
    Largest,
    TopPlaces,
    Permuted,
    Repeated,
]

WHOLE = Whole()
