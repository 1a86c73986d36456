"""Walks upwards: the nearest pairs with a result, their own step first, and how far anybody looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from acc_pytest.diagnosis import inheritance
from acc_pytest.diagnosis.evidence import PairState
from acc_pytest.diagnosis.inheritance import Ancestors


def walker(
    parents: Sequence[Sequence[int]], compared: Mapping[int, bool], steps: Mapping[int, int] = {}
) -> Ancestors:
    """Pairs that run, by number, and whether they could be compared."""
    states = {n: PairState(n, known, False, 0.0, None, f"Op_{n}") for n, known in compared.items()}
    return Ancestors(parents, states.get, lambda number: steps.get(number, 0))


def found(walk: Ancestors, number: int) -> list[int]:
    return [state.number for state in walk.nearest(number)]


DIAMOND = ((), (0,), (0,), (1, 2))


def test_the_nearest_with_a_result_end_their_way_and_others_are_walked_through() -> None:
    assert found(walker(DIAMOND, {0: True, 1: True, 2: True}), 3) == [1, 2]
    half = walker(DIAMOND, {0: True, 1: True, 2: False})
    assert (found(half, 3), half.passed(3)) == ([1, 0], [2])
    nobody = walker(DIAMOND, {})
    assert (found(nobody, 3), nobody.passed(3)) == ([], [1, 2, 0]), "each is met once"
    assert found(walker(DIAMOND, {0: True}), 9) == [], "a pair that the lineage does not know"


def test_pairs_of_the_own_step_are_searched_before_those_of_earlier_ones() -> None:
    parents = ((), (0,), (0, 1))
    assert found(walker(parents, {0: True, 1: True}, {1: 1, 2: 1}), 2) == [1, 0]
    assert found(walker(parents, {0: True, 1: True}), 2) == [0, 1]


def test_a_walk_goes_on_where_it_need_not_stop() -> None:
    walk = walker(((), (0,), (1,), (2,)), dict.fromkeys(range(4), True))
    met = list(walk.walk(3, lambda state: state.number == 1))
    assert [(state.number, stopped) for state, stopped in met] == [(2, False), (1, True)]


def test_so_many_are_found_and_so_many_walked_through() -> None:
    many = inheritance.MOST_FOUND + 2
    wide = (*((),) * many, tuple(range(many)))
    assert len(found(walker(wide, dict.fromkeys(range(many), True)), many)) == inheritance.MOST_FOUND
    long = tuple((n - 1,) if n else () for n in range(inheritance.MOST_PASSED + 2))
    assert found(walker(long, {1: True}), inheritance.MOST_PASSED + 1) == [1]
    assert found(walker(long, {0: True}), inheritance.MOST_PASSED + 1) == []
