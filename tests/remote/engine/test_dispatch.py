"""What becomes of each pair: final once, tried again, given up, asked for elsewhere."""

from __future__ import annotations

from acc_pytest.remote.engine.dispatch import ATTEMPTS, Batch, Dispatch, GivenUp
from acc_pytest.remote.engine.work import Measured, PairAnswer, packed, unpacked
from acc_pytest.reporting.row import Row

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
