"""Evidence of the dumps for a match: which slots exist, and do the shapes agree?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ..dumps.base import Rank, Slot, StepLabel
from ..errors import AccError, Incomparable
from ..tensors.ref import TensorRef, readable
from ..topology.tree import Node
from .choices import with_router_choices
from .dump_step import DumpStep, OnRanks
from .match import ExpertRule, Export, Match, SharedWeight, ViewRule
from .pair import Operand
from .rule_views import BY_ITSELF, BY_TENSORS, Splits, by_tensors, columns, of_summands
from .shapes import Shape, has_token_rows
from .shard_values import UNRELATED, scale_and_offset
from .token_order import forms_of
from .views import (
    CacheTail,
    ExpertPick,
    Heads,
    LastToken,
    RankSum,
    Repeated,
    Selected,
    TableRows,
    TokenLayout,
    TokenPick,
    View,
    Whole,
)

IN_SEQUENCE = "sequence"
"""The policy that goes by the place of a pair among those of its kind, and by its shape."""
BY_FLOW = "flow"
"""The policy that goes by what reads and makes a tensor, and by its shape."""


class Evidence:
    """Both sides at one step, able to turn a match into operands and to check their shapes."""

    def __init__(
        self,
        golden: DumpStep,
        mine: DumpStep,
        table_start: int | None = None,
        batches: tuple[int, int] = (1, 1),
        label: StepLabel | None = None,
        step_note: str = "",
        splits: Splits | None = None,
        calls: Mapping[str, str] = MappingProxyType({}),
        weights: Sequence[SharedWeight] = (),
    ) -> None:
        """`table_start` is the first position of this step's tokens, `None` if unknown; `batches` says how
        many times golden and mine must be repeated to have the other one's batch. `label` is what the step is
        called, by default as golden calls it; `step_note` says how the two steps meet, if not by their
        labels; `splits` know the tensors that were split over ranks in other steps;
        `calls` are recorded calls of mine and golden's, by path, where their names say nothing. `weights` are
        those that modules of both sides share."""
        self.golden = golden
        self.calls = calls
        self.weights = weights
        self.mine = mine
        self._table_start = table_start
        self._batches = batches
        self.label = golden.step.label if label is None else label
        self.step_note = step_note
        self._splits = splits or Splits()
        self._layouts: tuple[TokenLayout | None, TokenLayout | None] = (None, None)
        self._tokens: tuple[TokenLayout, TokenLayout] | None = None
        self._last_rows: frozenset[tuple[Node, Slot]] = frozenset()
        self._modules = golden.dump.has_modules and mine.dump.has_modules

    def lay_out(self, golden: TokenLayout | None, mine: TokenLayout | None, alike: bool = False) -> None:
        """Set the token layouts of both sides; where they are `alike` no rows are selected."""
        self._layouts = (golden, mine)
        self._tokens = (golden, mine) if golden is not None and mine is not None and not alike else None

    def cut(self, last_rows: Iterable[tuple[Node, Slot]]) -> None:
        """Set the tensors of which a side has the last row of each sequence alone."""
        self._last_rows = frozenset(last_rows)

    @property
    def by_tokens(self) -> bool:
        """Whether one side holds other tokens in this step than the other, or in another order."""
        return self._tokens is not None and self._tokens[0].contexts is not None

    @property
    def tokens(self) -> tuple[TokenLayout | None, TokenLayout | None]:
        """The token layouts of golden and mine, where they are not alike."""
        return self._tokens or (None, None)

    def rank_groups(self) -> list[tuple[Sequence[Rank], Sequence[Rank], int | None]]:
        """The ranks that meet: one by one for equal counts, all at once otherwise. Ranks without tensors on
        one side do not meet, unless none would.

        Each entry is (golden ranks, mine ranks, rank number or `None` when merged or alone).
        """
        golden, mine = self.golden.dump.ranks, self.mine.dump.ranks
        if len(golden) != len(mine) or len(mine) == 1:
            return [(golden, mine, None)]
        met = list(zip(golden, mine, itertools.count()))
        filled = [group for group in met if self.golden.holds(group[0]) and self.mine.holds(group[1])]
        return [([golden_rank], [mine_rank], number) for golden_rank, mine_rank, number in filled or met]

    def groups_of(self, match: Match) -> list[tuple[Sequence[Rank], Sequence[Rank], int | None]]:
        """The ranks that meet in a match: all at once where only one side has summands on its ranks, or its
        tokens split over them; else each meets its own, without padding."""
        groups = self.rank_groups()
        if len(groups) == 1:
            return groups
        ranks = self.golden.dump.ranks, self.mine.dump.ranks
        refs = self.golden.refs(match.golden, ranks[0]), self.mine.refs(match.mine, ranks[1])
        ends = (match.golden, match.mine)
        splits = list(map(self._splits.of, ends, refs, refs[::-1], self._layouts))
        kinds = match.golden_view.kind, match.mine_view.kind
        shapes = [[header and header.shape for header in map(readable, side)] for side in refs]
        if any(splits) and (self._tokens is not None or shapes[0] != shapes[1] or "residual" in kinds):
            return [(*ranks, None)]
        if splits[0] is not None and splits[0] == splits[1]:
            self._splits.cut(refs, splits[0])
        if "row_parallel" not in kinds:
            return groups
        return [(*ranks, None)] if len(set(map(all_equal, refs))) > 1 else groups

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
            steps = (self.golden, self.mine)
            return None if self.by_tokens else of_experts(golden, mine, match.experts, steps, self.tokens)
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

    def _view(self, export: Export, rule: ViewRule, side: OnRanks, partner: OnRanks) -> View | None:
        if self._modules and rule.kind in ("part", "own_columns"):
            return columns(export, rule, side, partner)
        if rule.span is not None:
            return rule.span
        if rule.kind == "whole" and (export.node, export.slot) in self._last_rows:
            return LastToken()
        if rule.kind in ("row_parallel", "residual"):
            return of_summands(export, rule, side, self._splits)
        if rule.kind == "table":
            return TableRows(self._table_start, rule.index if rule.index >= 0 else None)
        if rule.kind in BY_TENSORS:
            return by_tensors(rule, side, partner)
        if rule.kind == "heads_of":
            return Heads(rule.index)
        if rule.kind == "cache_heads":
            return CacheTail(rule.index)
        times = self._batches[0 if side[0] is self.golden else 1]
        return BY_ITSELF.get(rule.kind, Repeated(times) if times > 1 else Whole())

    def _have_other_weights(self, match: Match) -> bool:
        """Whether both dumps describe the weights of the modules, and these are unrelated."""
        digests = []
        for side, end in ((self.golden, match.golden), (self.mine, match.mine)):
            saved = side.dump.weights(side.dump.ranks[0]).get(f"{end.node.path}.weight")
            digests.append(None if saved is None else saved.digest)
        golden, mine = digests
        if golden is None or mine is None or golden.shape != mine.shape:
            return False
        return golden.distance(mine) > UNRELATED

    def refusal(self, match: Match) -> str:
        """The reason why a match cannot be compared, judging by headers; empty when it can.

        A file that cannot be read is no reason: its pair is made, and its test fails. Nor is a tensor that
        only some ranks dumped: the plan then names the ranks.
        """
        groups = self.groups_of(match)
        golden_ranks, mine_ranks, _ = groups[0]
        try:
            operands = next(filter(None, (self.operands(match, *group[:2]) for group in groups)), None)
            alone = operands is None and self.operands(match, golden_ranks[:1], mine_ranks[:1]) is not None
        except Incomparable as refusal:
            return str(refusal)
        if alone:
            return ""
        if operands is None:
            return "one of the tensors was not dumped"
        if match.policy in (IN_SEQUENCE, BY_FLOW) and self._have_other_weights(match):
            return "their weights have nothing to do with each other"
        from .reconcile import agree

        try:
            return agree(*operands)
        except AccError:
            return ""


def all_equal(refs: Sequence[TensorRef]) -> bool:
    """Whether files hold the same bytes, by their checksums; files without one count as equal."""
    if len(refs) < 2:
        return True
    from ..dumps.modules import stored_tensor

    saved = [stored_tensor(ref) for ref in refs]
    return len({tensor.crc32 for tensor in saved if tensor is not None}) <= 1


def _operand(
    export: Export,
    refs: tuple[TensorRef, ...],
    view: View,
    scales: tuple[tuple[TensorRef, TensorRef | None], ...],
    side: DumpStep,
) -> Operand:
    node = export.node
    onward = tuple(side.refs(onward_export, side.dump.ranks) for onward_export in export.onward)
    slots_by = side.refs(export.slots_by, side.dump.ranks)[: len(refs)] if export.slots_by is not None else ()
    return Operand(
        node.path,
        node.name,
        node.op_type,
        str(export.slot),
        refs,
        view,
        scales,
        onward=onward if all(onward) else (),
        slots_by=slots_by,
    )


_ALIKE = 0.98
"""Share of tokens whose choice must be the largest of their logits; equal ones may swap."""


def of_experts(
    golden: Operand,
    mine: Operand,
    rule: ExpertRule,
    sides: tuple[DumpStep, DumpStep],
    tokens: tuple[TokenLayout | None, TokenLayout | None],
) -> tuple[Operand, Operand] | None:
    """The operands with the rows that they hold; `None` where the routers do not tell."""
    chosen = [_first(side, export) for side, export in zip(sides, rule.choices)]
    if chosen[0] is None or chosen[1] is None:
        return None
    logits = [export.form == "largest" for export in rule.choices]
    count = _count((golden, mine), (chosen[0], chosen[1]), rule, logits)
    if not count or not _may_be_largest(rule, sides, chosen, logits):
        return None
    selected = [Selected(ref, flag) for ref, flag in zip(chosen, logits) if ref is not None]
    picked = []
    for number, (side, operand) in enumerate(zip(sides, (golden, mine))):
        indices = tuple(ref for export in rule.indices[number] if (ref := _first(side, export)) is not None)
        experts = rule.experts[number], rule.experts[1 - number]
        name = ("golden", "mine")[number]
        pick = ExpertPick(*tokens, name, selected[0], selected[1], count, *experts, indices)
        picked.append(replace(operand, experts=pick))
    return picked[0], picked[1]


def _first(side: DumpStep, export: Export) -> TensorRef | None:
    refs = side.refs(export, side.dump.ranks[:1])
    return refs[0] if refs else None


def _count(
    operands: tuple[Operand, Operand],
    chosen: tuple[TensorRef, TensorRef],
    rule: ExpertRule,
    logits: Sequence[bool],
) -> int:
    """The number of experts of a token, by the choices or by the rows of all experts; 0 where neither
    tells."""
    shapes = [ref.header().shape for ref in chosen]
    counts = [shape[-1] for shape, flag in zip(shapes, logits) if not flag and shape]
    for shape, operand, expert in zip(shapes, operands, rule.experts):
        rows = operand.refs[0].header().shape[:1]
        tokens = math.prod(shape[:-1])
        if expert is None and rows and shape and tokens:
            counts.append(rows[0] // tokens)
    return counts[0] if counts else 0


def _may_be_largest(
    rule: ExpertRule,
    sides: tuple[DumpStep, DumpStep],
    chosen: Sequence[TensorRef | None],
    logits: Sequence[bool],
) -> bool:
    """Whether the largest logits are the choice, by the side that has both; `True` where both have the
    same."""
    for number, router in enumerate(rule.routers):
        ids, values = chosen[number], None if router is None else _first(sides[number], router)
        if logits[1 - number] and not logits[number]:
            return ids is not None and values is not None and _chooses_largest(ids, values)
    return True


def _chooses_largest(chosen: TensorRef, logits: TensorRef) -> bool:
    ids, values = chosen.open().long(), logits.open().float()
    ids, values = ids.reshape(-1, ids.shape[-1]), values.reshape(-1, values.shape[-1])
    if len(ids) != len(values) or ids.shape[1] > values.shape[1]:
        return False
    largest = values.topk(ids.shape[1], -1).indices.sort(-1).values
    return float((largest == ids.sort(-1).values).all(-1).float().mean()) >= _ALIKE


Layouts = tuple[TokenLayout, TokenLayout]
"""The token layouts of golden and mine in a step, where both are known."""


def of_tokens(golden: Operand, mine: Operand, layouts: Layouts) -> tuple[Operand, Operand]:
    """The operands with the rows of the tokens that both sides have; with one row a sequence where one side
    holds no more.

    Raises `Incomparable` where the steps hold other tokens, and a tensor has no row for each.
    """
    single_row = isinstance(golden.view, LastToken) or isinstance(mine.view, LastToken)
    if layouts[0].contexts is not None and layouts[1].contexts is not None:
        headers = readable(golden.refs[0]), readable(mine.refs[0])
        if headers[0] is None or headers[1] is None:
            return golden, mine  # its test says what is wrong with the file
        shapes = _joined_shape(golden, headers[0].shape), _joined_shape(mine, headers[1].shape)
        forms = forms_of(shapes, layouts, logits=single_row)
        picks = (TokenPick(layouts[0], layouts[1], name, forms=forms) for name in ("golden", "mine"))
        first, second = (replace(operand, tokens=pick) for operand, pick in zip((golden, mine), picks))
        return first, second
    last = single_row and not all(
        has_token_rows(_joined_shape(operand, operand.refs[0].header().shape), layout.shape)
        for operand, layout in zip((golden, mine), layouts)
    )
    return (
        replace(golden, tokens=TokenPick(layouts[0], layouts[1], "golden", last)),
        replace(mine, tokens=TokenPick(layouts[0], layouts[1], "mine", last)),
    )


def _joined_shape(operand: Operand, shape: Shape) -> Shape:
    """The shape of a tensor whose pieces on ranks are joined."""
    split = operand.split
    return shape if split is None else (*shape[: split.axis], split.rows, *shape[split.axis + 1 :])
