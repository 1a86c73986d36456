"""The alignment is one-to-one, keeps both orders and is as long as can be."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.mapping.policies import PIECE, align

words = st.lists(st.sampled_from("abc"), max_size=7)


def longest(one: list[str], other: list[str]) -> int:
    """Length of the longest common subsequence, by the plain recursion."""
    if not one or not other:
        return 0
    if one[0] == other[0]:
        return 1 + longest(one[1:], other[1:])
    return max(longest(one[1:], other), longest(one, other[1:]))


@given(words, words)
def test_it_is_a_longest_common_subsequence(one: list[str], other: list[str]) -> None:
    pairs = align(list(enumerate(one)), list(enumerate(other)), lambda g, m: g[1] == m[1])
    assert all(g[1] == m[1] for g, m in pairs)
    assert len(pairs) == longest(one, other)
    for left, right in itertools.pairwise(pairs):
        assert left[0][0] < right[0][0]
        assert left[1][0] < right[1][0]


def test_one_operator_more_on_one_side_shifts_nothing() -> None:
    assert align("abcd", "abxcd", lambda g, m: g == m) == [("a", "a"), ("b", "b"), ("c", "c"), ("d", "d")]


def test_long_sequences_are_aligned_in_proportion_to_their_length() -> None:
    """Thousands of operators in a row, of which one side has some more: tables of few cells only."""
    asked = 0

    def same(one: int, other: int) -> bool:
        nonlocal asked
        asked += 1
        return one == other

    golden = list(range(20_000))
    mine = [one for one in golden if one % 6000 != 5999] + [-1]
    pairs = align(golden, mine, same)
    assert [one for one, _ in pairs] == [one for one in golden if one % 6000 != 5999]
    assert asked < 4 * PIECE * PIECE + 2 * len(golden)
