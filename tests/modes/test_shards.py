"""Every test belongs to one shard, and no shard waits long for another."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given, strategies

from acc_pytest.running.distribution import PER_TEST, cost_of, deal

COSTS = strategies.lists(strategies.integers(0, 2**40), max_size=60)


@given(COSTS, strategies.integers(1, 12))
def test_shards_are_disjoint_and_together_everything(costs: list[int], shards: int) -> None:
    owners = deal(costs, shards)
    members = [[place for place, owner in enumerate(owners) if owner == shard] for shard in range(shards)]
    assert sorted(place for shard in members for place in shard) == list(range(len(costs)))


@given(COSTS, strategies.integers(1, 12))
def test_no_shard_has_more_than_the_mean_and_one_test(costs: list[int], shards: int) -> None:
    loads = [0] * shards
    for cost, owner in zip(costs, deal(costs, shards)):
        loads[owner] += cost
    assert max(loads) <= sum(costs) / shards + max(costs, default=0)


def test_the_dearest_go_first() -> None:
    """By hand: 7 and 6 open the shards, 5 joins 6, 4 joins 7; at 11 each, 3 joins the lower, 3 the other."""
    assert deal([3, 7, 4, 5, 6, 3], 2) == [0, 0, 0, 1, 1, 1]


def test_thousands_of_equal_tests_are_dealt_out_evenly() -> None:
    owners = deal([1] * 30_001, 4)
    assert sorted(owners.count(shard) for shard in range(4)) == [7500, 7500, 7500, 7501]


def test_the_same_costs_are_dealt_out_alike() -> None:
    costs = [random.Random(7).randrange(2**30) for _ in range(1000)]
    assert deal(costs, 5) == deal(list(costs), 5)


def test_a_file_counts_once_and_a_missing_one_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"12")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    test: Any = SimpleNamespace(compares=True, files=lambda: [a, b, a, str(tmp_path / "gone"), "nul\0"])
    assert cost_of(test) == PER_TEST + 7
