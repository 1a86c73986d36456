"""A query is turned as the other side turned it, and only turned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from acc_pytest.errors import Incomparable, NoPayload
from acc_pytest.mapping.operand_shards import OperandShards
from acc_pytest.mapping.shard_values import turned_alike
from acc_pytest.mapping.views import Turned, Whole
from acc_pytest.tensors.ref import TensorRef

REF = TensorRef("none.pth")
TOKENS, HEADS, SIZE = 7, 3, 8
torch.manual_seed(0)
QUERY = torch.randn(TOKENS, HEADS * SIZE)


def tables(angles: int = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 1e4 ** -(torch.arange(0, angles, 2).float() / angles)
    both = torch.outer(torch.arange(TOKENS).float(), frequencies).repeat(1, 2)
    return both.cos(), both.sin()


def by_complex(by_halves: bool, angles: int = SIZE) -> torch.Tensor:
    """Turning as multiplication of complex numbers, which halves or neighbours are the parts of."""
    cos, sin = (table[:, None, : angles // 2] for table in tables(angles))
    heads = QUERY.reshape(TOKENS, HEADS, SIZE)
    part, rest = heads[..., :angles], heads[..., angles:]
    apart = (
        part.reshape(*part.shape[:-1], 2, -1).movedim(-2, -1) if by_halves else part.unflatten(-1, (-1, 2))
    )
    product = torch.complex(apart[..., 0], apart[..., 1]) * torch.complex(cos, sin)
    made = torch.view_as_real(product)
    made = made.movedim(-1, -2).flatten(-2) if by_halves else made.flatten(-2)
    return torch.cat((made, rest), -1).reshape(TOKENS, -1)


def turned(other: torch.Tensor, angles: int = SIZE, ranks: int = 1) -> tuple[torch.Tensor, str]:
    side = OperandShards([QUERY.reshape(TOKENS, HEADS, SIZE)], Turned(REF, REF), angles=tables(angles))
    made, note = turned_alike(side, OperandShards(list(other.chunk(ranks, -1)), Whole()))
    return made.shards[0], note


@pytest.mark.parametrize("by_halves", [True, False])
@pytest.mark.parametrize("angles", [SIZE, SIZE // 2])
def test_heads_are_turned_as_the_other_side_did(by_halves: bool, angles: int) -> None:
    wanted = by_complex(by_halves, angles)
    made, note = turned(wanted, angles)
    assert torch.allclose(made, wanted, atol=1e-5)
    assert note.endswith("halves" if by_halves else "neighbours")


def test_ranks_hold_heads_of_their_own() -> None:
    wanted = by_complex(by_halves=True)
    assert torch.allclose(turned(wanted, ranks=3)[0], wanted, atol=1e-5)


def test_a_layer_that_turns_nothing_is_left_so() -> None:
    made, note = turned(QUERY)
    assert torch.equal(made, QUERY)
    assert note == "not turned in this layer"


@pytest.mark.parametrize("by_halves", [True, False])
def test_the_last_part_of_a_head_may_be_turned_and_be_all_that_is_held(by_halves: bool) -> None:
    swapped = by_complex(by_halves).reshape(TOKENS, HEADS, SIZE)
    cut = QUERY.reshape(TOKENS, HEADS, SIZE)
    wide = torch.cat((cut + 1, cut), -1)
    side = OperandShards([wide.flatten(1)], Turned(REF, REF), angles=tables())
    for wanted in (torch.cat((cut + 1, swapped), -1).flatten(1), swapped):
        made, note = turned_alike(side, OperandShards([wanted], Whole()))
        assert torch.allclose(made.shards[0], wanted.flatten(1), atol=1e-5)
        assert note.startswith("turned by position tables, the last part of heads of 16")


def test_a_rank_has_whole_heads_so_nothing_is_turned_behind_its_end() -> None:
    made, note = turned(QUERY, angles=2, ranks=3)
    assert torch.equal(made, QUERY)
    assert note == "not turned in this layer"


def test_other_angles_leave_a_difference() -> None:
    heads = QUERY.reshape(TOKENS, HEADS, SIZE)
    wrong = torch.cat((-heads[..., SIZE // 2 :], heads[..., : SIZE // 2]), -1).reshape(TOKENS, -1)
    made, _ = turned(wrong)
    assert float((made - wrong).norm() / wrong.norm()) > 0.1


def test_more_than_turning_cannot_be_judged() -> None:
    with pytest.raises(NoPayload, match="only turned"):
        turned(3 * by_complex(by_halves=True))


def test_tables_of_other_tokens_are_refused() -> None:
    side = OperandShards([QUERY], Turned(REF, REF), angles=tuple(table[:-1] for table in tables()))
    with pytest.raises(Incomparable, match="position tables"):
        turned_alike(side, OperandShards([QUERY], Whole()))


def test_shapes_alone_are_not_turned() -> None:
    side = OperandShards([torch.empty(7, 3, 8, device="meta")], Turned(REF, REF))
    made, note = turned_alike(side, side)
    assert (made, note) == (replace(side, view=Whole()), "")
