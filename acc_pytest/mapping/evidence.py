"""What the dumps themselves say about a match: which slots exist, and do the shapes agree?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..dumps.base import Dump, Rank, Slot, Step, StepLabel
from ..dumps.modules import ModuleDump, stored_tensor
from ..errors import AccError, Incomparable
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node
from .engine_views import Largest, RowParallel, TokenLayout, Turned, WithResidual
from .expert_operands import of_experts
from .layers import next_norm
from .match import Match, ViewRule
from .packs import range_by_own, range_by_pieces
from .pair import (
    CacheTail,
    HeadPart,
    LastToken,
    Operand,
    OwnPart,
    Part,
    RankSum,
    Repeated,
    SlotRows,
    TableRows,
    View,
    Whole,
    WithBias,
)
from .quantised import scale_and_offset
from .roles.export import Export
from .router_choice import with_router_choices
from .shapes import Shape
from .splits import Splits, has_padding
from .token_picks import of_tokens


class DumpStep:
    """One dump at one step: slots and references of its nodes, remembered."""

    def __init__(self, dump: Dump, step: Step) -> None:
        self.dump = dump
        self.step = step
        self.tree = step.tree
        self._slots: dict[tuple[int, Node], Mapping[Slot, TensorRef]] = {}

    def slots(self, node: Node, rank: Rank | None = None) -> Mapping[Slot, TensorRef]:
        """The dumped tensors of a node on a rank (the first one unless told)."""
        rank = rank or self.dump.ranks[0]
        key = (rank.index, node)
        if key not in self._slots:
            self._slots[key] = self.dump.tensors(self.step, rank, node)
        return self._slots[key]

    def inventory(self) -> tuple[tuple[Slot, ...], ...]:
        """What was dumped on the first rank, node by node: steps with equal ones are matched alike."""
        return tuple(tuple(self.slots(node)) for node in self.tree.walk())

    def missing(self, export: Export, ranks: Sequence[Rank]) -> list[str]:
        """The names of the ranks among `ranks` that did not dump an export."""
        return [rank.name for rank in ranks if export.slot not in self.slots(export.node, rank)]

    def partial(self, export: Export, ranks: Sequence[Rank]) -> bool:
        """Whether the dump says that what several ranks hold of an export are summands of it."""
        if len(ranks) < 2 or not isinstance(self.dump, ModuleDump):
            return False
        return self.dump.is_partial(self.step, ranks[0], export.node, export.slot)

    def refs(self, export: Export, ranks: Sequence[Rank]) -> tuple[TensorRef, ...]:
        """The references of an export on every rank given; empty when one of them is missing."""
        refs = [self.slots(export.node, rank).get(export.slot) for rank in ranks]
        return tuple(ref for ref in refs if ref is not None) if all(refs) else ()


OnRanks = tuple[DumpStep, Sequence[Rank]]
"""One side, and the ranks of it that are meant."""


class Evidence:
    """Both sides at one step, able to turn a match into operands and to check their shapes."""

    def __init__(
        self,
        golden: DumpStep,
        mine: DumpStep,
        table_start: int | None = None,
        batches: tuple[int, int] = (1, 1),
        label: StepLabel | None = None,
        words: str = "",
        splits: Splits | None = None,
    ) -> None:
        """`table_start` is the first position of this step's tokens, `None` if unknown; `batches` says how
        many times golden and mine must be repeated to have the other one's batch. `label` is what the step is
        called, by default as golden calls it; `words` say how the two steps meet, if not by their labels;
        `splits` know what was split over ranks in other steps."""
        self.golden = golden
        self.mine = mine
        self._table_start = table_start
        self._batches = batches
        self.label = golden.step.label if label is None else label
        self.words = words
        self._splits = splits or Splits()
        self._layouts: tuple[TokenLayout | None, TokenLayout | None] = (None, None)
        self._tokens: tuple[TokenLayout, TokenLayout] | None = None
        self._modules = isinstance(golden.dump, ModuleDump) and isinstance(mine.dump, ModuleDump)

    def lay_out(self, golden: TokenLayout | None, mine: TokenLayout | None, alike: bool = False) -> None:
        """How both sides lay out tokens; where that is `alike` no rows need be looked for."""
        self._layouts = (golden, mine)
        self._tokens = (golden, mine) if golden is not None and mine is not None and not alike else None

    @property
    def by_tokens(self) -> bool:
        """Whether one side holds other tokens in this step than the other, or in another order."""
        return self._tokens is not None and self._tokens[0].contexts is not None

    @property
    def tokens(self) -> tuple[TokenLayout | None, TokenLayout | None]:
        """How golden and mine lay out tokens, where that is not alike."""
        return self._tokens or (None, None)

    def rank_groups(self) -> list[tuple[Sequence[Rank], Sequence[Rank], int | None]]:
        """Which ranks meet: one by one for equal counts, all at once otherwise.

        Each entry is (golden ranks, mine ranks, rank number or `None` when merged or alone).
        """
        golden, mine = self.golden.dump.ranks, self.mine.dump.ranks
        if len(golden) != len(mine) or len(mine) == 1:
            return [(golden, mine, None)]
        return [([ranks[0]], [ranks[1]], index) for index, ranks in enumerate(zip(golden, mine))]

    def groups_of(self, match: Match) -> list[tuple[Sequence[Rank], Sequence[Rank], int | None]]:
        """Which ranks meet in a match: all at once where only one side has summands on its ranks, or its
        tokens split over them."""
        groups = self.rank_groups()
        if len(groups) == 1:
            return groups
        ranks = self.golden.dump.ranks, self.mine.dump.ranks
        refs = self.golden.refs(match.golden, ranks[0]), self.mine.refs(match.mine, ranks[1])
        ends = (match.golden, match.mine)
        splits = [self._splits.of(*each) for each in zip(ends, refs, refs[::-1], self._layouts)]
        padded = any(split is not None and has_padding(side, split) for side, split in zip(refs, splits))
        if splits[0] != splits[1] or padded or (splits[0] is not None and self._tokens is not None):
            return [(*ranks, None)]
        if "row_parallel" not in (match.golden_view.kind, match.mine_view.kind):
            return groups
        return [(*ranks, None)] if len({all_equal(each) for each in refs}) > 1 else groups

    def operands(
        self, match: Match, golden_ranks: Sequence[Rank], mine_ranks: Sequence[Rank]
    ) -> tuple[Operand, Operand] | None:
        """The two operands of a match on these ranks, `None` when a tensor was not dumped."""
        golden_refs = self.golden.refs(match.golden, golden_ranks)
        mine_refs = self.mine.refs(match.mine, mine_ranks)
        if not golden_refs or not mine_refs:
            return None
        sides = (self.golden, golden_ranks), (self.mine, mine_ranks)
        golden_view = self._view(match.golden, match.golden_view, *sides)
        mine_view = self._view(match.mine, match.mine_view, *sides[::-1])
        if golden_view is None or mine_view is None:
            return None
        if golden_view == Whole() and self.golden.partial(match.golden, golden_ranks):
            golden_view = RankSum()
        if mine_view == Whole() and self.mine.partial(match.mine, mine_ranks):
            mine_view = RankSum()
        scales = self._scales(match.mine, mine_ranks)
        mine = _operand(match.mine, mine_refs, mine_view, scales, self.mine)
        golden = _operand(match.golden, golden_refs, golden_view, (), self.golden)
        if match.experts is not None:
            both = (self.golden, self.mine)
            return None if self.by_tokens else of_experts(golden, mine, match.experts, both, self.tokens)
        golden, mine = with_router_choices(golden, mine)
        golden, mine = self._splits.of_pair(match, golden, mine, self._layouts)
        return (golden, mine) if self._tokens is None else of_tokens(golden, mine, self._tokens)

    def _scales(self, export: Export, ranks: Sequence[Rank]) -> tuple[tuple[TensorRef, TensorRef], ...]:
        """Scale and offset of an operator of mine that quantises, where every rank dumped them."""
        slots = scale_and_offset(export.node)
        if slots is None:
            return ()
        scales = [[self.mine.slots(export.node, rank).get(slot) for slot in slots] for rank in ranks]
        pairs = tuple((scale, offset) for scale, offset in scales if scale is not None and offset is not None)
        return pairs if len(pairs) == len(scales) else ()

    def _columns(self, export: Export, rule: ViewRule, own: OnRanks, other: OnRanks) -> View | None:
        """The columns of a piece of what modules pack; `None` where headers do not tell."""
        packed = _width(own, export)
        if rule.kind == "own_columns":
            first = _width(own, rule.parts[0]) if rule.parts else None
            return range_by_own(rule.index, packed, first) if packed and first != 0 else None
        widths = [_width(other, part) for part in rule.parts]
        if not packed or not all(widths):
            return None
        return range_by_pieces(rule.index, packed, len(own[1]), widths, len(other[1]))

    def _view(self, export: Export, rule: ViewRule, own: OnRanks, other: OnRanks) -> View | None:
        """The view of one side, given that side's dump and ranks and those of the other."""
        if self._modules and rule.kind in ("part", "own_columns"):
            return self._columns(export, rule, own, other)
        if rule.kind in ("row_parallel", "residual"):
            return _of_summands(export, rule, own, self._splits)
        if rule.kind == "largest":
            return _largest(rule, other)
        if rule.kind == "turned":
            tables = [own[0].refs(part, own[1][:1]) for part in rule.parts]
            return Turned(tables[0][0], tables[1][0]) if all(tables) else None
        if rule.kind in ("part", "heads", "interleaved"):
            refs = [other[0].refs(part, other[1][:1]) for part in rule.parts]
            if not all(refs):
                return None
            pieces = tuple(ref[0] for ref in refs)
            if rule.kind == "part":
                return Part(rule.index, pieces)
            return HeadPart(rule.index, pieces, several=rule.kind == "interleaved")
        if rule.kind == "cache_heads":
            return CacheTail(rule.index)
        if rule.kind == "own_part":
            refs = [own[0].refs(part, own[1][:1]) for part in rule.parts]
            return OwnPart(rule.index, tuple(ref[0] for ref in refs)) if all(refs) else None
        if rule.kind in ("slots", "bias", "bias_sum"):
            companions = own[0].refs(rule.parts[0], own[1])
            if not companions:
                return None
            return (
                SlotRows(companions)
                if rule.kind == "slots"
                else WithBias(companions, rule.kind == "bias_sum")
            )
        if rule.kind == "table":
            return TableRows(self._table_start, rule.index if rule.index >= 0 else None)
        times = self._batches[0 if own[0] is self.golden else 1]
        plain: dict[str, View] = {"cache": CacheTail(), "last": LastToken(), "sum": RankSum()}
        plain["logits"] = LastToken(padded=True)
        return plain.get(rule.kind, Repeated(times) if times > 1 else Whole())

    def refusal(self, match: Match) -> str:
        """Why a match cannot be compared judging by headers; empty when it can.

        A file that cannot be read says nothing against the match: its pair is made, and its test fails.
        Nor does a tensor that only some ranks dumped: the plan then names the ranks.
        """
        golden_ranks, mine_ranks, _ = self.groups_of(match)[0]
        try:
            operands = self.operands(match, golden_ranks, mine_ranks)
            alone = operands is None and self.operands(match, golden_ranks[:1], mine_ranks[:1]) is not None
        except Incomparable as refusal:
            return str(refusal)
        if alone:
            return ""
        if operands is None:
            return "one of the tensors was not dumped"
        from .reconcile import agree

        try:
            return agree(*operands)
        except AccError:
            return ""


def all_equal(refs: Sequence[TensorRef]) -> bool:
    """Whether files hold the same bytes, as they say at their ends; those that do not are taken for such."""
    saved = [stored_tensor(ref) for ref in refs]
    return len({each.crc32 for each in saved if each is not None}) <= 1


def _width(side: OnRanks, export: Export) -> int:
    """The last dimension of an export on the first of the ranks; 0 where it is not known."""
    refs = side[0].refs(export, side[1][:1])
    header = readable(refs[0]) if refs else None
    return header.shape[-1] if header is not None and header.shape else 0


def _rows(ref: TensorRef | None) -> Shape:
    header = readable(ref)
    return header.shape[:-1] if header is not None else ()


def _largest(rule: ViewRule, other: OnRanks) -> Largest | None:
    refs = [other[0].refs(part, other[1][:1]) for part in rule.parts]
    count = _width(other, rule.parts[0])
    return Largest(count, refs[0][0], refs[1][0]) if len(refs) == 2 and all(refs) and count else None


def _of_summands(export: Export, rule: ViewRule, own: OnRanks, splits: Splits) -> View | None:
    """The view of what may be a summand on each rank, with the output of the norm that comes next."""
    side, ranks = own
    after = next_norm(side.tree, export.node) if len(ranks) > 1 else None
    said = Export(after, Slot("output", (0,)), "") if after is not None else None
    witness = side.refs(said, ranks) if said is not None else ()
    rows = {_rows(ref) for ref in (*witness, side.slots(export.node, ranks[0]).get(export.slot))}
    if said is not None and (len(rows) > 1 or splits.known(said)):
        witness = ()  # of a part of the tokens, which is another one on each rank
    if rule.kind == "row_parallel":
        return RowParallel(witness)
    residual = side.refs(rule.parts[0], ranks)
    return WithResidual(residual, witness) if residual else None


def _operand(
    export: Export,
    refs: tuple[TensorRef, ...],
    view: View,
    scales: tuple[tuple[TensorRef, TensorRef], ...],
    side: DumpStep,
) -> Operand:
    node = export.node
    onward = tuple(side.refs(each, side.dump.ranks) for each in export.onward)
    made = Operand(node.path, node.name, node.op_type, str(export.slot), refs, view, scales)
    slots_by = side.refs(export.slots_by, side.dump.ranks)[: len(refs)] if export.slots_by is not None else ()
    return replace(made, onward=onward if all(onward) else (), slots_by=slots_by)
