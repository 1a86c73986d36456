"""The engine over a pool in this process: every row once, whatever becomes of the nodes."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import acc_pytest.remote.engine.engine
from acc_pytest.errors import SettingsError
from acc_pytest.reference.recomputation import Recomputation
from acc_pytest.remote.engine.dispatch import (
    ANYWHERE,
    ATTEMPTS,
    ENOUGH_BYTES,
    ENOUGH_PAIRS,
    UNKNOWN_SIZE,
    Batch,
    Dispatch,
    GivenUp,
    PairSize,
    Placement,
    batches_of,
)
from acc_pytest.remote.engine.engine import EnginePace, NotMeasured, RemoteRecomputer, TaskPatience
from acc_pytest.remote.engine.pool import Ended, LostTask
from acc_pytest.remote.engine.work import MeasureCall, Measured, PairAnswer, RecomputeCall, packed, unpacked
from acc_pytest.reporting.progress import EVERY, FIRST
from acc_pytest.reporting.row import Row

from .fake_pool import FakePool, FakeSubject, engine_of, pair

RULE: Any = ("a rule",)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are looked at in every turn."""
    monkeypatch.setattr(acc_pytest.remote.engine.engine, "EVERY", 0.0)


def test_every_pair_is_measured_once_and_its_row_comes_back() -> None:
    pairs = [pair(number) for number in range(200)]
    pool = FakePool(FakeSubject(pairs))
    engine = engine_of(pool, pairs)
    engine.expect(range(200), lambda number: RULE if number == 7 else None)
    rows = [engine.row(number) for number in range(200)]
    assert [row.number for row in rows if row is not None] == [*range(200)]
    assert sorted(pool.measured) == [*range(200)]
    assert [number for number, row in enumerate(rows) if row and "rule" in row.sentence] == [7]
    assert {node for node, _ in pool.ran} == {"a", "b"}
    engine.close()
    assert pool.is_closed


def test_a_pair_that_no_test_was_expected_for_is_measured_when_it_is_asked_for() -> None:
    pairs = [pair(number) for number in range(3)]
    pool = FakePool(FakeSubject(pairs))
    engine = engine_of(pool, pairs)
    engine.expect([0], lambda _: None)
    row = engine.row(2)
    assert row is not None
    assert row.number == 2
    assert 1 not in pool.measured


def test_a_pair_whose_rules_are_wrong_is_left_to_its_own_test() -> None:
    def rules(number: int) -> None:
        if number == 1:
            raise SettingsError("rtol must be >= 0, got -1")

    pairs = [pair(number) for number in range(3)]
    pool = FakePool(FakeSubject(pairs))
    engine = engine_of(pool, pairs)
    engine.expect(range(3), rules)
    assert [engine.row(number) is None for number in range(3)] == [False, True, False]
    assert pool.measured == [0, 2]


def test_tasks_lost_at_random_lose_no_row() -> None:
    """Each task is lost with probability 1/5: four in a row, which gives a pair up, are 1 in 625; the seed is
    one without."""
    chance = random.Random(5)
    pairs = [pair(number) for number in range(300)]
    pool = FakePool(FakeSubject(pairs), [*"abc"], loses=lambda node, call: chance.random() < 0.2)
    engine = engine_of(pool, pairs)
    engine.expect(range(300), lambda _: None)
    assert [row.number for number in range(300) if (row := engine.row(number))] == [*range(300)]


def test_a_pair_that_kills_its_process_takes_nobody_along() -> None:
    pairs = [pair(number) for number in range(100)]
    pool = FakePool(
        FakeSubject(pairs), loses=lambda node, call: isinstance(call, MeasureCall) and 42 in call.numbers
    )
    engine = engine_of(pool, pairs)
    engine.expect(range(100), lambda _: None)
    with pytest.raises(NotMeasured, match="the node died; tried 4 times"):
        engine.row(42)
    assert all(engine.row(number) for number in range(100) if number != 42)


def test_a_run_that_may_stop_early_is_measured_in_its_order(tmp_path: Path) -> None:
    """The last pair is sixteen times as large as the others, each of which fills a batch."""
    paths = [tmp_path / str(number) for number in range(3)]
    for path, size in zip(paths, (2**25, 2**25, 2**29)):
        with path.open("wb") as file:
            file.truncate(size)
    pairs = [pair(number, str(path), str(path)) for number, path in enumerate(paths)]
    for in_order, numbers in ((False, [2, 0, 1]), (True, [0, 1, 2])):
        pool = FakePool(FakeSubject(pairs), ["a"])
        engine = engine_of(pool, pairs)
        engine.expect([0, 1, 2], lambda _: None, in_order=in_order)
        assert all(engine.row(number) for number in (0, 1, 2))
        assert pool.measured == numbers


def test_a_node_that_is_removed_has_its_pairs_measured_by_another() -> None:
    pairs = [pair(number) for number in range(300)]
    pool = FakePool(FakeSubject(pairs))
    engine = engine_of(pool, pairs)
    engine.expect(range(300), lambda _: None)
    engine.row(0)
    pool.names.remove("a")
    assert all(engine.row(number) for number in range(300))


def test_a_node_that_is_gone_is_left_alone_though_the_cluster_still_lists_it() -> None:
    pairs = [pair(number) for number in range(300)]
    pool = FakePool(FakeSubject(pairs), loses=lambda node, call: node == "a", gone=["a"])
    engine = engine_of(pool, pairs)
    engine.expect(range(300), lambda _: None)
    assert all(engine.row(number) for number in range(300))
    assert [*engine._fleet.alive] == ["b"]


def test_without_any_node_the_rest_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acc_pytest.remote.engine.engine, "PATIENCE", 0.0)
    pairs = [pair(number) for number in range(300)]
    said: list[str] = []
    pool = FakePool(FakeSubject(pairs))
    engine = engine_of(pool, pairs, said)
    engine.expect(range(300), lambda _: None)
    pool.names.clear()
    with pytest.raises(NotMeasured, match="no node of the cluster is left"):
        engine.row(299)
    assert said == ["acc: no node of the cluster is left; waiting 0 s for one"]


def test_a_file_that_one_kind_of_node_lacks_is_measured_on_another(tmp_path: Path) -> None:
    """The nodes see other files, so that they are of two kinds; the row is that of the node with the file."""
    there = tmp_path / "there"
    there.write_bytes(b"x")
    pairs = [pair(0, str(there), str(tmp_path / "missing"))]

    seeing = FakeSubject([pair(0, str(there), str(there))], "seeing")
    pool = FakePool({"a": FakeSubject(pairs, "blind", "incomparable"), "b": seeing})
    engine = engine_of(pool, pairs)
    sights = engine._fleet._sights  # in one process both nodes see the same
    sights["b"] = replace(sights["b"], present=(True, True))
    engine.expect([0], lambda _: None)
    row = engine.row(0)
    assert row is not None
    assert row.sentence == "seeing None"


class Recomputes:
    """Says of each operator that it is right."""

    def of_pair(self, number: int) -> Recomputation:
        return Recomputation("right", 0.5 * number)

    def unlike(self, number: int, path: str) -> str:
        return f"{path} of {number}"


def test_operators_are_computed_again_where_their_tensors_are() -> None:
    pairs = [pair(number) for number in range(3)]
    subject = FakeSubject(pairs)
    subject.recomputer = Recomputes()
    pool = FakePool(subject)
    recomputer = RemoteRecomputer(engine_of(pool, pairs))
    assert [recomputer.of_pair(2), recomputer.of_pair(2)] == [Recomputation("right", 1.0)] * 2
    assert recomputer.unlike(1, "path") == "path of 1"
    assert [call for _, call in pool.ran if isinstance(call, RecomputeCall)] == [
        RecomputeCall("of_pair", (2,)),
        RecomputeCall("unlike", (1, "path")),
    ]
    pool.loses = lambda node, call: True
    assert recomputer.of_pair(1) == Recomputation(why="the node died")
    assert recomputer.unlike(0, "path") == ""


class Clock:
    """Time that passes when it is looked at, a second each."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


def test_pairs_of_a_node_that_gives_no_answer_are_measured_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acc_pytest.remote.engine.engine, "time", Clock())
    pairs = [pair(number) for number in range(200)]
    pool = FakePool(FakeSubject(pairs), silent=["b"])
    said: list[str] = []
    engine = engine_of(pool, pairs, said)
    engine.expect(range(150), lambda _: None)
    assert [row.number for number in range(150) if (row := engine.row(number))] == [*range(150)]
    assert [line for line in said if "B has" in line] == [
        "acc: node B has not answered for 324 s; its pairs go elsewhere"  # 96 MiB at 4 a second
    ]
    assert len(pool.cancelled) == 2
    assert {node for node, _ in pool.ran} == {"a"}
    pool.silent = []
    assert [row.number for number in range(150, 200) if (row := engine.row(number))] == [*range(150, 200)]
    assert {node for node, _ in pool.ran} == {"a", "b"}  # its late answers took it back


def test_a_pair_that_hangs_everywhere_is_given_up_and_nodes_that_are_free_again_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acc_pytest.remote.engine.engine, "time", Clock())
    pairs = [pair(number) for number in range(100)]
    pool = Hanging(FakeSubject(pairs))
    engine = engine_of(pool, pairs)
    engine.expect(range(100), lambda _: None)
    for number in range(100):
        if number == 7:
            with pytest.raises(NotMeasured, match=r"no answer for 301 s \(acc_engine_patience\); tried 4"):
                engine.row(number)
        else:
            assert engine.row(number) is not None


class Hanging(FakePool):
    """Pair 7 hangs the process that measures it until that is cancelled."""

    def ended(self, seconds: float) -> Iterator[Ended]:
        stuck = {
            ticket
            for ticket, (_, call) in self.tasks.items()
            if 7 in getattr(pickle.loads(call), "numbers", ())
        }
        for ticket in stuck.intersection(self.cancelled):
            del self.tasks[ticket]
            yield ticket, LostTask("cancelled")
        hidden = {ticket: self.tasks.pop(ticket) for ticket in stuck & self.tasks.keys()}
        yield from super().ended(seconds)
        self.tasks |= hidden


def test_a_task_may_take_ten_times_what_the_slowest_took() -> None:
    patience = TaskPatience(300.0)
    assert patience.with_task(2**30, 0) == 300 + 2**8  # at 4 MiB a second
    patience.answered(30.0, 2**30, 0)
    patience.answered(1.0, 2**30, 0)
    assert patience.with_task(2**30, 0) == 300 + 2**8
    patience.answered(100.0, 2**30, 0)
    assert patience.with_task(2**34, 0) == 16 * 1000


# What becomes of each pair: final once, tried again, given up, asked for elsewhere.


BOTH = frozenset("ab")
KINDS = {"left": frozenset("a"), "right": frozenset("b")}


def measured(number: int, said: str = "", incomplete: bool = False, verdict: str = "fail") -> Measured:
    (one,) = unpacked(packed([PairAnswer(number, Row("", verdict, said, number), incomplete)]))
    return one


def said(dispatch: Dispatch, number: int) -> str:
    found = dispatch.final[number]
    assert isinstance(found, Measured)
    assert found.row is not None
    return found.row.sentence


def test_a_pair_is_final_once() -> None:
    dispatch = Dispatch()
    dispatch.add([Batch((0,), 1)])
    dispatch.answered([measured(0, "first")], "left", KINDS)
    dispatch.answered([measured(0, "second")], "left", KINDS)
    dispatch.lost(Batch((0,), 1), "too late")
    assert said(dispatch, 0) == "first"
    assert dispatch.next_for("a", BOTH, is_free=True) is None


def test_a_batch_that_is_lost_runs_again_then_its_pairs_alone_and_then_not() -> None:
    dispatch = Dispatch()
    dispatch.add([Batch((0, 1, 2), 30)])
    sizes: list[int] = []
    while (batch := dispatch.next_for("a", BOTH, is_free=True)) is not None:
        sizes.append(len(batch.numbers))
        if batch.numbers == (1,) or len(batch.numbers) > 1:
            dispatch.lost(batch, "its process was killed")
        else:
            dispatch.answered([measured(batch.numbers[0])], "left", KINDS)
    assert sizes == [3, 3, 1, 1, 1, 1]
    assert dispatch.final[1] == GivenUp(1, f"its process was killed; tried {ATTEMPTS} times")
    assert isinstance(dispatch.final[0], Measured)
    assert isinstance(dispatch.final[2], Measured)


def test_what_is_missing_on_one_node_is_looked_for_on_others_of_another_kind() -> None:
    dispatch = Dispatch()
    dispatch.add([Batch((0,), 1, frozenset("a"))])
    assert dispatch.next_for("a", BOTH, is_free=True) is not None
    dispatch.answered([measured(0, "no such file", incomplete=True)], "left", KINDS)
    assert dispatch.next_for("a", BOTH, is_free=True) is None
    again = dispatch.next_for("b", BOTH, is_free=True)
    assert again is not None
    dispatch.answered([measured(0, "found")], "right", KINDS)
    assert said(dispatch, 0) == "found"


def test_what_is_missing_everywhere_keeps_the_row_that_says_most() -> None:
    for verdicts, kept in ((("incomparable", "fail"), "right"), (("fail", "incomparable"), "left")):
        dispatch = Dispatch()
        dispatch.answered([measured(0, "left", True, verdicts[0])], "left", KINDS)
        dispatch.answered([measured(0, "right", True, verdicts[1])], "right", KINDS)
        assert said(dispatch, 0) == kept


def test_what_only_a_node_holds_that_is_gone_is_tried_on_any_other() -> None:
    dispatch = Dispatch()
    dispatch.add([Batch((0,), 1, frozenset("a")), Batch((1,), 1, frozenset("b"))])
    first, then = (dispatch.next_for("b", frozenset("b"), is_free=True) for _ in range(2))
    assert (first and first.numbers, then and then.numbers) == ((1,), (0,))


def test_a_node_takes_what_it_holds_before_what_all_can_read() -> None:
    dispatch = Dispatch()
    dispatch.add([Batch((0,), 2**30), Batch((1,), 1, frozenset("a"))])
    first = dispatch.next_for("a", BOTH, is_free=True)
    assert first is not None
    assert first.numbers == (1,)


def test_pairs_whose_batch_was_lost_twice_have_a_node_for_themselves() -> None:
    dispatch = Dispatch()
    dispatch.add([Batch((0, 1), 2), Batch((2,), 1)])
    for _ in range(2):
        batch = dispatch.next_for("a", BOTH, is_free=True)
        assert batch is not None
        dispatch.lost(batch, "killed")
    assert dispatch.next_for("a", BOTH, is_free=False) is None
    order = [batch.numbers for _ in range(3) if (batch := dispatch.next_for("a", BOTH, is_free=True))]
    assert order == [(0,), (1,), (2,)]


# Batches: full by bytes or by pairs, of one place, longest first.


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


# Which nodes hold the tensors of a pair, and how many bytes these are.


def test_a_pair_goes_where_most_of_its_bytes_are(tmp_path: Path) -> None:
    names = {"g0": 10, "m0": 1000, "g1": 10, "m1": 2000}
    for name, size in names.items():
        (tmp_path / name).write_bytes(bytes(size))
    pairs = [
        pair(number, str(tmp_path / f"g{rank}"), str(tmp_path / f"m{rank}"), rank=rank)
        for number, rank in enumerate((0, 1, 0))
    ]
    placement = Placement(pairs)
    assert [Path(sample).name for sample in placement.samples] == ["g0", "m0", "g1", "m1"]
    # golden lies on both nodes, mine rank by rank
    present = {"a": (True, True, True, False), "b": (True, False, True, True)}
    assert list(placement.sizes([0, 1, 2], present)) == [
        PairSize(0, 505, frozenset("a")),  # two pairs share its files
        PairSize(1, 2010, frozenset("b")),
        PairSize(2, 505, frozenset("a")),
    ]
    everywhere = dict.fromkeys("ab", (True,) * 4)
    assert {size.places for size in placement.sizes([0, 1, 2], everywhere)} == {ANYWHERE}


def test_what_is_not_on_this_machine_counts_as_a_megabyte() -> None:
    (size,) = Placement([pair(0, "/missing/g", "/missing/m")]).sizes([0], {"a": (False, False)})
    assert size == PairSize(0, 2 * UNKNOWN_SIZE)


# What is said of how far the nodes are.


def test_a_line_has_nodes_pace_and_what_is_left() -> None:
    pace = EnginePace()
    pace.begin(100.0, 2000, 8 * 10**9)
    pace.ended(500, 2 * 10**9)
    assert not pace.due(100.0 + FIRST - 1)
    assert pace.due(100.0 + FIRST)
    assert pace.line(110.0, 2) == "acc: 2 nodes, 0.2 GB/s, 1,500 of 2,000 pairs left, about 30 s"
    assert not pace.due(110.0 + EVERY - 1)
    assert pace.due(110.0 + EVERY)
    pace.ended(1500, 6 * 10**9)
    assert not pace.due(1000.0)


def test_nothing_is_estimated_before_anything_came_back() -> None:
    pace = EnginePace()
    pace.begin(0.0, 3, 10)
    assert pace.line(10.0, 1) == "acc: 1 node, 3 of 3 pairs left"
