"""Views of tensors by the rules of their matches, with the tensors that a view needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..dumps.base import Slot
from ..tensors.ref import TensorRef, readable
from .choices import values_beside
from .dump_step import OnRanks, width_of
from .layers import next_norm
from .match import Export, Match, ViewRule
from .pair import Operand
from .shapes import Shape
from .token_order import ranks_alike, split_of
from .views import (
    CacheTail,
    HeadPart,
    Largest,
    LastToken,
    OwnPart,
    Part,
    RankSum,
    RowParallel,
    RowSpan,
    SlotRows,
    TokenLayout,
    TokenSplit,
    Turned,
    View,
    WithBias,
    WithResidual,
)

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


BY_TENSORS = frozenset(
    ("largest", "turned", "part", "heads", "interleaved", "own_part", "slots", "bias", "bias_sum")
)


def by_tensors(rule: ViewRule, side: OnRanks, opposite: OnRanks) -> View | None:
    """The view of a rule that needs tensors of its own side or of the other one; `None` where these were not
    dumped."""
    if rule.kind in ("slots", "bias", "bias_sum"):
        of_ranks = side[0].refs(rule.parts[0], side[1]) if rule.parts else ()
        view = SlotRows(of_ranks) if rule.kind == "slots" else WithBias(of_ranks, rule.kind == "bias_sum")
        return view if of_ranks else None
    dump, ranks = side if rule.kind in ("turned", "own_part") else opposite
    first_refs = [dump.refs(export, ranks[:1]) for export in rule.parts]
    if not all(first_refs):
        return None
    refs = tuple(ref[0] for ref in first_refs)
    if rule.kind == "largest":
        count = width_of(rule.parts[0], opposite)
        return Largest(count, *refs) if len(refs) == 2 and count else None
    if rule.kind == "turned":
        return Turned(refs[0], refs[1])
    if rule.kind == "own_part":
        return OwnPart(rule.index, refs)
    if rule.kind == "part":
        return Part(rule.index, refs)
    return HeadPart(rule.index, refs, several=rule.kind == "interleaved")


def range_by_pieces(
    index: int, packed: int, ranks: int, pieces: Sequence[int], piece_ranks: int
) -> RowSpan | None:
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
            return RowSpan(start, widths[index])
    return None


def range_by_own(index: int, packed: int, first: int | None) -> RowSpan | None:
    """Piece `index` of two equal ones, or, behind a `first` one that is so wide, of the other two."""
    if first is None:
        half, odd = divmod(packed, 2)
        return None if odd else RowSpan(index * half, half)
    half, odd = divmod(packed - first, 2)
    if odd or half <= 0:
        return None
    return RowSpan(0, first) if index == 0 else RowSpan(first + (index - 1) * half, half)


def _copies(ranks: int, pieces: int) -> Iterator[tuple[int, ...]]:
    """Numbers of ranks that hold each piece: one; or several, all but the first of three; or all."""
    yield (1,) * pieces
    divisors = [number for number in range(2, ranks + 1) if ranks % number == 0]
    if pieces == 3:
        yield from ((1, number, number) for number in divisors)
    if ranks > 1:
        yield (ranks,) * pieces


# Tensors of several ranks that are pieces of one along its tokens: by ids, shapes, and that they differ.


class Splits:
    """Splits of tensors in the steps so far: they decide where each rank has one row."""

    def __init__(self) -> None:
        self._splits: dict[tuple[tuple[TensorRef, ...], tuple[TensorRef, ...]], TokenSplit | None] = {}
        self._split_places: set[tuple[str, Slot]] = set()
        self._of_shard: dict[TensorRef, TokenSplit] = {}

    def was_split(self, export: Export) -> bool:
        """Whether a tensor was split in a step before."""
        return (export.node.path, export.slot) in self._split_places

    def cut(self, sides: Sequence[Sequence[TensorRef]], split: TokenSplit) -> None:
        """Let what each rank has of split tensors be read without its padding. One row may be anything."""
        for refs in sides:
            rows = split.rows
            for ref in refs:
                size = ref.header().shape[split.axis]
                if size > max(rows, 1):
                    self._of_shard[ref] = TokenSplit(split.axis, rows, joined=False)
                rows -= min(size, rows) if split.joined else 0

    def of_pair(
        self,
        match: Match,
        golden: Operand,
        mine: Operand,
        layouts: tuple[TokenLayout | None, TokenLayout | None],
    ) -> tuple[Operand, Operand]:
        """Both operands of a match, each with the split of its tokens over ranks."""
        first = self.of(match.golden, golden.refs, values_beside(golden.view, mine.refs), layouts[0])
        second = self.of(match.mine, mine.refs, values_beside(mine.view, golden.refs), layouts[1])
        golden = golden if first is None else replace(golden, split=first)
        mine = mine if second is None else replace(mine, split=second)
        return (
            self._with_stream(match.golden, golden, mine.refs, layouts[0]),
            self._with_stream(match.mine, mine, golden.refs, layouts[1]),
        )

    def _with_stream(
        self, export: Export, operand: Operand, opposite: tuple[TensorRef, ...], layout: TokenLayout | None
    ) -> Operand:
        view = operand.view
        if not isinstance(view, WithResidual):
            return operand
        return replace(operand, view=replace(view, split=self.of(export, view.residual, opposite, layout)))

    def of(
        self,
        export: Export,
        refs: tuple[TensorRef, ...],
        opposite: tuple[TensorRef, ...],
        layout: TokenLayout | None,
    ) -> TokenSplit | None:
        """The split of the tokens of a step over the `refs` of all ranks, beside `opposite` ones."""
        if layout is None or not layout.shared or not refs or not opposite:
            return None
        if len(refs) == 1:
            return self._of_shard.get(refs[0])
        key = (refs, opposite[:1])
        if key not in self._splits:
            self._splits[key] = self._computed((export.node.path, export.slot), refs, opposite[0], layout)
        return self._splits[key]

    def _computed(
        self, place: tuple[str, Slot], refs: Sequence[TensorRef], opposite: TensorRef, layout: TokenLayout
    ) -> TokenSplit | None:
        headers, opposite_header = [readable(ref) for ref in refs], readable(opposite)
        shapes = [header.shape for header in headers if header is not None and header.payload == "data"]
        if len(shapes) < len(refs) or opposite_header is None or not opposite_header.shape or not all(shapes):
            return None
        has_every_token = 1 < math.prod(opposite_header.shape[:-1]) == math.prod(layout.shape)
        split = split_of(shapes, layout, single=has_every_token or place in self._split_places)
        if split is None or not split.joined:
            return split
        if shapes[0][-1] != opposite_header.shape[-1] or ranks_alike(refs):
            return None
        self._split_places.add(place)
        return split
