"""The rows of the two tensors of a pair that are the same tokens, before any is read."""

from __future__ import annotations

from dataclasses import replace

from ..tensors.ref import readable
from .engine_views import TokenLayout, TokenPick
from .pair import Operand
from .shapes import Shape, has_token_rows
from .token_forms import forms_of
from .views import LastToken

Known = tuple[TokenLayout, TokenLayout]
"""How golden and mine lay out the tokens of a step, both of them known."""


def of_tokens(golden: Operand, mine: Operand, layouts: Known) -> tuple[Operand, Operand]:
    """The operands with the rows of the tokens that both sides have; of one row a sequence, where one side
    holds no more.

    Raises `Incomparable` where the steps hold other tokens, and a tensor has no row for each.
    """
    one_row = isinstance(golden.view, LastToken) or isinstance(mine.view, LastToken)
    if layouts[0].contexts is not None and layouts[1].contexts is not None:
        return _of_contexts(golden, mine, layouts, one_row)
    last = one_row and not all(
        has_token_rows(_joined_shape(operand, operand.refs[0].header().shape), layout.shape)
        for operand, layout in zip((golden, mine), layouts)
    )
    return (
        replace(golden, tokens=TokenPick(layouts[0], layouts[1], "golden", last)),
        replace(mine, tokens=TokenPick(layouts[0], layouts[1], "mine", last)),
    )


def _of_contexts(golden: Operand, mine: Operand, layouts: Known, logits: bool) -> tuple[Operand, Operand]:
    """The same where the steps hold other tokens, so that both must have a row for each."""
    headers = readable(golden.refs[0]), readable(mine.refs[0])
    if headers[0] is None or headers[1] is None:
        return golden, mine  # its test says what is wrong with the file
    shapes = _joined_shape(golden, headers[0].shape), _joined_shape(mine, headers[1].shape)
    forms = forms_of(shapes, layouts, logits=logits)
    picks = (TokenPick(layouts[0], layouts[1], own, forms=forms) for own in ("golden", "mine"))
    first, second = (replace(operand, tokens=pick) for operand, pick in zip((golden, mine), picks))
    return first, second


def _joined_shape(operand: Operand, shape: Shape) -> Shape:
    """The shape of what the ranks have of a tensor when it is joined."""
    split = operand.split
    return shape if split is None else (*shape[: split.axis], split.rows, *shape[split.axis + 1 :])
