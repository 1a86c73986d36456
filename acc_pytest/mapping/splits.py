"""Which tensors of several ranks are parts of one along its tokens: shapes tell, and that they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..dumps.base import Slot
from ..tensors.ref import TensorRef, readable
from .engine_views import TokenLayout, TokenSplit, WithResidual
from .match import Match
from .pair import Operand
from .roles.export import Export
from .router_choice import chosen_beside
from .token_split import may_be_one_token, ranks_alike, split_of


def has_padding(refs: Sequence[TensorRef], split: TokenSplit) -> bool:
    """Whether the tensors of all ranks have more rows than there are tokens."""
    headers = [readable(ref) for ref in refs]
    rows = sum(header.shape[split.axis] for header in headers if header is not None)
    return not split.joined or rows > split.rows


class Splits:
    """What was found in the steps so far: a step of one token does not tell, but others of that tensor do."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[TensorRef, ...], tuple[TensorRef, ...]], TokenSplit | None] = {}
        self._seen: set[tuple[str, Slot]] = set()

    def known(self, export: Export) -> bool:
        """Whether a tensor was split in a step before."""
        return (export.node.path, export.slot) in self._seen

    def of_pair(
        self,
        match: Match,
        golden: Operand,
        mine: Operand,
        layouts: tuple[TokenLayout | None, TokenLayout | None],
    ) -> tuple[Operand, Operand]:
        """Both operands of a match, with what is known of how ranks have their tokens."""
        first = self.of(match.golden, golden.refs, chosen_beside(golden.view, mine.refs), layouts[0])
        second = self.of(match.mine, mine.refs, chosen_beside(mine.view, golden.refs), layouts[1])
        golden = golden if first is None else replace(golden, split=first)
        mine = mine if second is None else replace(mine, split=second)
        return (
            self._with_stream(match.golden, golden, mine.refs, layouts[0]),
            self._with_stream(match.mine, mine, golden.refs, layouts[1]),
        )

    def _with_stream(
        self, export: Export, operand: Operand, others: tuple[TensorRef, ...], layout: TokenLayout | None
    ) -> Operand:
        """The operand that knows how ranks have the stream which is to be added to it."""
        view = operand.view
        if not isinstance(view, WithResidual):
            return operand
        return replace(operand, view=replace(view, split=self.of(export, view.residual, others, layout)))

    def of(
        self,
        export: Export,
        refs: tuple[TensorRef, ...],
        others: tuple[TensorRef, ...],
        layout: TokenLayout | None,
    ) -> TokenSplit | None:
        """How the tensors of all ranks (`refs`) have the tokens of a step, beside those of the other side."""
        if layout is None or len(refs) < 2 or not others:
            return None
        key = (refs, others[:1])
        if key not in self._known:
            self._known[key] = self._found((export.node.path, export.slot), refs, others[0], layout)
        return self._known[key]

    def _found(
        self, place: tuple[str, Slot], refs: Sequence[TensorRef], other: TensorRef, layout: TokenLayout
    ) -> TokenSplit | None:
        headers, beside = [readable(ref) for ref in refs], readable(other)
        shapes = [header.shape for header in headers if header is not None and header.payload == "data"]
        if len(shapes) < len(refs) or beside is None or not beside.shape or not all(shapes):
            return None
        found = split_of(shapes, layout)
        if found is None and place in self._seen:
            found = may_be_one_token(shapes, layout)
        if found is None or not found.joined:
            return found
        if shapes[0][-1] != beside.shape[-1] or ranks_alike(refs):
            return None
        self._seen.add(place)
        return found
