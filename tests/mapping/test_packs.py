"""Where the pieces of packed tensors lie, on every rank."""

from __future__ import annotations

import pytest

from acc_pytest.mapping.rule_views import range_by_own, range_by_pieces
from acc_pytest.mapping.views import ColumnRange


def ranges(packed: int, ranks: int, pieces: tuple[int, ...], piece_ranks: int = 1) -> list[tuple[int, int]]:
    found = [range_by_pieces(index, packed, ranks, pieces, piece_ranks) for index in range(len(pieces))]
    return [(each.start, each.stop) for each in found if each is not None]


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
    assert range_by_own(index, packed, first) == ColumnRange(*columns)


def test_a_query_as_wide_as_the_pack_leaves_nothing_for_key_and_value() -> None:
    assert range_by_own(1, 32, 32) is None
    assert range_by_own(1, 33, None) is None
