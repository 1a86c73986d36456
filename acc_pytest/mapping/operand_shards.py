"""`OperandShards`: the tensors of one operand on their way to a comparison."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ..base.imports import torch
from ..base.reason import Reason
from ..errors import Incomparable
from ..tensors.eval_log import printed
from ..tensors.header import PRINTS
from ..tensors.read_source import element_type, opened_source
from ..tensors.ref import TensorRef
from ..tensors.source import Source
from .choices import largest
from .pair import Operand
from .shapes import Merge, Shape, merge_rule, rows_and_width, same_order, uneven_rows
from .token_order import has_heads_first, joined, pick_tokens, picked_rows, token_order, unpicked_rows
from .views import (
    ExpertPick,
    HeadPart,
    Largest,
    LastToken,
    OwnPart,
    Part,
    Permuted,
    RankSum,
    RowSpan,
    Selected,
    SlotRows,
    TokenSplit,
    TopPlaces,
    Turned,
    View,
    Whole,
    WithBias,
    WithResidual,
)


@dataclass(slots=True)
class OperandShards:
    """The shards of one operand, in rank order, and how they are to be looked at.

    `part_sizes` are the sizes of the other side's pieces: elements for a `Part`, the width of a head's
    piece for a `HeadPart`. `bias` is the bias that every shard lacks, for a `WithBias`, `residual` the tensor
    to be added, for a `WithResidual`, `angles` are the tables of a `Turned`. `gathered` says that an operator
    collected the pieces of all ranks: `[ranks, ...]`, `settled` that the shards are summands by their values.
    `note` names the treatment of the shards.
    """

    shards: list[torch.Tensor]
    view: View
    part_sizes: tuple[int, ...] = ()
    bias: tuple[torch.Tensor, ...] = ()
    gathered: bool = False
    residual: tuple[torch.Tensor, ...] = ()
    angles: tuple[torch.Tensor, ...] = ()
    settled: bool = False
    note: str = ""

    @property
    def shape(self) -> Shape:
        return tuple(self.shards[0].shape)

    @property
    def count(self) -> int:
        return len(self.shards)

    @property
    def summed(self) -> bool:
        """Whether the shards are partial results, which together are their sum."""
        return isinstance(self.view, RankSum) or (isinstance(self.view, WithBias) and self.view.summed)

    def describe(self) -> str:
        shape = list(self.shape)
        return Reason("{} on each of {} ranks", shape, self.count) if self.count > 1 else str(shape)

    def rule(self, target: Shape) -> Merge | None:
        """The rule by which the shards make up a tensor of shape `target`, `None` if there is none."""
        if len({shard.shape for shard in self.shards}) > 1:
            return uneven_rows([tuple(shard.shape) for shard in self.shards], target)
        if self.summed and self.count > 1:
            return Merge("sum") if same_order(self.shape, target) else None
        return merge_rule(self.shape, self.count, target)

    def side_by_side(self, width: int) -> OperandShards:
        """A gathered side with its pieces side by side, if that is `width` wide; else the side unchanged."""
        shape = self.shape
        if not self.gathered or len(shape) < 3 or shape[0] != self.count or shape[-1] * self.count != width:
            return self
        return replace(self, shards=[shard.movedim(0, -2).flatten(-2) for shard in self.shards])


def as_they_lie(golden: Operand, mine: Operand) -> tuple[Source, Source] | None:
    """Two operands that are compared unchanged, as most of a dump is; `None` where one is to be cut, merged
    or scaled, or may be. Raises what opening a file raises."""
    if not lie_alike(golden, mine):
        return None
    first, second = opened_source(golden.refs[0]), opened_source(mine.refs[0])
    kinds = {element_type(first).name, element_type(second).name}
    if first.shape != second.shape or (len(kinds) > 1 and "int8" in kinds):
        return None
    return first, second


def lie_alike(golden: Operand, mine: Operand) -> bool:
    """Whether both operands are one tensor of one shape each, of which nothing is cut, merged or moved.

    Raises `FormatError` when a header cannot be read.
    """
    if not (_is_plain(golden) and _is_plain(mine)):
        return False
    return golden.refs[0].header().shape == mine.refs[0].header().shape


def _is_plain(operand: Operand) -> bool:
    """Whether an operand is one tensor that its own side does not change."""
    plain_view = isinstance(operand.view, (Whole, LastToken))
    if len(operand.refs) != 1 or not plain_view or operand.printed:
        return False
    return not (operand.tokens or operand.split or operand.experts or operand.onward or operand.slots_by)


def rows_in(operand: Operand, shape: Shape) -> Literal["all", "last", ""]:
    """The rows of an operand's one tensor that a comparison of this shape has, in their order: all, or the
    last ones of the dimension before the last; empty for others, and where there is but one."""
    whole = tuple(operand.refs[0].header().shape)
    if not _is_plain(replace(operand, tokens=None)) or len(whole) < 2 or whole[-2] < 2:
        return ""
    picked, size, count = None, math.prod(whole), whole[-2]
    if operand.tokens is not None:
        picked = picked_rows(torch.empty(whole, dtype=torch.uint8, device="meta"), operand.tokens)
    last = torch.arange(count - 1, math.prod(whole[:-1]), count)
    if shape in (whole, whole[1:]) and math.prod(shape) == size:
        return "all" if picked is None or torch.equal(picked[1], torch.arange(len(picked[1]))) else ""
    is_last = math.prod(shape) * count == size and (picked is None or torch.equal(picked[1], last))
    return "last" if is_last else ""


def open_shards(operand: Operand) -> OperandShards:
    """An operand with its files mapped.

    Raises what opening a file raises, and `Incomparable` for slots that are not in their cache.
    """
    return shards_of(operand, [values_of(ref) for ref in operand.refs])


def values_of(ref: TensorRef) -> torch.Tensor:
    """A tensor; of one in a log what is printed, in float64, beside elements of `eval_log.NOT_PRINTED`."""
    return printed(ref) if ref.header().payload == PRINTS else ref.open()


def shards_of(operand: Operand, shards: list[torch.Tensor]) -> OperandShards:
    """An operand with these tensors in place of its files, one for each rank. Raises as `open_shards`."""
    if isinstance(operand.view, SlotRows):
        shards = [_stored_rows(cache, ref.open()) for cache, ref in zip(shards, operand.view.slots)]
    bias = operand.view.bias if isinstance(operand.view, WithBias) else ()
    added: list[torch.Tensor] = []
    if isinstance(operand.view, WithResidual):
        added = _of_ranks([ref.open() for ref in operand.view.residual], operand.view.split)
    viewed = _viewed(shards, operand, tuple(ref.open() for ref in bias))
    return replace(
        viewed,
        residual=tuple(_of_tokens(tensor, operand) for tensor in added),
        angles=_angles(operand, shards[0]),
    )


def shards_of_shapes(operand: Operand) -> OperandShards:
    """An operand as its headers describe it: tensors without values. Raises `FormatError` for a header."""
    shards = [torch.empty(ref.header().shape, dtype=torch.uint8, device="meta") for ref in operand.refs]
    if isinstance(operand.view, SlotRows):
        counts = [ref.header().numel for ref in operand.view.slots]
        shards = [_places(cache).new_empty((n, *cache.shape[2:])) for cache, n in zip(shards, counts)]
    return _viewed(shards, operand, ())


def _viewed(shards: list[torch.Tensor], operand: Operand, bias: tuple[torch.Tensor, ...]) -> OperandShards:
    """The shards as far as the view needs nothing of the other side."""
    shapes = [tuple(shard.shape) for shard in shards]
    note = operand.split.describe(shapes) if operand.split is not None else ""
    shards = [_of_tokens(shard, operand) for shard in _of_ranks(shards, operand.split)]
    if operand.slots_by:
        shards = [_in_slots(shard, ref, operand) for shard, ref in zip(shards, operand.slots_by)]
    if isinstance(operand.view, (Largest, TopPlaces)):
        shards = [largest(shard, operand.view) for shard in shards]
    elif isinstance(operand.view, RowSpan):
        shards = [_span(shard, operand.view) for shard in shards]
    elif isinstance(operand.view, OwnPart):
        shards = [_piece_columns(shard, operand.view) for shard in shards]
    elif isinstance(operand.view, Permuted):
        shards = [_permuted(shard, operand.view) for shard in shards]
    gathered = operand.op_type == "AllGatherOperation" and len(operand.refs) > 1
    return OperandShards(shards, operand.view, _part_sizes(operand), bias, gathered, note=note)


def _part_sizes(operand: Operand) -> tuple[int, ...]:
    if isinstance(operand.view, Part):
        return tuple(ref.header().numel for ref in operand.view.widths_of)
    if isinstance(operand.view, HeadPart):
        return tuple(ref.header().shape[-1] for ref in operand.view.widths_of)
    return ()


def _of_ranks(shards: list[torch.Tensor], split: TokenSplit | None) -> list[torch.Tensor]:
    return shards if split is None else joined(shards, split)


def _of_tokens(shard: torch.Tensor, operand: Operand) -> torch.Tensor:
    if operand.experts is not None:
        return pick_expert_rows(shard, operand.experts)
    return shard if operand.tokens is None else pick_tokens(shard, operand.tokens)


def _in_slots(shard: torch.Tensor, ref: TensorRef, operand: Operand) -> torch.Tensor:
    """The columns of each row sorted by the choices of a router."""
    chosen = shard if shard.device.type == "meta" else _of_tokens(ref.open(), operand)
    if chosen.shape != shard.shape:
        raise Incomparable(
            Reason("choices of shape {} are not those of {}", list(chosen.shape), list(shard.shape))
        )
    return shard if shard.device.type == "meta" else shard.gather(-1, chosen.long().argsort(-1))


def _angles(operand: Operand, turned: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The position tables of a `Turned`, with a row for each of `turned`."""
    if not isinstance(operand.view, Turned):
        return ()
    layout = tuple(turned.shape[:2]) if turned.dim() > 2 else tuple(turned.shape[:1])
    if operand.tokens is not None:
        layout = operand.tokens.layout.shape
    tables = operand.view.cos.open(), operand.view.sin.open()
    if tables[0].is_complex():
        tables = _twice(tables[0].real), _twice(tables[0].imag)
    return tuple(_of_tokens(_for_rows(table, layout), operand).flatten(0, -2) for table in tables)


def _twice(angles: torch.Tensor) -> torch.Tensor:
    """One number for each pair of elements, as halves."""
    return torch.cat((angles, angles), -1)


def _for_rows(table: torch.Tensor, layout: tuple[int, ...]) -> torch.Tensor:
    """A position table for tokens in `layout`: sequences of one batch may share its rows."""
    positions, width = rows_and_width(tuple(table.shape))
    rows = math.prod(layout)
    if not positions or rows % positions:
        raise Incomparable(
            Reason("a position table of shape {} has no row for each of {} tokens", list(table.shape), rows)
        )
    repeated = table.reshape(1, positions, width).expand(rows // positions, positions, width)
    return repeated.reshape(*layout, width)


def _span(shard: torch.Tensor, view: RowSpan) -> torch.Tensor:
    end = view.start + max((first + count for _, first, count in view.order), default=view.rows)
    if not shard.dim() or shard.shape[-1] < end:
        raise Incomparable(
            Reason("a tensor of shape {} has no columns {}:{}", list(shard.shape), view.start, end)
        )
    return shard[..., view.places().to(shard.device)] if view.order else shard[..., view.start : end]


def _piece_columns(shard: torch.Tensor, view: OwnPart) -> torch.Tensor:
    rows, packed = rows_and_width(tuple(shard.shape))
    widths = [ref.header().numel // rows if rows else 0 for ref in view.widths_of]
    if sum(widths) != packed:
        raise Incomparable(
            Reason("a packed tensor of shape {} is not made of parts {} wide", list(shard.shape), widths)
        )
    start = sum(widths[: view.index])
    return shard.reshape(rows, packed)[:, start : start + widths[view.index]]


def _permuted(shard: torch.Tensor, view: Permuted) -> torch.Tensor:
    if shard.dim() != len(view.order):
        raise Incomparable(
            Reason("a tensor of shape {} cannot be turned to {}", list(shard.shape), list(view.order))
        )
    return shard.permute(view.order)


def _places(cache: torch.Tensor) -> torch.Tensor:
    """A paged cache as `[places, ...]`."""
    if cache.dim() < 3:
        raise Incomparable(Reason("not a paged cache of blocks: {}", list(cache.shape)))
    return cache.flatten(0, 1)


def _stored_rows(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The rows at `slots`, copied: they lie anywhere in the cache, one for each token of this step."""
    places, rows = _places(cache), slots.reshape(-1).long()
    rows = rows[rows >= 0]
    if rows.numel() and int(rows.max()) >= places.shape[0]:
        raise Incomparable(
            Reason("slot {} is not in a paged cache of {} places", int(rows.max()), places.shape[0])
        )
    return places.index_select(0, rows)


HUGE = 2.0**64
"""The least size of a number whose square is beyond float32, so that a norm of its row is Inf."""
EXTREMES = ("NaN", "Inf", Reason("values beyond {:.2g}", HUGE))


def extreme(nan: bool, largest: float) -> str:
    """The one of `EXTREMES` that a tensor has, by whether it holds NaN and by its largest size; or empty."""
    return EXTREMES[0] if nan else EXTREMES[1] if largest == math.inf else EXTREMES[2] * (largest >= HUGE)


def unjudged_values(operand: Operand) -> str:
    """The first of `EXTREMES` in rows of padding, and of tokens that only this side has; else empty. No other
    rows are read."""
    split, tokens = operand.split, operand.tokens
    if (split is None and tokens is None) or operand.experts or isinstance(operand.view, SlotRows):
        return ""
    if operand.printed:
        return ""  # what is not printed is no row
    shards = [ref.open() for ref in operand.refs]
    rows: list[torch.Tensor | None] = []
    if split is not None:
        starts = itertools.accumulate((s.shape[split.axis] * split.joined for s in shards), initial=0)
        ends = (max(0, split.rows - start) for start in starts)
        rows = [shard.transpose(0, split.axis)[end:] for shard, end in zip(shards, ends)]
    if tokens is not None:
        rows += [unpicked_rows(shard, tokens) for shard in _of_ranks(shards, split)]
    extrema = [values.float().aminmax() for values in rows if values is not None and values.numel()]
    kinds = {extreme(bool(low.isnan()), max(-float(low), float(high))) for low, high in extrema}
    return next((kind for kind in EXTREMES if kind in kinds), "")


# Rows of tensors inside experts: each is a token at one of its experts, in an order of the program's own.
#
# A kernel for all experts sorts the rows by expert, or leaves them by token; the module of one expert has
# the rows of that expert. Rows meet by token and expert. The values tell which order a tensor has, out of
# the usual ones and those of index tensors beside it.


Rows = tuple["torch.Tensor", "torch.Tensor"]
"""The token of each row, and its expert; the token is -1 where the row is padding."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The experts of each token of one side, and the place of each token among those that both sides have."""

    experts: torch.Tensor
    places: torch.Tensor


def ways_of(golden: Operand, mine: Operand) -> Iterator[tuple[Operand, Operand]]:
    """The operands in every way that their rows may be read, the likeliest first: unchanged, where there is
    one way only."""
    if golden.experts is None:
        yield from itertools.product(_with_heads(golden), _with_heads(mine))
        return
    for first, second in sorted(itertools.product(_numbered(golden), _numbered(mine)), key=sum):
        yield _in_order(golden, first), _in_order(mine, second)


def _with_heads(side: Operand) -> Iterator[Operand]:
    """A side whose heads and tokens may be exchanged, where there are as many."""
    yield side
    if side.tokens is not None:
        shape = side.refs[0].header().shape
        if has_heads_first(shape, side.tokens.layout) and shape[1] == shape[2]:
            yield replace(side, tokens=replace(side.tokens, heads_first=True))


def _numbered(side: Operand) -> range:
    shape = side.refs[0].header().shape
    return range(len(_orders(replace(side.experts, order=0), shape[0])) if side.experts and shape else 0)


def _in_order(side: Operand, order: int) -> Operand:
    return side if side.experts is None else replace(side, experts=replace(side.experts, order=order))


def pick_expert_rows(shard: torch.Tensor, pick: ExpertPick) -> torch.Tensor:
    """The rows of the tokens and experts that both sides have, by token, and of one token by expert.

    Raises `Incomparable` where there is no row for each token and expert.
    """
    if shard.device.type == "meta":
        return shard.new_empty((1, *shard.shape[1:]))
    if pick.order >= len(orders := _orders(replace(pick, order=0), len(shard))):
        raise Incomparable(
            Reason("a tensor of shape {} has no row for each token and expert", list(shard.shape))
        )
    token, expert = orders[pick.order]
    choice = _chosen(pick, pick.side)
    partner = _chosen(pick, "mine" if pick.side == "golden" else "golden")
    base = int(max(choice.experts.max(), partner.experts.max())) + 1
    partner_keys = (partner.places[:, None] * base + partner.experts)[partner.places >= 0].flatten()
    keys = torch.where(token >= 0, choice.places[token.clamp(min=0)] * base + expert, -1)
    keys = torch.where(choice.places[token.clamp(min=0)] >= 0, keys, -1)
    selected = torch.isin(keys, partner_keys) & (keys >= 0)
    for number in (pick.expert, pick.partner_expert):
        selected &= (expert == number) if number is not None else torch.ones_like(selected)
    rows = selected.nonzero()[:, 0]
    return shard.index_select(0, rows[keys[rows].argsort()])


@functools.lru_cache(maxsize=32)
def _orders(pick: ExpertPick, rows: int) -> list[Rows]:
    chosen = _chosen(pick, pick.side).experts
    tokens, count = chosen.shape
    if pick.expert is not None:
        places = (chosen == pick.expert).nonzero()
        by_slot = places[places[:, 1].argsort(stable=True)]
        row_tokens = [entries[:, 0] for entries in (places, by_slot) if len(entries) == rows]
        return [(token, torch.full_like(token, pick.expert)) for token in row_tokens]
    flat, numbers = chosen.flatten(), torch.arange(tokens * count)
    orders = [_of_index(ref, tokens, count, rows) for ref in pick.indices]
    by_slot = numbers.view(tokens, count).T.flatten()
    if rows == tokens * count:
        by_expert = [flat.argsort(stable=True), by_slot[flat[by_slot].argsort(stable=True)], flat.argsort()]
        orders.append([*by_expert, numbers])
    pairs: list[torch.Tensor] = []
    for pair in itertools.chain(*orders):
        if not any(torch.equal(pair, earlier) for earlier in pairs):
            pairs.append(pair)
    return [(torch.where(pair < 0, -1, pair // count), flat[pair.clamp(min=0)]) for pair in pairs]


def _of_index(ref: TensorRef, tokens: int, count: int, rows: int) -> list[torch.Tensor]:
    """The possible orders of an index tensor: for each row the number of its pair of token and expert (by
    token, or by choice), -1 for padding; or for each pair the row."""
    index, total = ref.open().flatten().long(), tokens * count
    real = (index >= 0) & (index < total)
    if int(real.sum()) != total or len(index[real].unique()) != total:
        return []
    orders = []
    if len(index) >= rows:
        orders.append(torch.where(real, index, -1)[:rows])
    if rows == total == len(index):
        orders.append(index.argsort())
    by_choice = [torch.where(pairs < 0, -1, pairs % tokens * count + pairs // tokens) for pairs in orders]
    return [*orders, *by_choice]


@functools.lru_cache(maxsize=32)
def _of(selected: Selected, count: int) -> torch.Tensor:
    values = selected.ref.open()
    if not values.dim() or not values.numel():
        raise Incomparable(
            Reason("{}: a router's choice of shape {} chooses nothing", selected.ref.path, list(values.shape))
        )
    values = values.reshape(-1, values.shape[-1])
    return values.float().topk(min(count, values.shape[-1]), -1).indices if selected.logits else values.long()


def _chosen(pick: ExpertPick, side: str) -> _Chosen:
    experts = _of(pick.golden_chosen if side == "golden" else pick.mine_chosen, pick.count)
    order = None
    if pick.golden is not None and pick.mine is not None:
        order = token_order(pick.golden, pick.mine)
    if order is None:
        return _Chosen(experts, torch.arange(len(experts)))
    places = torch.full((len(experts),), -1)
    rows = order.rows[side]
    if len(rows) and int(rows.max()) >= len(experts):
        raise Incomparable(
            Reason("a router chose for {} tokens, and not for each of this step", len(experts))
        )
    places[rows] = torch.arange(len(rows))
    return _Chosen(experts, places)
