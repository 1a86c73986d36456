"""Views that need another tensor of their own side, or a piece of every head: checked against plain torch."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

from acc_pytest.errors import Incomparable
from acc_pytest.mapping.pair import Operand, Pair
from acc_pytest.mapping.reconcile import agree, open_pair
from acc_pytest.mapping.views import (
    CacheTail,
    HeadPart,
    OwnPart,
    Part,
    SlotRows,
    TableRows,
    View,
    Whole,
    WithBias,
)
from acc_pytest.tensors.ref import TensorRef


class OperandMaker:
    """Makes operands of saved tensors; `ref` saves one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def ref(self, tensor: torch.Tensor) -> TensorRef:
        path = self._directory / f"{len(list(self._directory.iterdir()))}.npy"
        numpy.save(path, tensor.numpy())
        return TensorRef(str(path))

    def __call__(self, *shards: torch.Tensor, view: View | None = None) -> Operand:
        return Operand("n", "n", "Op", "output[0]", tuple(map(self.ref, shards)), view or Whole())


@pytest.fixture
def operand(tmp_path: Path) -> OperandMaker:
    return OperandMaker(tmp_path)


def tokens(*shape: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def read(golden: Operand, mine: Operand) -> tuple[torch.Tensor, torch.Tensor, tuple[str, ...]]:
    """Both sides of a pair as they are compared, and the notes; the plan must have promised it."""
    assert agree(golden, mine) == ""
    opened = open_pair(Pair("p", 0, None, "op", "model", 0, 0, "role", "", golden, mine))
    sides = []
    for source in (opened.golden, opened.mine):
        count = torch.Size(source.shape).numel()
        sides.append(torch.cat([source.read(0, count // 3), source.read(count // 3, count)]))
    return sides[0].reshape(opened.golden.shape), sides[1].reshape(opened.golden.shape), opened.notes


def refusal(golden: Operand, mine: Operand) -> str:
    """Why a pair cannot be compared: what the plan says, else what the test says."""
    said = agree(golden, mine)
    if not said:
        with pytest.raises(Incomparable) as raised:
            open_pair(Pair("p", 0, None, "op", "model", 0, 0, "role", "", golden, mine))
        said = str(raised.value)
    return said


# ---- paged caches -----------------------------------------------------------------------------------

CACHE = tokens(4, 8, 2, 4)


@pytest.mark.parametrize("slots", [[0, 1, 2], [9, 30, 8], [31]])
def test_of_a_paged_cache_the_rows_at_the_slots_are_taken(operand: OperandMaker, slots: list[int]) -> None:
    places = operand.ref(torch.tensor(slots, dtype=torch.int32))
    written = CACHE.reshape(32, 8)[slots]
    golden, mine, _ = read(operand(written[None]), operand(CACHE, view=SlotRows((places,))))
    assert torch.equal(golden, mine)


def test_padding_has_no_slot(operand: OperandMaker) -> None:
    places = operand.ref(torch.tensor([3, 5, -1], dtype=torch.int32))
    mine = operand(CACHE, view=SlotRows((places,)))
    opened = open_pair(
        Pair("p", 0, None, "op", "model", 0, 0, "role", "", operand(CACHE.reshape(32, 8)[[3, 5]]), mine)
    )
    assert torch.equal(opened.mine.read(0, 16).reshape(2, 8), CACHE.reshape(32, 8)[[3, 5]])


def test_the_heads_of_a_paged_cache_lie_on_several_ranks(operand: OperandMaker) -> None:
    whole = tokens(1, 2, 3, 8)
    caches = [torch.zeros(2, 8, 1, 8) for _ in range(2)]
    for rank, cache in enumerate(caches):
        cache.view(16, 8)[[4, 5, 6]] = whole[0, rank]
    places = [operand.ref(torch.tensor([4, 5, 6])) for _ in caches]
    golden, mine, notes = read(
        operand(whole, view=CacheTail()), operand(*caches, view=SlotRows(tuple(places)))
    )
    assert torch.equal(golden, mine)
    assert "2 shards concatenated" in " ".join(notes)


def test_a_slot_outside_the_cache_is_refused(operand: OperandMaker) -> None:
    places = operand.ref(torch.tensor([3, 32]))
    said = refusal(operand(tokens(2, 8)), operand(CACHE, view=SlotRows((places,))))
    assert said == "slot 32 is not in a paged cache of 32 places"


def test_what_has_no_blocks_is_no_paged_cache(operand: OperandMaker) -> None:
    places = operand.ref(torch.tensor([0, 1]))
    assert "not a paged cache" in refusal(
        operand(tokens(2, 8)), operand(tokens(4, 8), view=SlotRows((places,)))
    )


# ---- contiguous caches ------------------------------------------------------------------------------


def test_rows_of_several_tokens_are_never_the_heads_of_one(operand: OperandMaker) -> None:
    """`[7, 8]` has as many elements as one token of 7 heads, and is none."""
    cache = tokens(1, 2, 7, 8)
    assert "not the newest tokens" in refusal(operand(cache, view=CacheTail()), operand(tokens(7, 8)))


@pytest.mark.parametrize("part", [0, 1])
def test_a_piece_of_every_head_of_a_cache(operand: OperandMaker, part: int) -> None:
    cache = tokens(1, 2, 5, 8)
    wanted = cache[:, :, 2:, :4] if part == 0 else cache[:, :, 2:, 4:]
    newest = operand(wanted[0].permute(1, 0, 2).contiguous())
    golden, mine, notes = read(operand(cache, view=CacheTail(part)), newest)
    assert torch.equal(golden, mine)
    assert notes == (
        f"newest 3 of 5 tokens of the cache, the {'last' if part else 'first'} 4 elements of each head",
    )


def test_a_whole_head_is_no_piece_of_one(operand: OperandMaker) -> None:
    said = refusal(operand(tokens(1, 2, 5, 8), view=CacheTail(0)), operand(tokens(5, 2, 8)))
    assert "no part of heads of 8 elements" in said


# ---- pieces of heads --------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1])
def test_a_piece_of_every_head(operand: OperandMaker, index: int) -> None:
    whole = tokens(1, 5, 24)
    pieces = whole.reshape(5, 3, 8).split((2, 6), -1)
    refs = tuple(operand.ref(piece.contiguous()) for piece in pieces)
    golden, mine, notes = read(
        operand(whole, view=HeadPart(index, refs)), operand(pieces[index].contiguous())
    )
    assert torch.equal(golden, mine)
    assert notes == (("elements 0:2" if index == 0 else "elements 2:8") + " of each head of 8",)


def test_heads_of_another_size_are_refused(operand: OperandMaker) -> None:
    refs = tuple(operand.ref(tokens(5, 3, n)) for n in (2, 5))
    said = refusal(operand(tokens(1, 5, 24), view=HeadPart(0, refs)), operand(tokens(5, 3, 2)))
    assert said == "[1, 5, 24] is not made of heads of [2, 5] elements"


def test_heads_that_pack_query_key_and_value_are_cut_if_the_pieces_say_where_a_head_ends(
    operand: OperandMaker,
) -> None:
    whole = tokens(1, 5, 24)
    pieces = whole.reshape(5, 2, 3, 4).unbind(2)
    apart = tuple(operand.ref(piece.contiguous()) for piece in pieces)
    for index, piece in enumerate(pieces):
        cut = operand(whole, view=HeadPart(index, apart, several=True))
        golden, mine, _ = read(cut, operand(piece.contiguous()))
        assert torch.equal(golden, mine)
    flat = tuple(operand.ref(piece.reshape(5, 8)) for piece in pieces)
    said = refusal(operand(whole, view=HeadPart(0, flat, several=True)), operand(pieces[0].reshape(5, 8)))
    assert "not made of heads" in said


# ---- packs over ranks -------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1])
def test_both_sides_pack_and_every_rank_has_its_share_of_each_part(operand: OperandMaker, index: int) -> None:
    parts = [tokens(1, 5, 8), tokens(1, 5, 8, start=1000)]
    shards = [torch.cat([part[0].chunk(2, 1)[rank] for part in parts], 1) for rank in range(2)]
    refs = tuple(operand.ref(piece.contiguous()) for piece in shards[0].chunk(2, 1))
    packed = operand(torch.cat(parts, 2), view=Part(index, refs))
    golden, mine, _ = read(packed, operand(*shards, view=OwnPart(index, refs)))
    assert torch.equal(golden, mine)
    assert torch.equal(golden.reshape(1, 5, 8), parts[index])


def test_key_heads_that_are_fewer_than_ranks_are_held_twice(operand: OperandMaker) -> None:
    q, k, v = tokens(1, 5, 16), tokens(1, 5, 8, start=1000), tokens(1, 5, 8, start=2000)
    shards = [
        torch.cat([q[0, :, 4 * r : 4 * r + 4], *(t[0].chunk(2, 1)[r // 2] for t in (k, v))], 1)
        for r in range(4)
    ]
    refs = tuple(operand.ref(piece.contiguous()) for piece in shards[0].split(4, 1))
    for index, part in enumerate((q, k, v)):
        packed = operand(torch.cat((q, k, v), 2), view=Part(index, refs))
        golden, mine, _ = read(packed, operand(*shards, view=OwnPart(index, refs)))
        assert torch.equal(golden, mine)
        assert torch.equal(golden.reshape(part.shape), part)


def test_pieces_that_do_not_make_up_the_pack_are_refused(operand: OperandMaker) -> None:
    refs = tuple(operand.ref(tokens(5, 3)) for _ in range(2))
    said = refusal(operand(tokens(5, 3)), operand(tokens(5, 8), view=OwnPart(0, refs)))
    assert said == "a packed tensor of shape [5, 8] is not made of parts [3, 3] wide"


# ---- biases -----------------------------------------------------------------------------------------


def test_a_bias_that_comes_later_is_added(operand: OperandMaker) -> None:
    product, bias = tokens(5, 8), tokens(8, start=100)
    biased = operand(product, view=WithBias((operand.ref(bias),)))
    golden, mine, notes = read(operand((product + bias)[None]), biased)
    assert torch.equal(golden, mine)
    assert notes == ("bias added",)


def test_shards_of_a_product_take_their_shards_of_the_bias(operand: OperandMaker) -> None:
    product, bias = tokens(5, 8), tokens(8, start=100)
    refs = tuple(operand.ref(part.contiguous()) for part in bias.chunk(2))
    biased = operand(*(part.contiguous() for part in product.chunk(2, 1)), view=WithBias(refs))
    golden, mine, _ = read(operand(product + bias), biased)
    assert torch.equal(golden, mine)


def test_partial_products_are_summed_and_take_the_bias_once(operand: OperandMaker) -> None:
    product, bias = tokens(5, 8), tokens(8, start=100)
    refs = tuple(operand.ref(bias) for _ in range(2))
    biased = operand(product * 0.25, product * 0.75, view=WithBias(refs, summed=True))
    golden, mine, notes = read(operand(product + bias), biased)
    assert torch.equal(golden, mine)
    assert notes == ("partial results of 2 ranks summed; bias added",)


def test_a_bias_is_added_in_float32_and_rounded_once(operand: OperandMaker) -> None:
    product, bias = torch.tensor([[1.0, 2048.0]]).half(), torch.tensor([2.0**-11, 1.0]).half()
    _, mine, _ = read(
        operand((product + bias).float()), operand(product, view=WithBias((operand.ref(bias),)))
    )
    assert torch.equal(mine, (product.float() + bias.float()).half())


def test_a_bias_of_another_width_is_refused(operand: OperandMaker) -> None:
    mine = operand(tokens(5, 8), view=WithBias((operand.ref(tokens(4)),)))
    assert "a bias of shape [4] does not fit [5, 8]" in refusal(operand(tokens(5, 8)), mine)


# ---- position tables --------------------------------------------------------------------------------


def angles(*, pairs: bool) -> torch.Tensor:
    angle = torch.outer(torch.arange(6).float(), torch.tensor([1.0, 0.1]))
    return (angle.repeat_interleave(2, 1) if pairs else angle.repeat(1, 2)).cos()


@pytest.mark.parametrize("pairs", [False, True])
def test_angles_are_laid_out_as_mines_rotation_takes_them(operand: OperandMaker, pairs: bool) -> None:
    table = operand(angles(pairs=False), view=TableRows(2))
    golden, mine, notes = read(table, operand(angles(pairs=pairs)[2:5]))
    assert torch.equal(golden, mine)
    assert ("neighbouring pairs" in notes[0]) is pairs


def test_wrong_angles_are_not_laid_out_until_they_fit(operand: OperandMaker) -> None:
    wrong = angles(pairs=True)[2:5] + tokens(3, 4) / 100
    golden, mine, notes = read(operand(angles(pairs=False), view=TableRows(2)), operand(wrong))
    assert not torch.equal(golden, mine)
    assert "pairs" not in notes[0]
