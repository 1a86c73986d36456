"""Cut the piece that the other side holds out of a packed tensor, a position table or a cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..base.imports import torch
from ..base.reason import Reason, joined
from ..errors import Incomparable, ShapesDiffer
from ..tensors.read_source import source_of
from ..tensors.source import Changed, Columns, ExactSum, PlusRow, Rows, Source, Sum, TensorSource
from .operand_shards import OperandShards
from .pair import Operand
from .shapes import Merge, Shape, rows_and_width, same_order
from .shard_values import ShardNote, finite_distance, with_residual
from .views import CacheTail, HeadPart, Heads, LastToken, Part, TableRows, Whole

_MOST_PADDING = 1024
"""Largest padding of a vocabulary."""


def cut_out(side: OperandShards, partner: OperandShards) -> tuple[Source, str]:
    """The piece of a packed, table or cache tensor that the other side holds, and the rule in words."""
    if isinstance(side.view, Part):
        return _part(side, side.view, partner)
    if isinstance(side.view, TableRows):
        return _table_rows(side, side.view, partner)
    if isinstance(side.view, HeadPart):
        return _head_part(side, side.view)
    piece = side.view.part if isinstance(side.view, CacheTail) else None
    if len(side.shape) != 4 or side.count != 1:
        raise Incomparable(Reason("not a key or value cache of four dimensions: {}", side.describe()))
    shard, suffix = side.shards[0], ""
    if piece is not None:
        width = partner.shape[-1] if partner.shape else 0
        if not 0 < width < shard.shape[-1]:
            raise Incomparable(
                Reason("{} is no part of heads of {} elements", partner.describe(), shard.shape[-1])
            )
        shard = shard[..., :width] if piece == 0 else shard[..., -width:]
        suffix = Reason(", the first {} elements of each head", width)
        if piece:
            suffix = Reason(", the last {} elements of each head", width)
    # Ranks with heads of their own are likelier than ranks that hold the same ones.
    for copies, cache in itertools.product(range(1, partner.count + 1), _cache_layouts(shard, partner)):
        batch, heads, cached, size = cache.shape
        per_token = copies * batch * heads * size
        elements = math.prod(partner.shape) * partner.count
        tokens, remainder = divmod(elements, per_token) if per_token else (0, 0)
        rule = partner.rule((batch * tokens, heads * size))
        has_token_rows = batch * tokens in _row_counts(partner.shape)
        if not remainder and 0 < tokens <= cached and has_token_rows and rule and rule.how != "rows":
            newest = TensorSource(cache[:, :, cached - tokens :].permute(0, 2, 1, 3))
            note = Reason("newest {} of {} tokens of the cache{}", tokens, cached, suffix)
            return Changed(newest, shape=(batch * tokens, heads * size)), note
    shape = list(side.shape)
    raise Incomparable(
        Reason("{} are not the newest tokens of a cache of shape {}", partner.describe(), shape)
    )


def in_halves(side: OperandShards, opposite: OperandShards) -> tuple[OperandShards, ShardNote]:
    """A side in `Heads` with neighbours put where halves lie, and a note on that, where it is nearer to the
    other side so; other sides as they are."""
    if not isinstance(side.view, Heads):
        return side, ShardNote()
    size, side, shard = side.view.size, replace(side, view=Whole()), side.shards[0]
    if shard.device.type == "meta" or side.count > 1 or rows_and_width(side.shape)[1] % size:
        return side, ShardNote()
    is_cache = isinstance(opposite.view, CacheTail)
    target = cut_out(opposite, side)[0] if is_cache else TensorSource(opposite.shards[0])
    first = target.read(0, min(_SAMPLE, math.prod(target.shape))).float()
    halves = shard.reshape(-1, size // 2, 2).transpose(1, 2).reshape(shard.shape)
    off = [finite_distance(first, tensor.flatten()[:_SAMPLE].float()) for tensor in (halves, shard)]
    if off[0] >= off[1]:
        return side, ShardNote()
    return replace(side, shards=[halves]), ShardNote(Reason("neighbours in heads of {} as halves", size))


def without_padding(side: OperandShards, partner: OperandShards) -> OperandShards:
    """Logits over the vocabulary of the other side; other tensors unchanged.

    Engines pad a vocabulary to a multiple of 64 and more, and may leave it in pieces, one on each rank.
    """
    view, vocabulary, width = side.view, rows_and_width(partner.shape)[1], rows_and_width(side.shape)[1]
    padded = isinstance(view, LastToken) and view.padded and partner.count == 1 and vocabulary
    full_width = width * side.count if width < vocabulary else width
    if not padded or not vocabulary < full_width < vocabulary + _MOST_PADDING:
        return side
    shards = [_side_by_side(side)] if width < vocabulary else side.shards
    return replace(side, shards=[shard[..., :vocabulary] for shard in shards])


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
        raise Incomparable(
            Reason("{} is not made of heads of {} elements", side.describe(), list(side.part_sizes))
        )
    heads = packed // size
    note = Reason("elements {}:{} of each head of {}", start, start + width, size)
    pieces = [shard.reshape(rows, heads, size)[:, :, start : start + width] for shard in side.shards]
    if len(pieces) == 1:
        return Changed(TensorSource(pieces[0]), shape=(rows, heads * width)), note
    return Columns([piece.reshape(rows, heads * width) for piece in pieces]), note


def _part(side: OperandShards, view: Part, partner: OperandShards) -> tuple[Source, str]:
    rows, packed = rows_and_width(side.shape)
    for sizes in _total_sizes(side.part_sizes, partner.count):
        if sum(sizes) != rows * packed * side.count or any(size % (rows * side.count) for size in sizes):
            continue
        widths = [size // (rows * side.count) for size in sizes]
        start = sum(widths[: view.index])
        stop = start + widths[view.index]
        columns = [shard.reshape(rows, packed)[:, start:stop] for shard in side.shards]
        suffix = Reason(" of each of {} shards", side.count) if side.count > 1 else ""
        note = Reason(
            "part {} of {}: columns {}:{} of {}{}", view.index + 1, len(sizes), start, stop, packed, suffix
        )
        return Columns(columns), note
    sizes = [size // rows if rows else 0 for size in side.part_sizes]
    raise Incomparable(
        Reason("a packed tensor of shape {} is not made of parts that are {} wide", side.describe(), sizes)
    )


def _total_sizes(sizes: tuple[int, ...], ranks: int) -> Iterator[list[int]]:
    """Element counts of the whole pieces, where every rank of the other side holds `sizes` of them.

    Query heads are split over ranks, and so are key and value heads, unless they are fewer than ranks: then
    the last two pieces are held by several.
    """
    yield [size * ranks for size in sizes]
    for copies in range(2, ranks + 1):
        if len(sizes) == 3 and ranks % copies == 0:
            yield [sizes[0] * ranks, *(size * ranks // copies for size in sizes[1:])]
    if ranks > 1:
        yield list(sizes)


def _table_rows(side: OperandShards, view: TableRows, partner: OperandShards) -> tuple[Source, str]:
    table = _table(side, view.component)
    positions, width = table.shape
    row_count = math.prod(partner.shape) // width if width else 0
    doubled = view.component is not None and bool(partner.shape) and partner.shape[-1] == 2 * width
    if doubled:
        # The other side repeats every angle for both numbers of a rotated pair: [a, a, b, b].
        table, row_count = table.repeat_interleave(2, dim=1), row_count // 2
    start = positions - row_count if view.start is None else view.start
    if row_count == positions:
        start = 0
    if not 0 <= start <= positions - row_count:
        raise Incomparable(
            Reason(
                "positions {}:{} are not in a table of {} rows ({} against {})",
                start,
                start + row_count,
                positions,
                side.describe(),
                partner.describe(),
            )
        )
    note = Reason("rows {}:{} of a table of {} positions", start, start + row_count, positions)
    note += ", every angle twice" if doubled else ""
    note += "; tables of other ranks are not compared" if side.count > 1 else ""
    rows = table[start : start + row_count]
    if not doubled and _holds_halves(rows) and _holds_pairs(partner.shards[0], width):
        # Rotation by halves stores the angles as [a, b, a, b], that of neighbours as [a, a, b, b].
        rows = rows[:, : width // 2].repeat_interleave(2, dim=1)
        note += ", halves of every row laid out as neighbouring pairs"
    return TensorSource(rows), note


def _holds_halves(rows: torch.Tensor) -> bool:
    """Whether every angle is repeated half a row later; `False` for tensors without values."""
    width = rows.shape[-1]
    return (
        rows.device.type != "meta"
        and width % 2 == 0
        and torch.equal(rows[:, : width // 2], rows[:, width // 2 :])
    )


def _holds_pairs(table: torch.Tensor, width: int) -> bool:
    """Whether every angle is repeated beside itself, and not half a row later."""
    rows = table.reshape(-1, width)
    return torch.equal(rows[:, 0::2], rows[:, 1::2]) and not _holds_halves(rows)


def _table(side: OperandShards, component: int | None) -> torch.Tensor:
    """A position table as `[positions, width]`, of one component where it holds cos and sin together."""
    table, shape = side.shards[0], side.shape
    if component is not None:
        if len(shape) < 3 or component >= shape[-1]:
            raise Incomparable(Reason("no table of cos and sin side by side: {}", side.describe()))
        table, shape = table[..., component], shape[:-1]
        table = table.squeeze(1) if len(shape) == 3 and shape[1] == 1 else table
        shape = tuple(table.shape)
    positions, width = (shape[-2], shape[-1]) if len(shape) >= 2 else (1, shape[-1] if shape else 1)
    if math.prod(shape[:-2]) != 1:
        raise Incomparable(
            Reason("a position table of shape {} has one row per position only for batch 1", side.describe())
        )
    return table.reshape(positions, width)


def _cache_layouts(cache: torch.Tensor, partner: OperandShards) -> list[torch.Tensor]:
    """A cache as `[batch, heads, tokens, size]`, under every layout that the other side allows.

    Stored as such (Hugging Face), as `[tokens, batch, heads, size]` (GLM, Megatron) or as
    `[batch, tokens, heads, size]`. The other side's own heads, where it keeps them apart, and a batch
    of 1 tell which.
    """
    layouts = [cache, cache.permute(1, 2, 0, 3), cache.permute(0, 2, 1, 3)]
    shape = _four_dimensions(partner.shape)
    for sizes in (shape, tuple(size for size in shape if size != 1)):
        if len(sizes) >= 2 and sizes[-1] == cache.shape[-1]:
            # Ranks that are more than heads hold some of them twice.
            heads = {sizes[-2] * n for n in range(1, partner.count + 1) if partner.count % n == 0}
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
    """Possible numbers of rows of a tensor: `[7, 2, 8]` has 7 rows, or 14 of 8 elements."""
    return {math.prod(shape[:dims]) for dims in range(1, len(shape))} or {1}


# The shards of a side as one tensor, or as one for each rank that holds the whole.


def mismatch(golden: OperandShards, mine: OperandShards) -> ShapesDiffer:
    return ShapesDiffer(
        Reason("data shape doesn't match: golden {}, mine {}", golden.describe(), mine.describe())
    )


def whole_shapes(side: OperandShards, partner: OperandShards) -> list[Shape]:
    """The shapes that the shards of a side could make up, the likeliest first.

    Shards of one shape on both sides are replicas; shards of different shapes are pieces. Of two runs on
    several ranks each, shards that hold other values than their neighbours are pieces, too.
    """
    if side.count == 1 or side.summed:
        return [side.shape]
    rows, width = rows_and_width(side.shape)
    pieces: list[Shape] = [(rows, width * side.count), (rows * side.count, width)]
    if not same_order(side.shape, partner.shape):
        return [*pieces, side.shape]
    return pieces if _are_pieces(side, partner) else [side.shape, *pieces]


def _are_pieces(side: OperandShards, partner: OperandShards) -> bool:
    """Whether the values tell that shards are pieces; `False` for tensors without values."""
    shards = min(side.shards, partner.shards, key=len)
    if len(shards) < 2 or shards[0].device.type == "meta":
        return False
    return not all(torch.equal(shards[0], shard) for shard in shards[1:])


def merged(
    side: OperandShards, target: Shape, golden: OperandShards, mine: OperandShards
) -> tuple[list[Source], str]:
    """The shards of a side as sources of `target`'s order: one, or one per replica."""
    rule = side.rule(target)
    if rule is None:
        raise mismatch(golden, mine)
    sources, note = _joined(side, rule, target)
    if side.residual:
        sources = [with_residual(source, side.residual, place) for place, source in enumerate(sources)]
        return sources, joined("; ", filter(None, (note, "residual added")))
    if not side.bias:
        return sources, note
    stride = rule.replicas if rule.how == "columns" else len(side.bias)
    biases = [torch.cat(side.bias[first::stride], -1) for first in range(rule.replicas)]
    if rule.how == "rows" or biases[0].numel() != rows_and_width(target)[1]:
        raise Incomparable(
            Reason("a bias of shape {} does not fit {}", list(biases[0].shape), side.describe())
        )
    added = [PlusRow(source, bias) for source, bias in zip(sources, biases * len(sources))]
    return [*added], joined("; ", filter(None, (note, "bias added")))


def _joined(side: OperandShards, rule: Merge, target: Shape) -> tuple[list[Source], str]:
    shards, note = side.shards, rule.describe(side.count)
    if rule.how == "single":
        return [source_of(shards[0])], note
    if rule.how == "replicated":
        return [TensorSource(shard) for shard in shards], note
    if rule.how == "sum":
        add = ExactSum if side.settled else Sum
        return [add([TensorSource(shard) for shard in shards])], note
    rows, width = rows_and_width(target)
    copies = [shards[first :: rule.replicas] for first in range(rule.replicas)]
    if rule.how == "rows":
        return [Rows([TensorSource(shard) for shard in replica], width) for replica in copies], note
    return [Columns([shard.reshape(rule.rows or rows, -1) for shard in replica]) for replica in copies], note


# A tensor that its own side multiplies by a number before it goes on, where the other side's is a multiple
# already.
#
# Some models scale their embeddings, some engines scale the outputs of experts when they add them up, and
# Hugging Face does either inside the module. The number is that of the side's own next tensor, so a wrong one
# stays wrong.


_SAMPLE = 1 << 20
"""Elements that are read, from the start."""
_RESIDUE = 0.02
"""Largest share of the next tensor beside the multiple: it is rounded, perhaps to bfloat16."""


def multiplied(side: OperandShards, operand: Operand, partner: OperandShards) -> tuple[OperandShards, str]:
    """The side times the number that it is multiplied by next, and a note; unchanged where the multiple is no
    nearer to the other side, or where the next tensor is no multiple."""
    if not operand.onward or operand.printed:
        return side, ""
    factor = _factor([_total([ref.open() for ref in refs]) for refs in operand.onward])
    if abs(factor - 1) <= _RESIDUE:
        return side, ""
    total, partner_total = _total(side.shards), _total(partner.shards)
    if total is None or partner_total is None or total.numel() != partner_total.numel():
        return side, ""
    if float((factor * total - partner_total).norm()) >= float((total - partner_total).norm()):
        return side, ""
    shards = [(shard.float() * factor).to(shard.dtype) for shard in side.shards]
    return replace(side, shards=shards), Reason("times {:.6g}, as its own side multiplies it next", factor)


def _factor(totals: Sequence[torch.Tensor | None]) -> float:
    """The factor from a tensor to the next one, to which another tensor may be added; 1 where the next tensor
    is no multiple."""
    tensors = [total for total in totals if total is not None]
    if len(tensors) < len(totals) or len({total.numel() for total in tensors}) > 1:
        return 1.0
    summands, next_tensor = torch.stack([tensors[0], *tensors[2:]], -1), tensors[1]
    factors = torch.linalg.lstsq(summands, next_tensor[:, None]).solution
    residue = float((next_tensor - (summands @ factors)[:, 0]).norm())
    if not residue <= _RESIDUE * float(next_tensor.norm()) or not float(factors[-1]):
        return 1.0
    return float(factors[0] / factors[-1] if len(tensors) > 2 else factors[0])


def _total(shards: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The start of a tensor that every rank has, or the sum of summands; `None` where it is not finite."""
    if len({shard.numel() for shard in shards}) != 1 or not shards[0].is_floating_point():
        return None
    numbers = [shard.reshape(-1)[:_SAMPLE].double() for shard in shards]
    if not all(bool(values.isfinite().all()) for values in numbers):
        return None
    if all(torch.allclose(numbers[0], values, rtol=_RESIDUE / 4) for values in numbers[1:]):
        return numbers[0]
    return torch.stack(numbers).sum(0)
