"""Rows of tensors inside experts: each is a token at one of its experts, in an order of the program's own.

A kernel for all experts sorts the rows by expert, or leaves them by token; the module of one expert has the
rows of that expert. Rows meet by token and expert. The values tell which order a tensor has, out of the usual
ones and those of index tensors beside it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import Incomparable
from ..lazy_torch import torch
from ..tensors.ref import TensorRef
from .engine_views import ExpertPick, Selected
from .pair import Operand
from .token_order import has_heads_first, token_order

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
        raise Incomparable(f"a tensor of shape {list(shard.shape)} has no row for each token and expert")
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
    """The orders that a tensor of so many rows may have."""
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
            f"{selected.ref.path}: a router's choice of shape {list(values.shape)} chooses nothing"
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
        raise Incomparable(f"a router chose for {len(experts)} tokens, and not for each of this step")
    places[rows] = torch.arange(len(rows))
    return _Chosen(experts, places)
