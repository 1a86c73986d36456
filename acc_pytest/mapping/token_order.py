"""Rows of two dumps that are one token: by token ids, masks, positions and lengths.

A batch of Hugging Face is `[batch, tokens]` with padding on either side; an engine puts sequences one after
the other, in an order of its own, and perhaps only what it had not cached. Sequences meet by their ids.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import Incomparable
from ..lazy_torch import torch
from .engine_views import TokenLayout, TokenPick
from .token_forms import ENDS, by_form, is_as_handed
from .token_sequences import TokenSequence, sequences_of


@dataclass(frozen=True, slots=True)
class TokenOrder:
    """Numbers of rows of both sides that belong together, the last of each sequence, and of the sequences."""

    rows: dict[str, torch.Tensor]
    last: dict[str, torch.Tensor]
    sequences: dict[str, torch.Tensor]
    counts: dict[str, int]


def pick_tokens(shard: torch.Tensor, tokens: TokenPick) -> torch.Tensor:
    """The rows of a tensor that count, as `[rows, ...]`; what has no row for each token stays as it is."""
    layout = tokens.layout
    if tokens.forms is not None:
        return _by_forms(shard, layout, tokens, tokens.forms)
    order = token_order(tokens.golden, tokens.mine)
    if order is None:
        return shard
    by_token = rows_by_token(shard, layout, tokens.heads_first)
    if by_token is not None:
        return _select(by_token, (order.last if tokens.last else order.rows)[tokens.side])
    shape = tuple(shard.shape)
    if (
        tokens.last
        and len(shape) > 1
        and shape[0] == order.counts[tokens.side]
        and (len(shape) == 2 or shape[1] == 1)
    ):
        return _select(shard, order.sequences[tokens.side])
    return shard


def _by_forms(
    shard: torch.Tensor, layout: TokenLayout, tokens: TokenPick, forms: tuple[str, str]
) -> torch.Tensor:
    form = forms[tokens.side == "mine"]
    rows = context_rows(tokens.golden, tokens.mine, *(name == ENDS for name in forms))[tokens.side]
    if not len(rows):
        raise Incomparable("the tensors have no token in common")
    return _select(shard if form == ENDS else by_form(shard, layout, form), rows)


@functools.lru_cache(maxsize=64)
def context_rows(
    golden: TokenLayout, mine: TokenLayout, golden_ends: bool = False, mine_ends: bool = False
) -> dict[str, torch.Tensor]:
    """Numbers of rows of both sides with equal contexts, in the order of mine; a side that holds `ends` has
    one row for each of its sequences, which is that of its last token."""
    theirs = dict(reversed(list(_contexts(golden, golden_ends))))
    pairs = [(theirs[context], row) for context, row in _contexts(mine, mine_ends) if context in theirs]
    return _tensors({side: [pair[number] for pair in pairs] for number, side in enumerate(_SIDES)})


def _contexts(layout: TokenLayout, ends: bool) -> Iterator[tuple[int, int]]:
    """Contexts with their rows."""
    for number, stretches in enumerate(layout.contexts or ()):
        if ends and stretches:
            yield stretches[-1].context + stretches[-1].length - 1, number
        elif not ends:
            for row, context, length in stretches:
                yield from ((context + place, row + place) for place in range(length))


def rows_by_token(
    tensor: torch.Tensor, layout: TokenLayout, heads_first: bool = False
) -> torch.Tensor | None:
    """A tensor with one row for each token, `None` where it has none."""
    shape = tuple(tensor.shape)
    if heads_first and has_heads_first(shape, layout):
        return tensor.transpose(1, 2).flatten(0, 1)
    count = math.prod(layout.shape)
    if is_as_handed(shape, layout):
        return tensor.transpose(0, 1).flatten()
    if shape[: len(layout.shape)] == layout.shape and len(layout.shape) > 1:
        return tensor.flatten(0, len(layout.shape) - 1)
    if has_heads_first(shape, layout):
        return tensor.transpose(1, 2).flatten(0, 1)
    if not shape or not count:
        return None
    if shape[0] == count:
        return tensor
    if len(shape) > 2 and shape[:2] == (1, count):
        return tensor[0]
    # Heads one below the other, as norms of heads are called by engines.
    return tensor.reshape(count, -1) if len(shape) == 2 and shape[0] % count == 0 else None


def has_heads_first(shape: tuple[int, ...], layout: TokenLayout) -> bool:
    """Whether a tensor may be `[batch, heads, tokens, size]`."""
    return len(shape) == 4 and (shape[0], shape[2]) == layout.shape


def _select(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a tensor: itself or a part of it where that is what they are, else a copy."""
    count = len(rows)
    if tensor.device.type == "meta":
        return tensor.new_empty((count, *tensor.shape[1:]))
    first = int(rows[0]) if count else 0
    if torch.equal(rows, torch.arange(first, first + count)):
        return tensor[first : first + count]
    return tensor.index_select(0, rows)


@functools.lru_cache(maxsize=16)
def token_order(golden: TokenLayout, mine: TokenLayout) -> TokenOrder | None:
    """`None` where the dumps do not tell, or do not hold the same tokens."""
    met = _met(golden, mine)
    if met is None:
        return None
    pairs, counts = met
    rows = {side: [row for pair in pairs for row in pair[number][1]] for number, side in enumerate(_SIDES)}
    last = {side: [pair[number][1][-1] for pair in pairs] for number, side in enumerate(_SIDES)}
    numbers = {side: [pair[number][0] for pair in pairs] for number, side in enumerate(_SIDES)}
    return TokenOrder(_tensors(rows), _tensors(last), _tensors(numbers), counts)


def _tensors(rows: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    return {side: torch.tensor(numbers) for side, numbers in rows.items()}


_SIDES = ("golden", "mine")
_Met = tuple[int, Sequence[int]]
"""The number of a sequence and its rows that both sides have."""


def _met(golden: TokenLayout, mine: TokenLayout) -> tuple[list[tuple[_Met, _Met]], dict[str, int]] | None:
    goldens, mines = sequences_of(golden, mine), sequences_of(mine, golden)
    if not goldens or not mines:
        return None
    counts = {"golden": len(goldens), "mine": len(mines)}
    before = _as_before(golden, mine, counts)
    pairs: list[tuple[_Met, _Met]] = []
    free = dict(enumerate(goldens))
    equal = _equal(goldens, mines)
    pool = [number for number in free if number not in equal.values()]
    for number, sequence in enumerate(mines):
        options = [before[number]] if before is not None else [equal[number]] if number in equal else pool
        for option in options:
            rows = _common(free[option], sequence) if option in free else None
            if rows is not None:
                del free[option]
                pairs.append(((option, rows[0]), (number, rows[1])))
                break
        else:
            # Batches of captured graphs end in rows that are no tokens.
            return None if free else (pairs, counts)
    return None if free else (pairs, counts)


def _equal(goldens: Sequence[TokenSequence], mines: Sequence[TokenSequence]) -> dict[int, int]:
    """The sequence of golden that has just the tokens of one of mine; a piece of another may, too."""
    numbers: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, sequence in enumerate(goldens):
        numbers[tuple(sequence.ids)].append(number)
    return {
        number: equals.pop(0)
        for number, sequence in enumerate(mines)
        if sequence.ids and (equals := numbers[tuple(sequence.ids)])
    }


def _as_before(golden: TokenLayout, mine: TokenLayout, counts: dict[str, int]) -> dict[int, int] | None:
    """The sequence of golden that each of mine is by the prefill, where that had as many."""
    if golden.before is None or mine.before is None:
        return None
    order = token_order(golden.before, mine.before)
    if order is None or order.counts != counts:
        return None
    return dict(zip(order.sequences["mine"].tolist(), order.sequences["golden"].tolist()))


def _common(golden: TokenSequence, mine: TokenSequence) -> tuple[Sequence[int], Sequence[int]] | None:
    """The rows of the tokens that two sequences have in common, where one is a piece of the other."""
    if len(golden.rows) >= len(mine.rows):
        start = _place(golden, mine)
        return None if start is None else (golden.rows[start : start + len(mine.rows)], mine.rows)
    start = _place(mine, golden)
    return None if start is None else (golden.rows, mine.rows[start : start + len(golden.rows)])


def _place(longer: TokenSequence, shorter: TokenSequence) -> int | None:
    """The row where the shorter one begins: at its position, at the end (cached before, padded), or first."""
    difference = len(longer.rows) - len(shorter.rows)
    if not longer.ids or not shorter.ids:
        return 0 if not difference else None
    ids = list(shorter.ids)
    places = [shorter.start - (longer.start or 0)] if shorter.start is not None else []
    for start in dict.fromkeys([*places, difference, 0]):
        if 0 <= start <= difference and list(longer.ids[start : start + len(ids)]) == ids:
            return start
    return None
