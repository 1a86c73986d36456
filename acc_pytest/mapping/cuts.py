"""Cut the piece that the other side holds out of a packed tensor, a position table or a cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from ..errors import Incomparable
from ..lazy_torch import torch
from ..tensors.source import Source, TensorSource
from ..tensors.views import Columns, Reshaped
from .operand_shards import OperandShards
from .shapes import rows_and_width
from .views import CacheTail, HeadPart, LastToken, Part, TableRows

_MOST_PADDING = 1024
"""Places that a vocabulary is padded by at most."""


def cut_out(side: OperandShards, other: OperandShards) -> tuple[Source, str]:
    """The piece of a packed, table or cache tensor that the other side holds, and the rule in words."""
    if isinstance(side.view, Part):
        return _part(side, side.view, other)
    if isinstance(side.view, TableRows):
        return _table_rows(side, side.view, other)
    if isinstance(side.view, HeadPart):
        return _head_part(side, side.view)
    return _cache_tail(side, side.view.part if isinstance(side.view, CacheTail) else None, other)


def without_padding(side: OperandShards, other: OperandShards) -> OperandShards:
    """Logits over the vocabulary of the other side; other sides as they are.

    Engines pad a vocabulary to a multiple of 64 and more, and may leave it in pieces, one on each rank.
    """
    view, wanted, own = side.view, rows_and_width(other.shape)[1], rows_and_width(side.shape)[1]
    padded = isinstance(view, LastToken) and view.padded and other.count == 1 and wanted
    whole = own * side.count if own < wanted else own
    if not padded or not wanted < whole < wanted + _MOST_PADDING:
        return side
    shards = [_side_by_side(side)] if own < wanted else side.shards
    return replace(side, shards=[shard[..., :wanted] for shard in shards])


def _side_by_side(side: OperandShards) -> torch.Tensor:
    first = side.shards[0]
    if first.device.type == "meta":  # torch would load its decompositions for a cat of shapes
        return first.new_empty((*side.shape[:-1], side.shape[-1] * side.count))
    return torch.cat(side.shards, -1)


def _head_part(side: OperandShards, view: HeadPart) -> tuple[Source, str]:
    rows, packed = rows_and_width(side.shape)
    size, start = sum(side.part_sizes), sum(side.part_sizes[: view.index])
    width = side.part_sizes[view.index]
    if not size or packed % size or (view.several and packed == size):
        raise Incomparable(f"{side.describe()} is not made of heads of {list(side.part_sizes)} elements")
    heads = packed // size
    note = f"elements {start}:{start + width} of each head of {size}"
    pieces = [shard.reshape(rows, heads, size)[:, :, start : start + width] for shard in side.shards]
    if len(pieces) == 1:
        return Reshaped(TensorSource(pieces[0]), (rows, heads * width)), note
    return Columns([piece.reshape(rows, heads * width) for piece in pieces]), note


def _part(side: OperandShards, view: Part, other: OperandShards) -> tuple[Source, str]:
    rows, packed = rows_and_width(side.shape)
    for sizes in _whole_sizes(side.part_sizes, other.count):
        if sum(sizes) != rows * packed * side.count or any(size % (rows * side.count) for size in sizes):
            continue
        widths = [size // (rows * side.count) for size in sizes]
        start = sum(widths[: view.index])
        stop = start + widths[view.index]
        columns = [shard.reshape(rows, packed)[:, start:stop] for shard in side.shards]
        of = f" of each of {side.count} shards" if side.count > 1 else ""
        note = f"part {view.index + 1} of {len(sizes)}: columns {start}:{stop} of {packed}{of}"
        return Columns(columns), note
    parts = [size // rows if rows else 0 for size in side.part_sizes]
    raise Incomparable(
        f"a packed tensor of shape {side.describe()} is not made of parts that are {parts} wide"
    )


def _whole_sizes(sizes: tuple[int, ...], ranks: int) -> Iterator[list[int]]:
    """How many elements the pieces have in all when every rank of the other side holds `sizes` of them.

    Query heads are split over ranks, and so are key and value heads, unless they are fewer than ranks: then
    the last two pieces are held by several.
    """
    yield [size * ranks for size in sizes]
    for copies in range(2, ranks + 1):
        if len(sizes) == 3 and ranks % copies == 0:
            yield [sizes[0] * ranks, *(size * ranks // copies for size in sizes[1:])]
    if ranks > 1:
        yield list(sizes)


def _table_rows(side: OperandShards, view: TableRows, other: OperandShards) -> tuple[Source, str]:
    table = _table(side, view.component)
    positions, width = table.shape
    wanted = math.prod(other.shape) // width if width else 0
    doubled = view.component is not None and bool(other.shape) and other.shape[-1] == 2 * width
    if doubled:
        # The other side repeats every angle for both numbers of a rotated pair: [a, a, b, b].
        table, wanted = table.repeat_interleave(2, dim=1), wanted // 2
    start = positions - wanted if view.start is None else view.start
    if wanted == positions:
        start = 0
    if not 0 <= start <= positions - wanted:
        raise Incomparable(
            f"positions {start}:{start + wanted} are not in a table of {positions} rows "
            f"({side.describe()} against {other.describe()})"
        )
    note = f"rows {start}:{start + wanted} of a table of {positions} positions"
    note += ", every angle twice" if doubled else ""
    note += "; tables of other ranks are not compared" if side.count > 1 else ""
    rows = table[start : start + wanted]
    if not doubled and _holds_halves(rows) and _holds_pairs(other.shards[0], width):
        # Rotation by halves stores the angles as [a, b, a, b], that of neighbours as [a, a, b, b].
        rows = rows[:, : width // 2].repeat_interleave(2, dim=1)
        note += ", halves of every row laid out as neighbouring pairs"
    return TensorSource(rows), note


def _holds_halves(rows: torch.Tensor) -> bool:
    """Whether every angle comes again half a row later. Not known while a plan is made of shapes."""
    width = rows.shape[-1]
    return (
        rows.device.type != "meta"
        and width % 2 == 0
        and torch.equal(rows[:, : width // 2], rows[:, width // 2 :])
    )


def _holds_pairs(table: torch.Tensor, width: int) -> bool:
    """Whether every angle comes again beside itself, and not half a row later."""
    rows = table.reshape(-1, width)
    return torch.equal(rows[:, 0::2], rows[:, 1::2]) and not _holds_halves(rows)


def _table(side: OperandShards, component: int | None) -> torch.Tensor:
    """A position table as `[positions, width]`, of one component where it holds cos and sin together."""
    table, shape = side.shards[0], side.shape
    if component is not None:
        if len(shape) < 3 or component >= shape[-1]:
            raise Incomparable(f"no table of cos and sin side by side: {side.describe()}")
        table, shape = table[..., component], shape[:-1]
        table = table.squeeze(1) if len(shape) == 3 and shape[1] == 1 else table
        shape = tuple(table.shape)
    positions, width = (shape[-2], shape[-1]) if len(shape) >= 2 else (1, shape[-1] if shape else 1)
    if math.prod(shape[:-2]) != 1:
        raise Incomparable(
            f"a position table of shape {side.describe()} has one row per position only for batch 1"
        )
    return table.reshape(positions, width)


def _cache_tail(side: OperandShards, part: int | None, other: OperandShards) -> tuple[Source, str]:
    if len(side.shape) != 4 or side.count != 1:
        raise Incomparable(f"not a key or value cache of four dimensions: {side.describe()}")
    whole, of = side.shards[0], ""
    if part is not None:
        width = other.shape[-1] if other.shape else 0
        if not 0 < width < whole.shape[-1]:
            raise Incomparable(f"{other.describe()} is no part of heads of {whole.shape[-1]} elements")
        whole = whole[..., :width] if part == 0 else whole[..., -width:]
        of = f", the {'last' if part else 'first'} {width} elements of each head"
    # Ranks with heads of their own are likelier than ranks that hold the same ones.
    for copies, cache in itertools.product(range(1, other.count + 1), _cache_layouts(whole, other)):
        batch, heads, cached, size = cache.shape
        per_token = copies * batch * heads * size
        tokens, rest = divmod(math.prod(other.shape) * other.count, per_token) if per_token else (0, 0)
        rule = other.rule((batch * tokens, heads * size))
        apart = batch * tokens in _row_counts(other.shape)
        if not rest and 0 < tokens <= cached and apart and rule and rule.how != "rows":
            newest = TensorSource(cache[:, :, cached - tokens :].permute(0, 2, 1, 3))
            note = f"newest {tokens} of {cached} tokens of the cache{of}"
            return Reshaped(newest, (batch * tokens, heads * size)), note
    raise Incomparable(f"{other.describe()} are not the newest tokens of a cache of shape {list(side.shape)}")


def _cache_layouts(cache: torch.Tensor, other: OperandShards) -> list[torch.Tensor]:
    """A cache as `[batch, heads, tokens, size]`, under every layout that the other side allows.

    Stored as such (Hugging Face), as `[tokens, batch, heads, size]` (GLM, Megatron) or as
    `[batch, tokens, heads, size]`. The other side's own heads, where it keeps them apart, and a batch
    of 1 tell which.
    """
    layouts = [cache, cache.permute(1, 2, 0, 3), cache.permute(0, 2, 1, 3)]
    shape = _four_dimensions(other.shape)
    for apart in (shape, tuple(size for size in shape if size != 1)):
        if len(apart) >= 2 and apart[-1] == cache.shape[-1]:
            # Ranks that are more than heads hold some of them twice.
            heads = {apart[-2] * n for n in range(1, other.count + 1) if other.count % n == 0}
            fitting = [layout for layout in layouts if layout.shape[1] in heads]
            if fitting:
                layouts = fitting
                break
    return sorted(layouts, key=lambda layout: layout.shape[0] != 1)


def _four_dimensions(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[batch, tokens, heads, 1, size]`, a piece of what packed query, key and value, without the 1."""
    sizes = list(shape)
    while len(sizes) > 4 and 1 in sizes[1:-1]:
        del sizes[len(sizes) - 2 - sizes[-2::-1].index(1)]
    return tuple(sizes)


def _row_counts(shape: tuple[int, ...]) -> set[int]:
    """What the rows of a tensor may number: `[7, 2, 8]` has 7 rows, or 14 of 8 elements."""
    return {math.prod(shape[:dims]) for dims in range(1, len(shape))} or {1}
