"""Rows of two dumps that are one token: by token ids, masks, positions and lengths.

A batch of Hugging Face is `[batch, tokens]` with padding on either side; an engine puts sequences one after
the other, in an order of its own, and perhaps only what it had not cached. Sequences meet by their ids.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..base.imports import torch
from ..base.reason import Reason
from ..errors import AccError, Incomparable, NoPayload
from ..tensors.ref import TensorRef
from .shapes import Shape
from .token_sequences import TokenSequence, sequences_of
from .views import TokenLayout, TokenPick, TokenSplit


@dataclass(frozen=True, slots=True)
class TokenOrder:
    """Numbers of rows of both sides that belong together, the last of each sequence, and of the sequences."""

    rows: dict[str, torch.Tensor]
    last: dict[str, torch.Tensor]
    sequences: dict[str, torch.Tensor]
    counts: dict[str, int]


def pick_tokens(shard: torch.Tensor, tokens: TokenPick) -> torch.Tensor:
    """The rows of a tensor that count, as `[rows, ...]`; what has no row for each token stays as it is."""
    picked = picked_rows(shard, tokens)
    return shard if picked is None else _select(*picked)


def unpicked_rows(shard: torch.Tensor, tokens: TokenPick) -> torch.Tensor | None:
    """The rows that `pick_tokens` leaves out of all steps; `None` where last tokens alone count or all do."""
    ends = tokens.last or (tokens.forms is not None and ENDS in tokens.forms)
    if ends or (picked := picked_rows(shard, tokens)) is None:
        return None
    by_token, rows = picked
    if tokens.forms is not None:  # what this step has not, another one may
        stretches = [stretch for several in tokens.layout.contexts or () for stretch in several]
        rows = torch.tensor([row for first, _, count in stretches for row in range(first, first + count)])
    rest = torch.ones(len(by_token), dtype=torch.bool).index_fill_(0, rows.long(), value=False)
    return by_token[rest]


def picked_rows(shard: torch.Tensor, tokens: TokenPick) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The tensor as `[tokens, ...]`, or `[sequences, ...]`, and the numbers of its rows that count; `None`
    where all of it does."""
    layout = tokens.layout
    if tokens.forms is not None:
        form = tokens.forms[tokens.side == "mine"]
        rows = context_rows(tokens.golden, tokens.mine, *(name == ENDS for name in tokens.forms))[tokens.side]
        if not len(rows):
            raise Incomparable("the tensors have no token in common")
        return shard if form == ENDS else by_form(shard, layout, form), rows
    order = token_order(tokens.golden, tokens.mine)
    if order is None:
        return None
    by_token = rows_by_token(shard, layout, tokens.heads_first)
    if by_token is not None:
        return by_token, (order.last if tokens.last else order.rows)[tokens.side]
    shape = tuple(shard.shape)
    if (
        tokens.last
        and len(shape) > 1
        and shape[0] == order.counts[tokens.side]
        and (len(shape) == 2 or shape[1] == 1)
    ):
        return shard, order.sequences[tokens.side]
    return None


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
        return _rows_of(tensor, layout, HEADS_FIRST)
    if is_as_handed(shape, layout) or (len(layout.shape) > 1 and shape[:2] == layout.shape):
        return _rows_of(tensor, layout, BATCH)
    if has_heads_first(shape, layout):
        return _rows_of(tensor, layout, HEADS_FIRST)
    return _rows_of(tensor, layout, FLAT) if _is_row(shape, math.prod(layout.shape)) else None


def _is_row(shape: Shape, count: int) -> bool:
    """Whether `count` tokens may be one dimension: first, behind a one, or with heads one below the other, as
    norms of heads are called by engines."""
    if not shape or not count:
        return False
    stacked = len(shape) == 2 and shape[0] % count == 0
    return stacked or shape[0] == count or (len(shape) > 2 and shape[:2] == (1, count))


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


# Forms of tensors: the dimensions that are those of the token layout of a step.


BATCH, FLAT, HEADS_FIRST, ENDS = "batch", "flat", "heads first", "ends"
"""`[batch, tokens, ...]`, `[rows, ...]`, `[batch, heads, tokens, ...]`, and one row for each sequence, which
is its last token."""
_MEET = {(BATCH, BATCH), (FLAT, FLAT), (BATCH, FLAT), (FLAT, BATCH), (HEADS_FIRST, HEADS_FIRST)}


def forms_of(
    shapes: tuple[Shape, Shape], layouts: tuple[TokenLayout, TokenLayout], *, logits: bool = False
) -> tuple[str, str]:
    """The forms of two tensors that are held to be one thing; `logits` may be wider on one side.

    Raises `Incomparable` where a tensor has no row for each token, or where it may have them in two ways.
    """
    candidates = _meeting(shapes, layouts)
    if _differ_in_dimension(candidates):
        raise Incomparable(Reason("{} may have their tokens in two dimensions", _shapes_text(shapes)))
    if candidates and HEADS_FIRST in candidates[0] and _has_columns_of_padding(shapes, layouts):
        raise Incomparable(
            Reason("{} have columns of tokens, some of which are padding", _shapes_text(shapes))
        )
    if candidates:
        return next((forms for forms in candidates if forms[0] == forms[1]), candidates[0])
    if logits or shapes[0][-1:] == shapes[1][-1:]:
        ends = _with_ends(shapes, layouts)
        if ends is not None:
            return ends
    raise Incomparable(
        Reason("the steps hold other tokens, and {} do not have a row for each", _shapes_text(shapes))
    )


def _meeting(shapes: tuple[Shape, Shape], layouts: tuple[TokenLayout, TokenLayout]) -> list[tuple[str, str]]:
    """The forms, of golden and of mine, in which both have as much for each token."""
    sides = [_forms(shape, layout) for shape, layout in zip(shapes, layouts)]
    pairs = [(golden, mine) for golden, mine in itertools.product(*sides) if (golden, mine) in _MEET]
    if _differ_in_dimension(pairs) or len(layouts[0].shape) == len(layouts[1].shape):
        sizes = [_per_token(shape, layout) for shape, layout in zip(shapes, layouts)]
        alike = [forms for forms in pairs if sizes[0][forms[0]] == sizes[1][forms[1]]]
        return alike or [forms for forms in pairs if forms[0] == forms[1] != HEADS_FIRST]
    return pairs


def _differ_in_dimension(pairs: list[tuple[str, str]]) -> bool:
    """Whether the tokens lie behind the heads by some of these forms, and before them by others."""
    return len({HEADS_FIRST in forms for forms in pairs}) > 1


def _with_ends(
    shapes: tuple[Shape, Shape], layouts: tuple[TokenLayout, TokenLayout]
) -> tuple[str, str] | None:
    """The forms of two tensors of which one has only the last token of each sequence, or both have."""
    rows = [_forms_of_rows(shape, layout) for shape, layout in zip(shapes, layouts)]
    ends = [_has_ends(shape, layout) for shape, layout in zip(shapes, layouts)]
    if ends[1] and (rows[0] or ends[0]):
        return min(rows[0], default=ENDS), ENDS
    if ends[0] and rows[1]:
        return ENDS, min(rows[1])
    return None


def _forms_of_rows(shape: Shape, layout: TokenLayout) -> set[str]:
    """The forms in which a tensor has a row, and not only a number, for each token."""
    dimensions = {BATCH: 3, FLAT: 2}
    return {form for form in _forms(shape, layout) if form in dimensions and len(shape) >= dimensions[form]}


def _has_columns_of_padding(shapes: tuple[Shape, Shape], layouts: tuple[TokenLayout, TokenLayout]) -> bool:
    """Whether a step is padded, and the last dimension may be the tokens that are looked at (scores of
    attention)."""
    ends_in_tokens = any(shape[-1] == layout.shape[-1] for shape in shapes for layout in layouts)
    return ends_in_tokens and any(
        sum(stretch.length for stretches in layout.contexts or () for stretch in stretches)
        < math.prod(layout.shape)
        for layout in layouts
    )


def _shapes_text(shapes: tuple[Shape, Shape]) -> str:
    return Reason("shapes {} (golden) and {} (mine)", list(shapes[0]), list(shapes[1]))


def by_form(tensor: torch.Tensor, layout: TokenLayout, form: str) -> torch.Tensor:
    """A tensor as `[tokens, ...]`. Raises `Incomparable` for one that is not of this form."""
    shape = tuple(tensor.shape)
    if form not in _forms(shape, layout):
        raise Incomparable(
            Reason("a tensor of shape {} has no row for each of the tokens of its step", list(shape))
        )
    return _rows_of(tensor, layout, form)


def _rows_of(tensor: torch.Tensor, layout: TokenLayout, form: str) -> torch.Tensor:
    shape = tuple(tensor.shape)
    if form == HEADS_FIRST:
        return tensor.transpose(1, 2).flatten(0, 1)
    if is_as_handed(shape, layout):
        return tensor.transpose(0, 1).flatten()
    if form == BATCH:
        return tensor.expand(*layout.shape, *shape[2:]).flatten(0, 1)
    count = math.prod(layout.shape)
    if shape[0] == count:
        return tensor
    return tensor[0] if shape[0] == 1 else tensor.reshape(count, -1)


def _forms(shape: Shape, layout: TokenLayout) -> list[str]:
    count, batched = math.prod(layout.shape), len(layout.shape) > 1
    if not shape or not count:
        return []
    if is_as_handed(shape, layout):
        return [BATCH]
    # `[1, heads, 1, size]` of a step of one token is no row of heads.
    is_flat = shape[0] == count and len(shape) < 4 if batched else _is_row(shape, count)
    heads_first = batched and not layout.turned and has_heads_first(shape[:4], layout)
    is_batch = batched and shape[:2] in (layout.shape, _shared_shape(layout))
    return [form for form, fits in ((BATCH, is_batch), (FLAT, is_flat), (HEADS_FIRST, heads_first)) if fits]


def is_as_handed(shape: Shape, layout: TokenLayout) -> bool:
    """Whether a tensor is `[batch, tokens]` as the ids are, where others are `[tokens, batch]`."""
    return layout.turned and shape == layout.shape[::-1]


def _shared_shape(layout: TokenLayout) -> Shape:
    first, second = layout.shape
    return (first, 1) if layout.turned else (1, second)


def _per_token(shape: Shape, layout: TokenLayout) -> dict[str, int]:
    count = math.prod(layout.shape) or 1
    shared = 1
    if len(layout.shape) > 1 and shape[:2] == _shared_shape(layout):
        shared = math.prod(layout.shape) // (math.prod(shape[:2]) or 1)
    per_token = math.prod(shape) // count
    return {BATCH: per_token * shared, FLAT: per_token, HEADS_FIRST: per_token}


def _has_ends(shape: Shape, layout: TokenLayout) -> bool:
    """Whether a tensor may have one row for each sequence."""
    sequences = layout.contexts or ()
    real = max((number for number, stretches in enumerate(sequences, start=1) if stretches), default=0)
    ends = len(shape) == 2 or (len(shape) == 3 and shape[1] == 1)
    return ends and shape[0] in (len(sequences), real) and real > 0


# Tokens that are split over ranks (sequence parallelism), by the number of rows of each rank.
#
# Norms and what is added to the residual stream need no other token. So each of P ranks may have the rows of
# 1/P of them, in rank order; where they are gathered again there may be padding up to a multiple of P. Ranks
# share tokens only if all were given the same ids (`TokenLayout.shared`): else each has tokens of its own.


_SAMPLE = 1 << 16
"""Elements of a tensor that tell whether ranks hold the same."""


def split_of(shapes: Sequence[Shape], layout: TokenLayout, single: bool = False) -> TokenSplit | None:
    """The split of the tokens of a step over the tensors of all ranks; `None` where each has all rows.
    `single`: where each has one row it is a token or padding, and not anything."""
    ranks = len(shapes)
    for axis, rows in _places(shapes[0], layout):
        if len({(len(shape), *shape[:axis], *shape[axis + 1 :]) for shape in shapes}) > 1:
            continue
        sizes = [shape[axis] for shape in shapes]
        apart = min(sizes) < max(sizes) or 1 - single < max(sizes) < max(rows, 2)
        if apart and len(shapes[0]) > 1 and rows <= sum(sizes) < rows + ranks:
            return TokenSplit(axis, rows, joined=True)
        padded = -(-rows // ranks) * ranks
        if len(set(sizes)) > 1:
            continue
        if sizes[0] == padded > rows:
            return TokenSplit(axis, rows, joined=False)
        # Heads one below the other.
        if len(shapes[0]) == 2 and sizes[0] % rows and not sizes[0] % padded:
            return TokenSplit(axis, rows * (sizes[0] // padded), joined=False)
    return None


def joined(shards: list[torch.Tensor], split: TokenSplit) -> list[torch.Tensor]:
    """The tensors of ranks without padding, one of their pieces. Raises `NoPayload` for padding alone."""
    if not split.rows:
        raise NoPayload("this rank has rows of padding only, which are not compared")
    tensors = [torch.cat(shards, split.axis)] if split.joined else shards
    return [shard.narrow(split.axis, 0, split.rows) for shard in tensors]


def ranks_alike(refs: Sequence[TensorRef]) -> bool:
    """Whether all ranks hold the same values, as far as their first elements tell."""
    try:
        tensors = [ref.open() for ref in refs]
    except (AccError, OSError):
        return False
    first, *replicas = (tensor.reshape(-1)[:_SAMPLE] for tensor in tensors)
    return all(torch.equal(first, replica) for replica in replicas)


def _places(shape: Shape, layout: TokenLayout) -> Iterator[tuple[int, int]]:
    """The dimensions that may be those of tokens, and how many there are."""
    if len(layout.shape) == 1 and shape:
        yield 0, layout.shape[0]
    elif len(layout.shape) == 2 and len(shape) > 1 and not has_heads_first(shape, layout):
        tokens = 0 if layout.turned else 1
        if len(shape) > 2 and shape[1 - tokens] == layout.shape[1 - tokens]:
            yield tokens, layout.shape[tokens]
        elif layout.shape[1 - tokens] == 1:
            yield 0, math.prod(layout.shape)


def tokens_of(ids: Shape, embedded: Shape, ranks: int) -> tuple[Shape, bool] | None:
    """The layout of the tokens of an embedding of `ranks` that was handed `ids`, and whether it is `[tokens,
    batch]`; `None` where the shape of its rows says no more than itself."""
    rows = embedded[:-1]
    if len(ids) == 1 and len(rows) == 1 and rows != ids and _is_share(rows[0], ids[0], ranks):
        return ids, False
    if len(ids) != 2 or len(rows) != 2 or rows == ids:
        return None
    batch, length = ids
    if rows[1] == batch and (rows[0] == length or _is_share(rows[0], length, ranks)):
        return (length, batch), True
    if rows[0] == batch and _is_share(rows[1], length, ranks):
        return ids, False
    return None


def _is_share(rows: int, tokens: int, ranks: int) -> bool:
    """Whether a rank has its part of the tokens, or all of them and the padding."""
    return ranks > 1 and rows in (-(-tokens // ranks), -(-tokens // ranks) * ranks, tokens // ranks)
