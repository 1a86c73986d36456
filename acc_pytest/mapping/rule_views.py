"""Views of tensors by the rules of their matches, with the tensors that a view needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..dumps.base import Slot
from ..tensors.ref import TensorRef, readable
from .dump_step import OnRanks, width_of
from .engine_views import ColumnRange, Largest, RowParallel, Turned, WithResidual
from .layers import next_norm
from .match import ViewRule
from .roles.export import Export
from .shapes import Shape
from .splits import Splits
from .views import CacheTail, HeadPart, LastToken, OwnPart, Part, RankSum, SlotRows, View, WithBias

BY_ITSELF: Mapping[str, View] = {
    "cache": CacheTail(),
    "last": LastToken(),
    "logits": LastToken(padded=True),
    "sum": RankSum(),
}
"""Views that need no other tensor, by kinds of rules."""


def columns(export: Export, rule: ViewRule, side: OnRanks, opposite: OnRanks) -> View | None:
    """The columns of a piece of what modules pack; `None` where headers do not tell."""
    packed = width_of(export, side)
    if rule.kind == "own_columns":
        first = width_of(rule.parts[0], side) if rule.parts else None
        return range_by_own(rule.index, packed, first) if packed and first != 0 else None
    widths = [width_of(piece, opposite) for piece in rule.parts]
    if not packed or not all(widths):
        return None
    return range_by_pieces(rule.index, packed, len(side[1]), widths, len(opposite[1]))


def of_summands(export: Export, rule: ViewRule, on_ranks: OnRanks, splits: Splits) -> View | None:
    """The view of what may be a summand on each rank, with the output of the norm that comes next."""
    side, ranks = on_ranks
    after = next_norm(side.tree, export.node) if len(ranks) > 1 else None
    norm_output = Export(after, Slot("output", (0,)), "") if after is not None else None
    witness = side.refs(norm_output, ranks) if norm_output is not None else ()
    rows = {_rows(ref) for ref in (*witness, side.slots(export.node, ranks[0]).get(export.slot))}
    if norm_output is not None and (len(rows) > 1 or splits.was_split(norm_output)):
        witness = ()  # of a part of the tokens, which is another one on each rank
    if rule.kind == "row_parallel":
        return RowParallel(witness)
    residual = side.refs(rule.parts[0], ranks)
    return WithResidual(residual, witness) if residual else None


def _rows(ref: TensorRef | None) -> Shape:
    header = readable(ref)
    return header.shape[:-1] if header is not None else ()


def _named_refs(rule: ViewRule, side: OnRanks) -> tuple[TensorRef, ...] | None:
    """The tensors that a rule names, on the first rank of a side; `None` where one was not dumped."""
    refs = [side[0].refs(export, side[1][:1]) for export in rule.parts]
    return tuple(ref[0] for ref in refs) if all(refs) else None


def _largest(rule: ViewRule, side: OnRanks, opposite: OnRanks) -> View | None:
    refs = _named_refs(rule, opposite)
    count = width_of(rule.parts[0], opposite)
    return Largest(count, *refs) if refs is not None and len(refs) == 2 and count else None


def _turned(rule: ViewRule, side: OnRanks, opposite: OnRanks) -> View | None:
    tables = _named_refs(rule, side)
    return Turned(tables[0], tables[1]) if tables is not None else None


def _part(rule: ViewRule, side: OnRanks, opposite: OnRanks) -> View | None:
    pieces = _named_refs(rule, opposite)
    return Part(rule.index, pieces) if pieces is not None else None


def _head_part(rule: ViewRule, side: OnRanks, opposite: OnRanks) -> View | None:
    pieces = _named_refs(rule, opposite)
    return HeadPart(rule.index, pieces, several=rule.kind == "interleaved") if pieces is not None else None


def _own_part(rule: ViewRule, side: OnRanks, opposite: OnRanks) -> View | None:
    pieces = _named_refs(rule, side)
    return OwnPart(rule.index, pieces) if pieces is not None else None


def _slot_rows(rule: ViewRule, side: OnRanks, opposite: OnRanks) -> View | None:
    places = side[0].refs(rule.parts[0], side[1])
    return SlotRows(places) if places else None


def _with_bias(rule: ViewRule, side: OnRanks, opposite: OnRanks) -> View | None:
    bias = side[0].refs(rule.parts[0], side[1])
    return WithBias(bias, rule.kind == "bias_sum") if bias else None


BY_TENSORS: Mapping[str, Callable[[ViewRule, OnRanks, OnRanks], View | None]] = {
    "largest": _largest,
    "turned": _turned,
    "part": _part,
    "heads": _head_part,
    "interleaved": _head_part,
    "own_part": _own_part,
    "slots": _slot_rows,
    "bias": _with_bias,
    "bias_sum": _with_bias,
}
"""Views that need tensors of their own side or of the other one, by kinds of rules; `None` where these were
not dumped."""


def range_by_pieces(
    index: int, packed: int, ranks: int, pieces: Sequence[int], piece_ranks: int
) -> ColumnRange | None:
    """Piece `index` of a tensor that is `packed` wide on each of `ranks`, by the widths of the `pieces` of
    the other side on each of its `piece_ranks`; `None` where these make up no such tensor."""
    for copies, piece_copies in itertools.product(
        _copies(ranks, len(pieces)), _copies(piece_ranks, len(pieces))
    ):
        totals = [width * piece_ranks // holders for width, holders in zip(pieces, piece_copies)]
        widths = [width * holders // ranks for width, holders in zip(totals, copies)]
        exact = all(width * holders % ranks == 0 for width, holders in zip(totals, copies))
        if exact and sum(widths) == packed:
            start = sum(widths[:index])
            return ColumnRange(start, start + widths[index])
    return None


def range_by_own(index: int, packed: int, first: int | None) -> ColumnRange | None:
    """Piece `index` of two equal ones, or, behind a `first` one that is so wide, of the other two."""
    if first is None:
        half, odd = divmod(packed, 2)
        return None if odd else ColumnRange(index * half, (index + 1) * half)
    half, odd = divmod(packed - first, 2)
    if odd or half <= 0:
        return None
    borders = (0, first, first + half, packed)
    return ColumnRange(borders[index], borders[index + 1])


def _copies(ranks: int, pieces: int) -> Iterator[tuple[int, ...]]:
    """Numbers of ranks that hold each piece: one; or several, all but the first of three; or all."""
    yield (1,) * pieces
    divisors = [number for number in range(2, ranks + 1) if ranks % number == 0]
    if pieces == 3:
        yield from ((1, number, number) for number in divisors)
    if ranks > 1:
        yield (ranks,) * pieces
