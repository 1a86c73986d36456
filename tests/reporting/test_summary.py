"""The tally does not depend on the order of arrival; the summary is short and says what matters."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Plan
from acc_pytest.reporting.row import Row, RowSide
from acc_pytest.reporting.summary import Tally, coverage, coverage_line, summary_lines


def row(number: int | None, verdict: str = "pass", times: float = 0.5) -> Row:
    check = Check("m", times, 1.0, False, "", times <= 1)
    side = RowSide(name=f"ElewiseOperation_{number}_1", op_type="ElewiseOperation")
    return Row(
        f"id{number}", verdict, f"m is {times}", number, step=2, layer="layers.3", mine=side, checks=(check,)
    )


def plan(golden: tuple[int, int], mine: tuple[int, int]) -> Plan:
    return Plan("g", "m", "torch", "atb", "d", (), (), (), golden[1], golden[0], mine[1], mine[0])


@pytest.mark.parametrize("seed", range(5))
def test_the_first_failing_pair_is_that_of_execution_order(seed: int) -> None:
    rows = [row(n, "fail" if n >= 7 else "pass", times=2 + n % 3) for n in range(20)]
    random.Random(seed).shuffle(rows)
    tally = Tally()
    for one in rows:
        tally.add(one)
    assert tally.first is not None
    assert tally.first.number == 7
    assert [one.number for one in tally.worst] == [8, 11, 14, 17, 7][:5] or tally.worst[0].excess == 4
    assert [one.excess for one in tally.worst] == [4, 4, 4, 4, 3]
    assert tally.compared == tally.tried == 20


def test_rows_of_own_tests_come_after_pairs() -> None:
    tally = Tally()
    tally.add(row(None, "fail", 9.0))
    tally.add(row(3, "fail", 2.0))
    assert tally.first is not None
    assert tally.first.number == 3
    assert tally.worst[0].number is None


def test_skipped_pairs_are_counted_but_neither_first_nor_worst() -> None:
    tally = Tally()
    tally.add(Row("id", "incomparable", "descriptions only", 0, skipped=True))
    assert tally.first is None
    assert tally.worst == ()
    assert (tally.tried, tally.compared) == (1, 0)


def test_the_summary_names_step_layer_operator_and_file() -> None:
    tally = Tally()
    for one in (row(0), row(1, "fail", 3.0), Row("", "unmapped", "alone", 9)):
        tally.add(one)
    lines = summary_lines(tally, plan((9, 10), (5, 10)), 0.5)
    assert lines[0] == "verdicts: 1 pass, 1 fail, 1 unmapped"
    assert lines[1] == "coverage: golden 9 of 10 nodes (90%), mine 5 of 10 (50%); floor 50% reached"
    assert lines[2] == "first failing: ElewiseOperation_1_1 step 2 layers.3: m 3, allowed 1 (3 times)"


def test_that_golden_s_model_cannot_be_made_is_said_once() -> None:
    tally = Tally()
    context = {"replay_outcome": "right", "replay_lacking": "transformers 9 have no model Foo"}
    for number in range(2):
        tally.add(replace(row(number), context=context))
    (line,) = (one for one in summary_lines(tally, None, 0.5) if one.startswith("replay: "))
    assert line == (
        "replay: 2 of 2 tensors of operators were computed again; only linear layers were, because "
        "golden's model cannot be made: transformers 9 have no model Foo"
    )


def test_the_summary_has_at_most_twenty_lines_of_bounded_length() -> None:
    tally = Tally()
    for number in range(3000):
        bad = Row("i" * 500, "fail", "s" * 500, number)
        tally.add(bad)
    tally.add(Row("i", "incomparable", "", 1))
    lines = summary_lines(tally, plan((1, 10), (1, 10)), 0.5)
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 160


def test_a_run_without_dumps_has_no_coverage() -> None:
    tally = Tally()
    tally.add(row(None))
    assert summary_lines(tally, None, 0.0) == ["verdicts: 1 pass"]


def test_coverage_is_that_of_the_better_side() -> None:
    assert coverage(plan((9, 10), (1, 10))) == 0.9
    assert coverage(plan((0, 0), (0, 0))) == 0.0
    said = coverage_line(plan((1, 10), (2, 10)), 0.25)
    assert said.endswith("floor 25% NOT reached: 20.0% is below it, so the run fails")


def test_rows_are_counted_and_the_tests_they_are_of_where_these_are_fewer() -> None:
    tally = Tally()
    for verdict in ("pass", "fail", "fail"):
        tally.add(Row("opcheck::step0::Norm_1", verdict, "s"))
    tally.add(Row("opcheck::step0::Norm_2", "pass", "s"))
    line = summary_lines(tally, None, 0.0)[0]
    assert line == "verdicts: 2 pass, 2 fail (one for each tensor); 1 of 2 tests fail"
