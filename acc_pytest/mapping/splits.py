"""Tensors of several ranks that are pieces of one along its tokens: by ids, shapes, and that they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..dumps.base import Slot
from ..tensors.ref import TensorRef, readable
from .engine_views import TokenLayout, TokenSplit, WithResidual
from .match import Match
from .pair import Operand
from .roles.export import Export
from .router_choice import values_beside
from .token_split import ranks_alike, split_of


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
        """The operand with the split of the stream that is added to it."""
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
