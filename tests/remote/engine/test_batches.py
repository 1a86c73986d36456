"""Batches: full by bytes or by pairs, of one place, longest first."""

from __future__ import annotations

from acc_pytest.remote.engine.dispatch import ENOUGH_BYTES, ENOUGH_PAIRS, Batch, PairSize, batches_of

MEGABYTE = 2**20


def test_small_pairs_travel_by_number_and_large_ones_by_bytes() -> None:
    small = batches_of(PairSize(number, 10) for number in range(2 * ENOUGH_PAIRS + 1))
    assert [len(batch.numbers) for batch in small] == [ENOUGH_PAIRS, ENOUGH_PAIRS, 1]
    large = batches_of(PairSize(number, 20 * MEGABYTE) for number in range(10))
    assert [len(batch.numbers) for batch in large] == [4, 4, 2]
    assert all(batch.nbytes >= ENOUGH_BYTES for batch in large[:-1])
    assert [number for batch in (*small, *large) for number in batch.numbers] == [*range(129), *range(10)]


def test_pairs_of_different_places_do_not_travel_together() -> None:
    here, there = frozenset("a"), frozenset("b")
    batches = batches_of(PairSize(number, 1, (here, there)[number % 2]) for number in range(6))
    assert {batch.places: batch.numbers for batch in batches} == {here: (0, 2, 4), there: (1, 3, 5)}


def test_the_longest_goes_first_and_those_alike_in_the_order_of_the_run() -> None:
    batches = [Batch((0,), 65 * MEGABYTE), Batch((1,), 70 * MEGABYTE), Batch((2,), 900 * MEGABYTE)]
    waited_for = Batch((3,), 1, urgent=True)
    in_order = sorted([*batches, waited_for], key=lambda batch: batch.order)
    assert [batch.numbers for batch in in_order] == [(3,), (2,), (0,), (1,)]
