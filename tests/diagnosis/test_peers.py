"""What stands out among the same operator in other layers and steps, although every bound holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acc_pytest.diagnosis.evidence import with_replay
from acc_pytest.diagnosis.recomputation import Recomputation
from acc_pytest.diagnosis.summary import Peers
from acc_pytest.mapping.pair import Plan
from acc_pytest.reporting.row import Row

from .plans import plan_of, row_of

LAYERS = 6
U = 2.0**-8


@pytest.fixture
def plan() -> Plan:
    """The first product of each layer's MLP, in a prefill and a decode step."""
    bare = plan_of([()] * 2 * LAYERS, steps=[0] * LAYERS + [1] * LAYERS)
    pairs = []
    for number, pair in enumerate(bare.pairs):
        name = f"root.layers.{number % LAYERS}.mlp.fc1"
        sides = replace(pair.golden, node=name), replace(pair.mine, node=name, op_type="Linear")
        pairs.append(replace(pair, golden=sides[0], mine=sides[1]))
    return replace(bare, pairs=tuple(pairs))


def told(plan: Plan, rows: list[Row]) -> tuple[str, ...]:
    peers = Peers()
    for row in reversed(rows):
        peers.add(row)
    return peers.lines(plan)


def rows_of(levels: list[float]) -> list[Row]:
    return [row_of(number, level, number // LAYERS) for number, level in enumerate(levels)]


def test_a_pair_that_is_far_beyond_its_peers_is_told_and_no_other(plan: Plan) -> None:
    usual = [0.10, 0.11, 0.12, 0.11, 0.10, 0.12]
    (line,) = told(plan, rows_of([*usual, 0.10, 0.11, 0.9, 0.11, 0.10, 0.12]))
    assert line.startswith("outlier: Op_8 step 1: its share of its bounds is 8.2 times that of its 5 peers,")
    assert told(plan, rows_of([*usual, 0.10, 0.11, 0.25, 0.11, 0.10, 0.12])) == ()


def test_decode_steps_are_no_peers_of_the_prefill(plan: Plan) -> None:
    assert told(plan, rows_of([0.01] * LAYERS + [0.2] * LAYERS)) == ()


def test_peers_that_differ_much_hide_what_differs_as_much(plan: Plan) -> None:
    assert told(plan, rows_of([0.05, 0.1, 0.2, 0.3, 0.4, 0.65] * 2)) == ()


def test_too_few_peers_say_nothing(plan: Plan) -> None:
    assert told(plan, rows_of([0.1, 0.1, 0.9])) == ()


def test_where_a_pair_fails_its_roots_say_more(plan: Plan) -> None:
    assert told(plan, rows_of([0.1, 0.1, 0.1, 0.9, 0.1, 2.0])) == ()


def replayed(levels: list[float], biases: list[float], known: float = 0.0) -> list[Row]:
    """Rows with what replay measured: errors as shares of what is allowed, biases in u."""
    return [
        with_replay(
            replace(row, mine=replace(row.mine, dtype="bfloat16")),
            Recomputation(
                "right", 0.01 * level, allowed=0.01, bias=bias * U, bias_allowed=U, bias_noise=known * U,
                bias_deviation=0.02 * U,
            ),
        )
        for row, level, bias in zip(rows_of([0.5] * len(levels)), levels, biases)
    ]  # fmt: skip


def test_what_replay_measured_counts_where_there_is_any(plan: Plan) -> None:
    (line,) = told(plan, replayed([0.2, 0.2, 0.8, 0.2, 0.2, 0.2], [0.0] * 6))
    assert line.startswith("outlier: Op_2 step 0: its error on its own inputs is 4 times that of its 5 peers")


def test_a_bias_that_all_layers_share_is_told_once(plan: Plan) -> None:
    """0.12 u each is within u/4. Of twelve the mean is known to 0.006 u; u/16 and 4 of these are 0.086 u."""
    (line,) = told(plan, replayed([0.2] * 12, [0.12] * 12))
    assert (
        line
        == "bias: all 12 of root.layers.*.mlp.fc1 are 0.00047 too large together, rounding may do 0.00033"
    )
    assert told(plan, replayed([0.2] * 12, [0.12, -0.12] * 6)) == ()
    assert told(plan, replayed([0.2] * 12, [0.12] * 12, known=0.06)) == ()
