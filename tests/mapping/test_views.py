"""Views that need another tensor of their own side, or a piece of every head: checked against plain torch."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps.base import Dump
from acc_pytest.errors import Incomparable, NoPayload
from acc_pytest.mapping.operand_shards import OperandShards
from acc_pytest.mapping.pair import Operand, Pair
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import agree, open_pair
from acc_pytest.mapping.rule_views import range_by_own, range_by_pieces
from acc_pytest.mapping.shapes import Merge, merge_rule, rows_and_width, same_order, uneven_rows
from acc_pytest.mapping.shard_sources import multiplied
from acc_pytest.mapping.shard_values import ShardNote, turned_alike
from acc_pytest.mapping.views import (
    CacheTail,
    HeadPart,
    OwnPart,
    Part,
    RowSpan,
    SlotRows,
    TableRows,
    Turned,
    View,
    Whole,
    WithBias,
)
from acc_pytest.tensors.ref import TensorRef
from tests.slow import slow

from .engine_families import Grouped, LogitsAlone, ScaledLater, Shuffled, golden, model_of
from .engine_parts import Prompts, Ranks
from .served import Fault, Spec, both


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


# Where the pieces of packed tensors lie, on every rank.


def ranges(packed: int, ranks: int, pieces: tuple[int, ...], piece_ranks: int = 1) -> list[tuple[int, int]]:
    found = [range_by_pieces(index, packed, ranks, pieces, piece_ranks) for index in range(len(pieces))]
    return [(each.start, each.start + each.rows) for each in found if each is not None]


def test_one_rank_packs_the_pieces_side_by_side() -> None:
    assert ranges(64, 1, (32, 16, 16)) == [(0, 32), (32, 48), (48, 64)]


def test_every_rank_packs_its_share_of_each_piece() -> None:
    assert ranges(32, 2, (32, 16, 16)) == [(0, 16), (16, 24), (24, 32)]
    assert ranges(48, 2, (48, 48)) == [(0, 24), (24, 48)]


def test_fewer_key_heads_than_ranks_are_held_by_several() -> None:
    # 8 query heads and 2 key heads of 4 elements on 4 ranks: two query heads and one key head on each.
    assert ranges(8 + 4 + 4, 4, (32, 8, 8)) == [(0, 8), (8, 12), (12, 16)]
    assert ranges(4 + 4 + 4, 8, (32, 4, 4)) == [(0, 4), (4, 8), (8, 12)]


def test_pieces_may_be_on_ranks_themselves() -> None:
    assert ranges(64, 1, (16, 8, 8), piece_ranks=2) == [(0, 32), (32, 48), (48, 64)]


def test_what_every_rank_holds_whole_is_cut_alike_on_all() -> None:
    assert ranges(20, 2, (12, 8)) == [(0, 12), (12, 20)]
    assert ranges(20, 4, (12, 8)) == [(0, 12), (12, 20)]


def test_widths_that_make_up_no_such_pack_are_refused() -> None:
    assert range_by_pieces(0, 60, 1, (32, 16, 16), 1) is None
    assert range_by_pieces(0, 31, 2, (32, 16, 16), 1) is None


@pytest.mark.parametrize(
    ("index", "packed", "first", "columns"),
    [(0, 64, None, (0, 32)), (1, 64, None, (32, 64)), (0, 64, 32, (0, 32)), (2, 64, 32, (48, 64))],
)
def test_a_side_tells_its_own_pieces(
    index: int, packed: int, first: int | None, columns: tuple[int, int]
) -> None:
    assert range_by_own(index, packed, first) == RowSpan(columns[0], columns[1] - columns[0])


def test_a_query_as_wide_as_the_pack_leaves_nothing_for_key_and_value() -> None:
    assert range_by_own(1, 32, 32) is None
    assert range_by_own(1, 33, None) is None


# A side is multiplied by what its own side multiplies it by next, where the other side's is a multiple.


torch.manual_seed(0)
HERE, BESIDE = torch.randn(6, 8), torch.randn(6, 8)


def times(home: Path, after: list[torch.Tensor], other: torch.Tensor, here: torch.Tensor = HERE) -> float:
    """What `here` is multiplied by beside `other`, where its side makes `after` of it."""
    refs = []
    for number, tensor in enumerate((here, *after)):
        torch.save(tensor, home / f"{number}.pth")
        refs.append((TensorRef(str(home / f"{number}.pth")),))
    operand = Operand("node", "node", "Type", "output[0]", refs[0], onward=tuple(refs))
    made, note = multiplied(OperandShards([here], Whole()), operand, OperandShards([other], Whole()))
    assert bool(note) == (made.shards[0] is not here)
    return float(made.shards[0][0, 0] / here[0, 0])


def test_the_number_is_that_of_the_next_tensor(tmp_path: Path) -> None:
    assert times(tmp_path, [3 * HERE], 3 * HERE) == pytest.approx(3)


def test_what_is_added_to_the_next_tensor_tells_its_own_share(tmp_path: Path) -> None:
    total = 1.1 * (2.5 * HERE + BESIDE)  # all of it is off by a tenth, and that is not the number's fault
    assert times(tmp_path, [total, BESIDE], 2.5 * HERE) == pytest.approx(2.5)


def test_a_side_that_is_nearer_as_it_is_stays_so(tmp_path: Path) -> None:
    assert times(tmp_path, [3 * HERE], HERE) == 1


def test_a_number_that_is_wrong_stays_wrong(tmp_path: Path) -> None:
    assert times(tmp_path, [4 * HERE], 5 * HERE) == pytest.approx(4)


@pytest.mark.parametrize("after", [BESIDE, HERE[:3], HERE * torch.inf, torch.zeros(6, 8, dtype=torch.int64)])
def test_what_is_no_multiple_tells_nothing(after: torch.Tensor, tmp_path: Path) -> None:
    assert times(tmp_path, [after], 3 * HERE) == 1


# A query is turned as the other side turned it, and only turned.


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


def turned(other: torch.Tensor, angles: int = SIZE, ranks: int = 1) -> tuple[torch.Tensor, ShardNote]:
    side = OperandShards([QUERY.reshape(TOKENS, HEADS, SIZE)], Turned(REF, REF), angles=tables(angles))
    made, note = turned_alike(side, OperandShards(list(other.chunk(ranks, -1)), Whole()))
    return made.shards[0], note


@pytest.mark.parametrize("by_halves", [True, False])
@pytest.mark.parametrize("angles", [SIZE, SIZE // 2])
def test_heads_are_turned_as_the_other_side_did(by_halves: bool, angles: int) -> None:
    wanted = by_complex(by_halves, angles)
    made, note = turned(wanted, angles)
    assert torch.allclose(made, wanted, atol=1e-5)
    assert note.note.endswith("halves" if by_halves else "neighbours")


def test_ranks_hold_heads_of_their_own() -> None:
    wanted = by_complex(by_halves=True)
    assert torch.allclose(turned(wanted, ranks=3)[0], wanted, atol=1e-5)


def test_a_layer_that_turns_nothing_is_left_so() -> None:
    made, note = turned(QUERY)
    assert torch.equal(made, QUERY)
    assert note.note == "not turned in this layer"


@pytest.mark.parametrize("by_halves", [True, False])
def test_the_last_part_of_a_head_may_be_turned_and_be_all_that_is_held(by_halves: bool) -> None:
    swapped = by_complex(by_halves).reshape(TOKENS, HEADS, SIZE)
    cut = QUERY.reshape(TOKENS, HEADS, SIZE)
    wide = torch.cat((cut + 1, cut), -1)
    side = OperandShards([wide.flatten(1)], Turned(REF, REF), angles=tables())
    for wanted in (torch.cat((cut + 1, swapped), -1).flatten(1), swapped):
        made, note = turned_alike(side, OperandShards([wanted], Whole()))
        assert torch.allclose(made.shards[0], wanted.flatten(1), atol=1e-5)
        assert note.note.startswith("turned by position tables, the last part of heads of 16")


def test_a_rank_has_whole_heads_so_nothing_is_turned_behind_its_end() -> None:
    made, note = turned(QUERY, angles=2, ranks=3)
    assert torch.equal(made, QUERY)
    assert note.note == "not turned in this layer"


def test_other_angles_leave_a_difference() -> None:
    heads = QUERY.reshape(TOKENS, HEADS, SIZE)
    wrong = torch.cat((-heads[..., SIZE // 2 :], heads[..., : SIZE // 2]), -1).reshape(TOKENS, -1)
    made, _ = turned(wrong)
    assert float((made - wrong).norm() / wrong.norm()) > 0.1


def test_more_than_turning_cannot_be_judged() -> None:
    strange = torch.randn(QUERY.shape, generator=torch.Generator().manual_seed(9))
    with pytest.raises(NoPayload, match="only turned"):
        turned(3 * strange)


def test_turned_heads_of_another_length_are_compared_and_the_factor_is_told() -> None:
    wanted = by_complex(by_halves=True)
    made, note = turned(1.277 * wanted)
    assert torch.allclose(made, wanted, atol=1e-5)
    told = f"heads of {SIZE} by halves, 1.277 times as long on the other side"
    assert note.suspect == f"turned by position tables, {told}"


def test_the_factor_of_attention_may_be_multiplied_beforehand() -> None:
    wanted = by_complex(by_halves=True) * SIZE**-0.5
    made, note = turned(wanted)
    assert torch.allclose(made, wanted, atol=1e-5)
    assert not note.suspect


def test_a_factor_beside_that_of_attention_stays_a_difference() -> None:
    exact = by_complex(by_halves=True) * SIZE**-0.5
    made, _ = turned(1.025 * exact)
    assert torch.allclose(made, exact, atol=1e-5)


def test_tables_may_have_each_angle_once() -> None:
    cos, sin = (table[:, : SIZE // 2] for table in tables())
    wanted = by_complex(by_halves=True)
    side = OperandShards([QUERY], Turned(REF, REF), angles=(cos, sin))
    made, _ = turned_alike(side, OperandShards([wanted], Whole()))
    assert torch.allclose(made.shards[0], wanted, atol=1e-5)


def test_tables_of_other_tokens_are_refused() -> None:
    side = OperandShards([QUERY], Turned(REF, REF), angles=tuple(table[:-1] for table in tables()))
    with pytest.raises(Incomparable, match="position tables"):
        turned_alike(side, OperandShards([QUERY], Whole()))


def test_shapes_alone_are_not_turned() -> None:
    side = OperandShards([torch.empty(7, 3, 8, device="meta")], Turned(REF, REF))
    made, note = turned_alike(side, side)
    assert (made, note) == (replace(side, view=Whole()), ShardNote())


# When two shapes hold the same numbers in the same order, and how shards make a whole.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 7, 32), (7, 32)),
        ((7, 4, 8), (1, 7, 32)),
        ((2, 2), (4,)),
        ((), (1,)),
        ((0, 64), (64, 0)),
        ((1, 1, 128), (1, 2, 64)),
    ],
)
def test_grouping_neighbouring_dimensions_keeps_the_order(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    assert same_order(one, other)
    assert same_order(other, one)


@pytest.mark.parametrize(
    ("one", "other"), [((4, 64), (64, 4)), ((2, 7, 16), (7, 32)), ((7, 32), (6, 32)), ((3,), (4,))]
)
def test_a_transposed_or_stacked_tensor_is_not_the_same(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert not same_order(one, other)
    assert not same_order(other, one)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_merging_any_neighbours_is_always_accepted(shape: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(shape)))))
    edges = [0, *[c for c in cuts if c < len(shape)], len(shape)]
    grouped = tuple(math.prod(shape[a:b]) for a, b in itertools.pairwise(edges))
    assert same_order(tuple(shape), grouped)


def test_rows_and_width_of_any_rank() -> None:
    assert rows_and_width(()) == (1, 1)
    assert rows_and_width((5,)) == (1, 5)
    assert rows_and_width((2, 3, 4)) == (6, 4)


@pytest.mark.parametrize(
    ("shard", "count", "whole", "rule"),
    [
        ((4, 16), 2, (4, 32), Merge("columns")),
        ((1, 4, 16), 2, (1, 4, 32), Merge("columns")),
        ((2, 8), 2, (4, 8), Merge("rows")),
        ((4, 8), 2, (4, 8), Merge("replicated")),
        ((4, 16), 2, (1, 4, 32), Merge("columns")),  # 2-D ATB against 3-D torch: the lm_head case
        ((7, 2, 8), 2, (1, 7, 32), Merge("columns")),  # heads apart
        ((1, 64), 2, (1, 128), Merge("columns")),
        ((7, 1, 8), 4, (1, 7, 16), Merge("columns", 2)),  # 2 key-value heads on 4 ranks
        ((4, 8), 1, (1, 4, 8), Merge("single")),
        ((8, 16), 2, (1, 32, 16), None),
        ((4, 8), 1, (4, 9), None),
    ],
)
def test_the_rule_by_which_shards_make_the_whole(
    shard: tuple[int, ...], count: int, whole: tuple[int, ...], rule: Merge | None
) -> None:
    assert merge_rule(shard, count, whole) == rule


@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from(["columns", "rows", "replicated"]),
)
def test_a_found_rule_rebuilds_the_tensor(count: int, rows: int, width: int, how: str) -> None:
    shards: tuple[torch.Tensor, ...]
    if how == "columns":
        whole = torch.arange(rows * width * count).reshape(rows, -1)
        shards = whole.chunk(count, dim=1)
    elif how == "rows":
        whole = torch.arange(rows * width * count).reshape(-1, width)
        shards = whole.chunk(count, dim=0)
    else:
        whole = torch.arange(rows * width).reshape(rows, width)
        shards = (whole,) * count
    rule = merge_rule(tuple(shards[0].shape), count, tuple(whole.shape))
    assert rule is not None
    if rule.how == "columns":
        assert torch.equal(
            torch.cat([s.reshape(whole.shape[0], -1) for s in shards[:: rule.replicas]], 1), whole
        )
    elif rule.how == "rows":
        assert torch.equal(
            torch.cat([s.reshape(-1, whole.shape[1]) for s in shards[:: rule.replicas]]), whole
        )
    else:
        assert torch.equal(shards[0].reshape(whole.shape), whole)


def test_rules_are_said_in_words() -> None:
    def described(shard: tuple[int, ...], count: int, whole: tuple[int, ...]) -> str:
        rule = merge_rule(shard, count, whole)
        assert rule is not None
        return rule.describe(count)

    assert described((4, 8), 1, (4, 8)) == ""
    assert described((4, 8), 2, (4, 16)) == "2 shards concatenated along the last dimension"
    assert described((4, 8), 2, (8, 8)) == "2 shards concatenated along the first dimension"
    assert "replicated on 2 ranks" in described((4, 8), 2, (4, 8))
    assert "each shard held by 2 ranks" in described((7, 1, 8), 4, (7, 16))
    assert Merge("sum").describe(2) == "partial results of 2 ranks summed"


@pytest.mark.parametrize(
    ("shard", "count", "whole", "merge"),
    [
        ((7, 2, 8), 2, (7, 1, 4, 8), Merge("columns", 1, 7)),
        ((7, 1, 8), 4, (7, 1, 4, 8), Merge("columns", 1, 7)),
        ((8, 8), 4, (8, 1, 4, 8), Merge("columns", 1, 8)),
        ((7, 8), 4, (7, 1, 2, 8), Merge("columns", 2, 7)),
        ((2, 8), 2, (1, 1, 4, 8), Merge("rows", 1)),
        ((2, 7, 16), 2, (2, 7, 32), Merge("columns", 1, 14)),
    ],
)
def test_a_whole_that_keeps_its_heads_apart_is_split_by_heads(
    shard: tuple[int, ...], count: int, whole: tuple[int, ...], merge: Merge
) -> None:
    assert merge_rule(shard, count, whole) == merge


def test_shards_of_several_heights_are_rows_if_all_are_there() -> None:
    assert uneven_rows([(3, 8), (2, 8)], (5, 8)) == Merge("rows")
    assert uneven_rows([(3, 8), (2, 8)], (1, 5, 8)) == Merge("rows")
    assert uneven_rows([(3, 8), (2, 8)], (6, 8)) is None
    assert uneven_rows([(3, 8), (4, 4)], (5, 8)) is None


# Tensors inside of experts: rows meet by token and expert, whatever order they are in.


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Dump]:
    """The model, and the hooks' dump of it: a kernel for all experts, sorted by one."""
    model = model_of("mixtral")
    return model, golden(model, Prompts(), tmp_path_factory.mktemp("golden"))


INSIDE = Spec(experts=4, inside=True, moe="block_sparse_moe", layers=1, lengths=(6, 9))


@pytest.mark.parametrize("engine", [slow(Grouped), Shuffled, slow(LogitsAlone)])
def test_rows_of_two_kernels_meet_by_token_and_expert(
    engine: type[Grouped], mixtral: tuple[Any, Dump], tmp_path: Path
) -> None:
    model, side = mixtral
    made = plan(side, engine(model, Prompts(ranks=2), tmp_path).dump())
    rows, _ = run(made)
    assert {row.verdict for row in rows} == {"pass"}
    kernels = [pair for pair in made.pairs if pair.golden.experts is not None]
    assert {pair.mine.node.rpartition(".")[2] for pair in kernels} == {"gate_up_proj"}
    assert "rows by token and expert" in open_pair(kernels[0]).notes


def test_a_module_for_each_expert_meets_rows_of_one_kernel(tmp_path: Path) -> None:
    spec = replace(INSIDE, ranks=2)
    made = plan(*both(spec, tmp_path))
    rows, _ = run(made)
    assert [row.sentence for row in rows if row.verdict != "pass"] == []
    inside = Counter(
        pair.mine.node.rpartition(".")[2] for pair in made.pairs if pair.golden.experts is not None
    )
    assert inside == {"w13": 2 * spec.experts, "act_fn": spec.experts, "w2": spec.experts}


def test_a_wrong_kernel_is_the_root(tmp_path: Path) -> None:
    _, diagnosis = run(plan(*both(INSIDE, tmp_path, Fault("expert", layer=0))))
    assert diagnosis.roots[0].row.mine.node == "root.model.layers.0.block_sparse_moe.experts.w13"


def test_choices_of_a_token_have_no_order(mixtral: tuple[Any, Dump], tmp_path: Path) -> None:
    class LeastFirst(Grouped):
        def router(self, path: str, source: str, x: Ranks) -> list[tuple[Any, Any, Any]]:
            given = super().router(path, source, x)
            return [(logits, shares.flip(-1), chosen.flip(-1)) for logits, shares, chosen in given]

    model, side = mixtral
    rows, _ = run(plan(side, LeastFirst(model, Prompts(), tmp_path).dump()))
    assert {row.verdict for row in rows} == {"pass"}
    assert {row.mine.slot for row in rows if row.mine.node.endswith("topk")} == {"output[0]", "output[1]"}


def test_weights_of_experts_that_are_scaled_later_meet_scaled_ones(tmp_path: Path) -> None:
    model = model_of("deepseek_v2")
    mine = ScaledLater(model, Prompts(), tmp_path / "mine").dump()
    rows, _ = run(plan(golden(model, Prompts(), tmp_path / "golden"), mine))
    assert {row.verdict for row in rows} == {"pass"}
    assert [row.mine.slot for row in rows if row.mine.node.endswith("topk")] == ["output[0]", "output[1]"]


def test_rows_in_an_order_that_nothing_tells_are_not_judged(
    mixtral: tuple[Any, Dump], tmp_path: Path
) -> None:
    class Unknown(Shuffled):
        index_dumped = False

    model, side = mixtral
    rows, diagnosis = run(plan(side, Unknown(model, Prompts(), tmp_path).dump()))
    assert not diagnosis.roots
    left = {row.sentence for row in rows if row.verdict != "pass"}
    assert left == {"nothing tells which row is which token at which expert"}
