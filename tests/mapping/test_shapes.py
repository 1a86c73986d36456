"""When two shapes hold the same numbers in the same order, and how shards make a whole."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.mapping.shapes import Merge, merge_rule, rows_and_width, same_order, uneven_rows


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
