"""Where tensors of two steps have their tokens: told by both shapes together."""

from __future__ import annotations

import pytest
import torch

from acc_pytest.errors import Incomparable
from acc_pytest.mapping.shapes import Shape
from acc_pytest.mapping.token_order import BATCH, ENDS, FLAT, HEADS_FIRST, by_form, forms_of
from acc_pytest.mapping.views import Stretch, TokenLayout


def layout(*shape: int, sequences: int = 1, known: int = -1, turned: bool = False) -> TokenLayout:
    """A layout of `sequences` of equal length, `known` tokens of which are known (all of them by default)."""
    count = torch.Size(shape).numel() if known < 0 else known
    each = count // sequences
    return TokenLayout(
        shape,
        contexts=tuple((Stretch(n * each, n * each, each),) for n in range(sequences)),
        turned=turned,
    )


WHOLE, DECODE = layout(2, 9, sequences=2), layout(2, 1, sequences=2)
FLAT_DECODE, CHUNK = layout(2, sequences=2), layout(5)


@pytest.mark.parametrize(
    ("shapes", "layouts", "forms"),
    [
        (((2, 9, 32), (2, 1, 32)), (WHOLE, DECODE), (BATCH, BATCH)),
        (((18, 32), (2, 32)), (WHOLE, DECODE), (FLAT, FLAT)),
        (((2, 4, 9, 8), (2, 4, 1, 8)), (WHOLE, DECODE), (HEADS_FIRST, HEADS_FIRST)),
        (((2, 9, 4, 8), (2, 1, 4, 8)), (WHOLE, DECODE), (BATCH, BATCH)),
        (((2, 9, 32), (2, 32)), (WHOLE, FLAT_DECODE), (BATCH, FLAT)),
        (((2, 9, 4, 8), (8, 8)), (WHOLE, FLAT_DECODE), (BATCH, FLAT)),
        (((1, 9, 8), (1, 1, 8)), (WHOLE, DECODE), (BATCH, BATCH)),
        (((2, 9, 60), (1, 60)), (WHOLE, CHUNK), (BATCH, ENDS)),
        (((2, 1, 60), (2, 1, 60)), (WHOLE, DECODE), (ENDS, ENDS)),
        (((1, 60), (1, 60)), (CHUNK, layout(4)), (ENDS, ENDS)),
        (((9, 2, 8), (2, 9, 8)), (layout(9, 2, turned=True), WHOLE), (BATCH, BATCH)),
        (((2, 9), (2, 1)), (layout(9, 2, turned=True), DECODE), (BATCH, BATCH)),
    ],
)
def test_both_shapes_tell(
    shapes: tuple[Shape, Shape], layouts: tuple[TokenLayout, TokenLayout], forms: tuple[str, str]
) -> None:
    assert forms_of(shapes, layouts) == forms


@pytest.mark.parametrize(
    ("shapes", "layouts", "why"),
    [
        (((4,), (4,)), (WHOLE, DECODE), "do not have a row for each"),
        (((2, 2, 9, 8), (2, 2, 10, 8)), (WHOLE, DECODE), "do not have a row for each"),
        (((2, 9), (2, 10)), (WHOLE, DECODE), "do not have a row for each"),
        (((2, 9, 60), (1, 61)), (WHOLE, CHUNK), "do not have a row for each"),
        (
            ((1, 4, 4, 8), (1, 4, 4, 8)),
            (layout(1, 4), layout(1, 4)),
            "may have their tokens in two dimensions",
        ),
        (((2, 4, 9, 9), (2, 4, 1, 9)), (layout(2, 9, known=16), DECODE), "some of which are padding"),
    ],
)
def test_shapes_that_do_not_are_refused(
    shapes: tuple[Shape, Shape], layouts: tuple[TokenLayout, TokenLayout], why: str
) -> None:
    with pytest.raises(Incomparable, match=why):
        forms_of(shapes, layouts)


def test_logits_may_be_wider_on_one_side() -> None:
    assert forms_of(((2, 9, 60), (1, 64)), (WHOLE, CHUNK), logits=True) == (BATCH, ENDS)


def test_scores_without_padding_are_compared() -> None:
    assert forms_of(((2, 4, 9, 9), (2, 4, 1, 9)), (WHOLE, DECODE)) == (HEADS_FIRST, HEADS_FIRST)


def test_rows_come_one_below_the_other() -> None:
    numbers = torch.arange(2 * 3 * 9 * 4).reshape(2, 3, 9, 4)
    assert torch.equal(by_form(numbers, WHOLE, HEADS_FIRST)[10], numbers[1, :, 1])
    assert torch.equal(by_form(numbers.transpose(1, 2), WHOLE, BATCH)[10], numbers[1, :, 1])
    turned = layout(9, 2, turned=True)
    assert torch.equal(by_form(numbers[:, 0].transpose(0, 1), turned, BATCH)[3], numbers[1, 0, 1])
    ids = torch.arange(18).reshape(2, 9)
    assert by_form(ids, turned, BATCH)[:4].tolist() == [0, 9, 1, 10]
    shared = torch.arange(18).reshape(1, 9, 2)
    assert by_form(shared, WHOLE, BATCH)[9].tolist() == [0, 1]
    with pytest.raises(Incomparable, match="has no row for each of the tokens"):
        by_form(numbers, FLAT_DECODE, BATCH)
