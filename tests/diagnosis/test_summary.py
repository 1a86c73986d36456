"""What a run says at its end: roots in execution order, what follows from each, in few lines and at once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from acc_pytest.diagnosis.inheritance import Inheritance
from acc_pytest.diagnosis.run import with_cause
from acc_pytest.diagnosis.standing import Standing
from acc_pytest.diagnosis.summary import MOST_LINES, Ledger, root_lines
from acc_pytest.mapping.pair import Plan
from acc_pytest.reporting.diagnosis import Diagnosis
from acc_pytest.reporting.row import Row

from .plans import Locals, plan_of, row_of


def diagnosed(plan: Plan, levels: dict[int, float], known=None, shuffled: bool = False) -> Diagnosis:
    """The diagnosis of pairs with these levels, whose rows arrive in order or not."""
    rows = {n: row_of(n, level, int(plan.pairs[n].step)) for n, level in levels.items()}
    standings = {n: Standing.of(row, n) for n, row in rows.items()}
    inheritance = Inheritance(plan, standings.get, Locals(known))
    done: list[Row] = [
        with_cause(row, inheritance.cause(standings[n])) if standings[n].failing else row
        for n, row in rows.items()
    ]
    if shuffled:
        random.Random(1).shuffle(done)
    ledger = Ledger()
    for row in done:
        ledger.add(row)
    return ledger.diagnosis(plan)


CHAIN = plan_of(((), (0,), (1,), (2,)))


def test_a_root_says_how_many_inherit_how_much_it_grows_and_what_it_explains():
    found = diagnosed(CHAIN, {0: 0.1, 1: 4.0, 2: 8.0, 3: 6.0}, {1: "wrong"})
    [root] = found.roots
    assert (root.number, root.name, root.inherited, found.inherited) == (1, "Op_1", 2, 2)
    assert root.amplification == pytest.approx(2)
    assert root.share == pytest.approx(1 - (0.1 / 4) ** 2)
    assert root.sentence.startswith("Op_1 (Op) step 0: 2 pairs inherit from it, ")
    assert "explains 100% of the error of Op_3" in root.sentence


def test_the_order_in_which_rows_arrive_says_nothing():
    levels = {0: 2.0, 1: 4.0, 2: 80.0, 3: 6.0}
    known = {0: "wrong", 2: "wrong"}
    assert diagnosed(CHAIN, levels, known, shuffled=True) == diagnosed(CHAIN, levels, known)


def test_a_final_output_within_its_bounds_is_told():
    [root] = diagnosed(CHAIN, {0: 0.1, 1: 4.0, 2: 0.5, 3: 0.5}).roots
    assert root.share is None
    assert "the final output Op_3 is within its bounds" in root.sentence


def test_tensors_of_one_operator_are_one_root():
    plan = plan_of(((), (0,), (0,), (1,), (2,)))
    operand = plan.pairs[1].mine
    pairs = list(plan.pairs)
    pairs[2] = replace(pairs[2], mine=replace(operand, slot="output[1]"))
    plan = replace(plan, pairs=tuple(pairs))
    rows = [row_of(n, level) for n, level in enumerate((0.1, 5, 5, 5, 5))]
    rows[2] = replace(rows[2], mine=rows[1].mine)
    standings = [Standing.of(row, n) for n, row in enumerate(rows)]
    inheritance = Inheritance(plan, standings.__getitem__, Locals())
    ledger = Ledger()
    for row, standing in zip(rows, standings):
        ledger.add(with_cause(row, inheritance.cause(standing)) if standing.failing else row)
    [root] = ledger.diagnosis(plan).roots
    assert (root.number, root.inherited) == (1, 2)


def at_steps(count: int) -> list[str]:
    """The lines of one operator that is a root at so many steps."""
    plan = plan_of(tuple(() for _ in range(count)), steps=range(count))
    pairs = [replace(pair, mine=plan.pairs[0].mine) for pair in plan.pairs]
    plan = replace(plan, pairs=tuple(pairs))
    numbers = range(count)
    return root_lines(diagnosed(plan, dict.fromkeys(numbers, 5.0), dict.fromkeys(numbers, "wrong")), plan)


def test_each_root_has_a_line():
    lines = at_steps(MOST_LINES)
    assert [line.partition(":")[0] for line in lines] == ["root cause"] * MOST_LINES
    assert "step 7" in lines[7]


def test_of_many_roots_an_operator_has_one_line_for_all_steps():
    [line] = at_steps(MOST_LINES + 1)
    assert line.startswith("root cause: Op_0 (Op) step 0: ")
    assert line.endswith("; again at steps 1, 2, 3, 4 and 4 more")


def test_many_roots_are_cut_and_counted():
    plan = plan_of(tuple(() for _ in range(20)))
    lines = root_lines(
        diagnosed(plan, dict.fromkeys(range(20), 5.0), dict.fromkeys(range(20), "wrong")), plan
    )
    assert len([line for line in lines if line.startswith("root cause: Op_")]) == MOST_LINES
    assert lines[-1] == f"root cause: and {20 - MOST_LINES} more operators"


def test_lineage_by_order_is_told_in_one_line():
    plan = plan_of(((), (0,)), by_order=frozenset((0, 1)), lineage="execution order")
    lines = root_lines(diagnosed(plan, {0: 5.0, 1: 5.0}), plan)
    assert lines[-1].startswith("root causes: what a pair computes from is known by execution order")
    assert "rate of change" in lines[-1]


def test_rows_that_are_no_pairs_say_nothing():
    ledger = Ledger()
    ledger.add(replace(row_of(0, 5.0), number=None))
    ledger.add(replace(row_of(0, 5.0), case={"op_id": "1"}))
    ledger.add(replace(row_of(7, 0.5), verdict="unmapped"))
    assert ledger.diagnosis(CHAIN).roots == ()
