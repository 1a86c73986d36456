"""Forms of tensors: the dimensions that are those of the token layout of a step."""

from __future__ import annotations

import itertools
import math

from ..errors import Incomparable
from ..lazy_torch import torch
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
    candidates = _meeting(shapes, layouts)
    if _differ_in_dimension(candidates):
        raise Incomparable(f"{_shapes_text(shapes)} may have their tokens in two dimensions")
    if candidates and HEADS_FIRST in candidates[0] and _has_columns_of_padding(shapes, layouts):
        raise Incomparable(f"{_shapes_text(shapes)} have columns of tokens, some of which are padding")
    if candidates:
        return next((forms for forms in candidates if forms[0] == forms[1]), candidates[0])
    if logits or shapes[0][-1:] == shapes[1][-1:]:
        ends = _with_ends(shapes, layouts)
        if ends is not None:
            return ends
    raise Incomparable(f"the steps hold other tokens, and {_shapes_text(shapes)} do not have a row for each")


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
    return ends_in_tokens and any(map(_is_padded, layouts))


def _is_padded(layout: TokenLayout) -> bool:
    tokens = sum(stretch.length for stretches in layout.contexts or () for stretch in stretches)
    return tokens < math.prod(layout.shape)


def _shapes_text(shapes: tuple[Shape, Shape]) -> str:
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


def _forms(shape: Shape, layout: TokenLayout) -> list[str]:
    """The forms that a shape may have."""
    if not shape or not math.prod(layout.shape):
        return []
    if is_as_handed(shape, layout):
        return [BATCH]
    tests = {BATCH: _is_batch, FLAT: _is_flat, HEADS_FIRST: _is_heads_first}
    return [form for form, test in tests.items() if test(shape, layout)]


def _is_batch(shape: Shape, layout: TokenLayout) -> bool:
    return len(layout.shape) > 1 and shape[:2] in (layout.shape, _shared_shape(layout))


def _is_flat(shape: Shape, layout: TokenLayout) -> bool:
    """Whether the tokens of all sequences may be one dimension, first or behind a one."""
    count = math.prod(layout.shape)
    if len(layout.shape) > 1:
        # `[1, heads, 1, size]` of a step of one token is no row of heads.
        return shape[0] == count and len(shape) < 4
    stacked = len(shape) == 2 and shape[0] % count == 0
    return stacked or shape[0] == count or (len(shape) > 2 and shape[:2] == (1, count))


def _is_heads_first(shape: Shape, layout: TokenLayout) -> bool:
    batched = len(layout.shape) > 1 and not layout.turned
    return batched and len(shape) > 3 and (shape[0], shape[2]) == layout.shape


def is_as_handed(shape: Shape, layout: TokenLayout) -> bool:
    """Whether a tensor is `[batch, tokens]` as the ids are, where others are `[tokens, batch]`."""
    return layout.turned and shape == layout.shape[::-1]


def _shared_shape(layout: TokenLayout) -> Shape:
    """The shape that all sequences of a batch may share."""
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
