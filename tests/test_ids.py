"""Names of generated tests and the command line that selects them, without pytest."""

from __future__ import annotations

import pytest

from acc_pytest.errors import AccError
from acc_pytest.ids import Naming, is_ours, select
from acc_pytest.mapping.pair import Operand, Pair, Plan

SIDE = Operand("n", "n", "Op", "output[0]", ())


def pair(id_: str, step: int | str = 0, layer: str = "model", rank: int | None = None) -> Pair:
    return Pair(id_, step, rank, "op", layer, 0, 0, "name", "same", SIDE, SIDE)


def plan(*pairs: Pair) -> Plan:
    return Plan("g", "m", "torch", "atb", "d", pairs, (), (), 1, 1, 1, 1)


PAIRS = (
    pair("Gather_0"),
    pair("Linear_1", layer="layers.1"),
    pair("Split_1[1]", layer="layers.1"),
    pair("Linear_10", layer="layers.10"),
    pair("Linear_1", step="warmup", layer="layers.1"),
)
NAMING = Naming.of(plan(*PAIRS))


def chosen(*arguments: str) -> list[int]:
    return [number for number, _ in select(enumerate(PAIRS), NAMING, arguments)]


def test_a_rank_is_named_only_where_several_are_judged() -> None:
    one = plan(pair("A", rank=0), pair("B", rank=0))
    assert Naming.of(one).node_id(one.pairs[0]) == "d::step0::model::A"
    several = plan(pair("A", rank=0), pair("A", rank=1), pair("B"))
    assert [Naming.of(several).node_id(one) for one in several.pairs] == [
        "d::step0::rank0::model::A",
        "d::step0::rank1::model::A",
        "d::step0::model::B",
    ]


def test_a_parameter_is_the_id_without_the_root() -> None:
    assert NAMING.parameter(PAIRS[4]) == "stepwarmup/layers.1/Linear_1"


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["d"], [0, 1, 2, 3, 4]),
        (["d::step0"], [0, 1, 2, 3]),
        (["d::step0::layers.1"], [1, 2]),
        (["d::step0::layers.1::Linear_1"], [1]),
        (["d::step0::layers.1::Split_1"], [2]),
        (["d::step0::layers.1::Split_1[1]"], [2]),
        (["../elsewhere/d::stepwarmup"], [4]),
        (["d::stepwarmup", "d::step0::model"], [0, 4]),
    ],
)
def test_an_argument_selects_what_is_below_it(arguments: list[str], numbers: list[int]) -> None:
    assert chosen(*arguments) == numbers


@pytest.mark.parametrize(
    ("argument", "near"),
    [
        ("d::step0::layers.2", "d::step0::layers.1"),
        ("d::step0::layers.1::Linear_1[2]", "d::step0::layers.1::Linear_1"),
        ("d::step0::model::Gather_0::x", "d::step0::model::Gather_0 has nothing below it"),
        ("d::zzz", "nearest: d::step0, d::stepwarmup"),
    ],
)
def test_an_argument_that_selects_nothing_names_the_nearest(argument: str, near: str) -> None:
    with pytest.raises(AccError, match="no generated test matches") as error:
        chosen("d::step0", argument)
    assert near in str(error.value)


def test_an_argument_when_nothing_was_mapped() -> None:
    with pytest.raises(AccError, match="nothing could be mapped"):
        select([], NAMING, ["d::step0"])


@pytest.mark.parametrize(
    ("argument", "ours"),
    [
        ("d", True),
        ("d::step0", True),
        ("../x/d::step0", True),
        ("tests/d", False),
        ("dd::step0", False),
        ("tests/test_d.py::test_x", False),
    ],
)
def test_which_arguments_are_ours(argument: str, ours: bool) -> None:
    assert is_ours(argument, "d") is ours
