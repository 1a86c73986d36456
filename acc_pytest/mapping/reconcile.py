"""Bring the two sides of a pair to one shape: merge rank shards, cut packed tensors, pick rows.

`open_pair` does it on mapped files when a test runs, `agree` on shapes alone while the plan is made:
both go through `reconcile`, so the plan never promises what the test cannot do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..errors import Incomparable
from ..tensors.source import Source, TensorSource
from ..tensors.views import Columns, Reshaped, Rows, Sum
from .pair import CacheTail, LastToken, Operand, Pair, Part, RankSum, Repeated, TableRows, View, Whole
from .shapes import Merge, Shape, merge_rule, rows_and_width, same_order


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sources of one shape; `label` tells replicas apart (`rank 1`), empty for the normal case."""

    golden: Source
    mine: Source
    label: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """A pair ready to be measured. Replicated shards give one comparison per replica.

    `notes` says in words what was done to make the shapes agree; empty when nothing was.
    """

    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()

    @property
    def golden(self) -> Source:
        return self.comparisons[0].golden

    @property
    def mine(self) -> Source:
        return self.comparisons[0].mine


@dataclass(slots=True)
class Side:
    """The shards of one operand, in rank order, and how they are to be looked at."""

    shards: list[torch.Tensor]
    view: View
    part_sizes: tuple[int, ...] = ()

    @property
    def shape(self) -> Shape:
        return tuple(self.shards[0].shape)

    @property
    def count(self) -> int:
        return len(self.shards)

    def describe(self) -> str:
        ranks = f" on each of {self.count} ranks" if self.count > 1 else ""
        return f"{list(self.shape)}{ranks}"


def open_pair(pair: Pair) -> Opened:
    """Map both sides of a pair and reconcile them.

    Raises `FormatError`, `CannotDecode`, `NoPayload` for a file, `Incomparable` when the shapes (or
    an int8 side against a floating one) leave nothing to compare.
    """
    golden, mine = _side(pair.golden), _side(pair.mine)
    _refuse_quantised(golden, mine)
    return reconcile(golden, mine)


def _side(operand: Operand) -> Side:
    sizes: tuple[int, ...] = ()
    if isinstance(operand.view, Part):
        sizes = tuple(ref.header().numel for ref in operand.view.widths_of)
    return Side([ref.open() for ref in operand.refs], operand.view, sizes)


def agree(golden: Operand, mine: Operand) -> str:
    """Empty when the two operands can be compared judging by their headers, else the reason.

    Raises `FormatError` when a header cannot be read.
    """
    headers = [ref.header() for ref in (*golden.refs, *mine.refs)]
    if any(header.payload == "statistics" for header in headers):
        return _statistics_refusal(golden, mine)
    try:
        reconcile(_shape_side(golden), _shape_side(mine))
    except Incomparable as refusal:
        return str(refusal)
    return ""


def _statistics_refusal(golden: Operand, mine: Operand) -> str:
    """Max, min, mean and norm of a whole say nothing of a part, so a pair must not need cutting."""
    for operand in (golden, mine):
        if not isinstance(operand.view, (Whole, LastToken)):
            return "statistics cannot be sliced"
    counts = [sum(ref.header().numel for ref in operand.refs) for operand in (golden, mine)]
    one_each = [operand.refs[0].header().numel for operand in (golden, mine)]
    if counts[0] == counts[1] or one_each[0] == one_each[1]:
        return ""
    return f"statistics of {counts[0]} elements (golden) say nothing of {counts[1]} elements (mine)"


def _shape_side(operand: Operand) -> Side:
    shards = [torch.empty(ref.header().shape, dtype=torch.uint8, device="meta") for ref in operand.refs]
    sizes: tuple[int, ...] = ()
    if isinstance(operand.view, Part):
        sizes = tuple(ref.header().numel for ref in operand.view.widths_of)
    return Side(shards, operand.view, sizes)


def _refuse_quantised(golden: Side, mine: Side) -> None:
    kinds = {side.shards[0].dtype for side in (golden, mine)}
    if torch.int8 in kinds and any(kind.is_floating_point for kind in kinds):
        raise Incomparable(
            "one side is int8, the other floating point: quantised values mean nothing without their scale"
        )


def reconcile(golden: Side, mine: Side) -> Opened:
    """Apply both views and merge the shards so that both sides have one shape.

    Raises `Incomparable` with both shapes when no rule makes them agree.
    """
    if isinstance(golden.view, (Part, TableRows, CacheTail)):
        cut, note = _cut(golden, mine)
        others, merged = _merged(mine, tuple(cut.shape), golden, mine)
        return _opened([cut], others, note, merged)
    if isinstance(mine.view, (Part, TableRows, CacheTail)):
        cut, note = _cut(mine, golden)
        others, merged = _merged(golden, tuple(cut.shape), golden, mine)
        return _opened(others, [cut], note, merged)
    for one, other, note in _trimmed(golden, mine):
        for whole in (*_wholes(one, other), *_wholes(other, one)):
            if _rule(one, whole) and _rule(other, whole):
                goldens, golden_note = _merged(one, whole, golden, mine)
                mines, mine_note = _merged(other, whole, golden, mine)
                return _opened(goldens, mines, note, golden_note, mine_note)
    raise _mismatch(golden, mine)


def _mismatch(golden: Side, mine: Side) -> Incomparable:
    return Incomparable(f"data shape doesn't match: golden {golden.describe()}, mine {mine.describe()}")


def _opened(golden: list[Source], mine: list[Source], *notes: str) -> Opened:
    count = max(len(golden), len(mine))
    comparisons = []
    for rank in range(count):
        one, other = golden[min(rank, len(golden) - 1)], mine[min(rank, len(mine) - 1)]
        if tuple(one.shape) != tuple(other.shape):
            other = Reshaped(other, tuple(one.shape))
        comparisons.append(Comparison(one, other, f"rank {rank}" if count > 1 else ""))
    return Opened(tuple(comparisons), tuple(note for note in notes if note))


def _trimmed(golden: Side, mine: Side) -> list[tuple[Side, Side, str]]:
    """The two sides as they are, then cut to last tokens or tiled to a larger batch where views allow it."""
    attempts = [(golden, mine, "")]
    if isinstance(golden.view, LastToken) or isinstance(mine.view, LastToken):
        attempts += [(shorter, mine, "last token of golden") for shorter in _last_token(golden)]
        attempts += [(golden, shorter, "last token of mine") for shorter in _last_token(mine)]
    if isinstance(golden.view, Repeated):
        attempts.append((_tiled(golden, golden.view), mine, _batch_note("golden", golden.view)))
    if isinstance(mine.view, Repeated):
        attempts.append((golden, _tiled(mine, mine.view), _batch_note("mine", mine.view)))
    return attempts


def _tiled(side: Side, view: Repeated) -> Side:
    return Side([shard.expand(view.times, *shard.shape) for shard in side.shards], side.view)


def _batch_note(name: str, view: Repeated) -> str:
    return f"{name} repeated {view.times} times, for the other run had a batch as many times as large"


def _last_token(side: Side) -> list[Side]:
    """The last row of every sequence: `[batch, tokens, width]`, else `[tokens, batch, width]` or 2-D."""
    if len(side.shape) < 2:
        return []
    cuts = [[shard[-1:] for shard in side.shards]]
    if len(side.shape) >= 3:
        cuts.insert(0, [shard[:, -1] for shard in side.shards])
    return [Side(shards, side.view) for shards in cuts]


def _wholes(side: Side, other: Side) -> list[Shape]:
    """The shapes that the shards of a side could make up, the likeliest first.

    Shards of one shape on both sides are replicas; shards of different shapes are pieces.
    """
    if side.count == 1 or isinstance(side.view, RankSum):
        return [side.shape]
    rows, width = rows_and_width(side.shape)
    pieces = [(rows, width * side.count), (rows * side.count, width)]
    return [side.shape, *pieces] if same_order(side.shape, other.shape) else [*pieces, side.shape]


def _rule(side: Side, whole: Shape) -> Merge | None:
    if isinstance(side.view, RankSum) and side.count > 1:
        return Merge("sum") if same_order(side.shape, whole) else None
    return merge_rule(side.shape, side.count, whole)


def _merged(side: Side, whole: Shape, golden: Side, mine: Side) -> tuple[list[Source], str]:
    """The shards of a side as sources of `whole`'s order: one, or one per replica."""
    rule = _rule(side, whole)
    if rule is None:
        raise _mismatch(golden, mine)
    shards, note = side.shards, rule.describe(side.count)
    if rule.how == "single":
        return [TensorSource(shards[0])], note
    if rule.how == "replicated":
        return [TensorSource(shard) for shard in shards], note
    if rule.how == "sum":
        return [Sum([TensorSource(shard) for shard in shards])], note
    rows, width = rows_and_width(whole)
    shards = shards[:: rule.replicas]
    if rule.how == "rows":
        return [Rows([TensorSource(shard) for shard in shards], width)], note
    return [Columns([shard.reshape(rows, -1) for shard in shards])], note


def _cut(side: Side, other: Side) -> tuple[Source, str]:
    """The piece of a packed, table or cache tensor that the other side holds, and the rule in words."""
    if isinstance(side.view, Part):
        return _part(side, side.view, other)
    if isinstance(side.view, TableRows):
        return _table_rows(side, side.view, other)
    return _cache_tail(side, other)


def _part(side: Side, view: Part, other: Side) -> tuple[Source, str]:
    rows, packed = rows_and_width(side.shape)
    for scale in (other.count, 1):
        sizes = [size * scale for size in side.part_sizes]
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


def _table_rows(side: Side, view: TableRows, other: Side) -> tuple[Source, str]:
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
    return TensorSource(table[start : start + wanted]), note


def _table(side: Side, component: int | None) -> torch.Tensor:
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


def _cache_tail(side: Side, other: Side) -> tuple[Source, str]:
    if len(side.shape) != 4 or side.count != 1:
        raise Incomparable(f"not a key or value cache of four dimensions: {side.describe()}")
    for cache in _cache_layouts(side.shards[0], other):
        batch, heads, cached, size = cache.shape
        for tokens in _token_counts(other, batch * heads * size):
            rule = _rule(other, (batch * tokens, heads * size))
            if 0 < tokens <= cached and rule and rule.how != "rows":
                newest = TensorSource(cache[:, :, cached - tokens :].permute(0, 2, 1, 3))
                note = f"newest {tokens} of {cached} tokens of the cache"
                return Reshaped(newest, (batch * tokens, heads * size)), note
    raise Incomparable(f"{other.describe()} are not the newest tokens of a cache of shape {list(side.shape)}")


def _cache_layouts(cache: torch.Tensor, other: Side) -> list[torch.Tensor]:
    """A cache as `[batch, heads, tokens, size]`, under every layout that the other side allows.

    Stored as such (Hugging Face), as `[tokens, batch, heads, size]` (GLM, Megatron) or as
    `[batch, tokens, heads, size]`. The other side's own heads, where it keeps them apart, and a batch
    of 1 tell which.
    """
    layouts = [cache, cache.permute(1, 2, 0, 3), cache.permute(0, 2, 1, 3)]
    for apart in (other.shape, tuple(size for size in other.shape if size != 1)):
        if len(apart) >= 2 and apart[-1] == cache.shape[-1]:
            heads = {apart[-2], apart[-2] * other.count}
            fitting = [layout for layout in layouts if layout.shape[1] in heads]
            if fitting:
                layouts = fitting
                break
    return sorted(layouts, key=lambda layout: layout.shape[0] != 1)


def _token_counts(other: Side, per_token: int) -> list[int]:
    """How many tokens the other side can hold, its shards being heads (first) or replicas."""
    total = math.prod(other.shape) * other.count
    return [
        total // copies // per_token
        for copies in range(1, other.count + 1)
        if per_token and total % (copies * per_token) == 0
    ]
