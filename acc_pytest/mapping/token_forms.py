"""Where a tensor has its tokens: which dimensions of it are those of the layout of its step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from ..errors import Incomparable
from .engine_views import TokenLayout
from .shapes import Shape

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
    own = [list(_forms(shape, layout)) for shape, layout in zip(shapes, layouts)]
    sizes = [_per_token(shape, layout) for shape, layout in zip(shapes, layouts)]
    found = [forms for forms in itertools.product(*own) if forms in _MEET]
    if len({HEADS_FIRST in forms for forms in found}) > 1 or len(layouts[0].shape) == len(layouts[1].shape):
        alike = [forms for forms in found if sizes[0][forms[0]] == sizes[1][forms[1]]]
        found = alike or [forms for forms in found if forms[0] == forms[1] != HEADS_FIRST]
    if len({HEADS_FIRST in forms for forms in found}) > 1:
        raise Incomparable(f"{_both(shapes)} may have their tokens in two dimensions")
    if (
        found
        and HEADS_FIRST in found[0]
        and any(map(_is_padded, layouts))
        and _ends_in_tokens(shapes, layouts)
    ):
        raise Incomparable(f"{_both(shapes)} have columns of tokens, some of which are padding")
    if found:
        return next((forms for forms in found if forms[0] == forms[1]), found[0])
    if logits or shapes[0][-1:] == shapes[1][-1:]:
        rows = [
            {form for form in forms if form != HEADS_FIRST and len(shape) > 2 - (form == FLAT)}
            for forms, shape in zip(own, shapes)
        ]
        ends = [_has_ends(shape, layout) for shape, layout in zip(shapes, layouts)]
        if ends[1] and (rows[0] or ends[0]):
            return min(rows[0], default=ENDS), ENDS
        if ends[0] and rows[1]:
            return ENDS, min(rows[1])
    raise Incomparable(f"the steps hold other tokens, and {_both(shapes)} do not have a row for each")


def _is_padded(layout: TokenLayout) -> bool:
    known = sum(stretch.length for stretches in layout.contexts or () for stretch in stretches)
    return known < math.prod(layout.shape)


def _ends_in_tokens(shapes: tuple[Shape, Shape], layouts: tuple[TokenLayout, TokenLayout]) -> bool:
    """Whether the last dimension may be the tokens that are looked at (scores of attention)."""
    return any(shape[-1] == layout.shape[-1] for shape in shapes for layout in layouts)


def _both(shapes: tuple[Shape, Shape]) -> str:
    return f"shapes {list(shapes[0])} (golden) and {list(shapes[1])} (mine)"


def by_form(tensor: torch.Tensor, layout: TokenLayout, form: str) -> torch.Tensor:
    """A tensor as `[tokens, ...]`. Raises `Incomparable` for one that is not of this form."""
    shape = tuple(tensor.shape)
    if form not in _forms(shape, layout):
        raise Incomparable(f"a tensor of shape {list(shape)} has no row for each of the tokens of its step")
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


def _forms(shape: Shape, layout: TokenLayout) -> Iterator[str]:
    """The forms that a shape may have."""
    count = math.prod(layout.shape)
    if not shape or not count:
        return
    batched = len(layout.shape) > 1
    if is_as_handed(shape, layout):
        yield BATCH
        return
    if batched and shape[:2] in (layout.shape, _of_one(layout)):
        yield BATCH
    stacked = len(shape) == 2 and shape[0] % count == 0 and (not batched or shape[0] == count)
    # `[1, heads, 1, size]` of a step of one token is no row of heads.
    if (
        stacked
        or (shape[0] == count and (len(shape) < 4 or not batched))
        or (not batched and len(shape) > 2 and shape[:2] == (1, count))
    ):
        yield FLAT
    if batched and not layout.turned and len(shape) > 3 and (shape[0], shape[2]) == layout.shape:
        yield HEADS_FIRST


def is_as_handed(shape: Shape, layout: TokenLayout) -> bool:
    """Whether a tensor is `[batch, tokens]` as the ids are, where others are `[tokens, batch]`."""
    return layout.turned and shape == layout.shape[::-1]


def _of_one(layout: TokenLayout) -> Shape:
    """The shape that all sequences of a batch may share."""
    first, second = layout.shape
    return (first, 1) if layout.turned else (1, second)


def _per_token(shape: Shape, layout: TokenLayout) -> dict[str, int]:
    count = math.prod(layout.shape) or 1
    shared = 1
    if len(layout.shape) > 1 and shape[:2] == _of_one(layout):
        shared = math.prod(layout.shape) // math.prod(shape[:2])
    each = math.prod(shape) // count
    return {BATCH: each * shared, FLAT: each, HEADS_FIRST: each}


def _has_ends(shape: Shape, layout: TokenLayout) -> bool:
    """Whether a tensor may have one row for each sequence."""
    sequences = layout.contexts or ()
    real = max((number for number, known in enumerate(sequences, start=1) if known), default=0)
    ends = len(shape) == 2 or (len(shape) == 3 and shape[1] == 1)
    return ends and shape[0] in (len(sequences), real) and real > 0
