"""Names of generated tests and the command line that selects them, without pytest."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.base.vocabulary import LONGEST
from acc_pytest.errors import AccError
from acc_pytest.mapping.pair import Operand, Pair, Plan, Unmapped
from acc_pytest.running.mode import Naming, is_ours, select_named
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings

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
    known = [(NAMING.names(one), number) for number, one in enumerate(PAIRS)]
    return list(select_named(known, NAMING.root, arguments))


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
        select_named([], NAMING.root, ["d::step0"])


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


def alone(name: str, side: Any = "golden", **more: Any) -> Unmapped:
    return Unmapped(side, 0, name, name, "Linear", "no partner", **more)


def unmapped_names(*nodes: Unmapped, naming: Naming = NAMING) -> list[str]:
    return ["::".join(names) for names in naming.of_unmapped(nodes)]


def test_unmapped_nodes_lie_below_their_step_by_side_and_name() -> None:
    assert unmapped_names(
        alone("root.model.layers.0.x"),
        alone("LmHead_5", "mine"),
        alone("Add", "mine", slot="output[0]", rank=1),
    ) == [
        "d::step0::unmapped::golden.model.layers.0.x",
        "d::step0::unmapped::mine.LmHead_5",
        "d::step0::unmapped::mine.Add[output[0]]",
    ]
    ranks = Naming("d", ranks=True)
    assert unmapped_names(alone("Add", rank=1), naming=ranks) == ["d::step0::rank1::unmapped::golden.Add"]


def test_unmapped_nodes_of_one_name_are_numbered() -> None:
    nodes = [alone("a"), alone("a"), alone("a.2"), alone("a"), alone("a", "mine")]
    assert [name.rpartition("::")[2] for name in unmapped_names(*nodes)] == [
        "golden.a",
        "golden.a.2",
        "golden.a.2.2",
        "golden.a.3",
        "mine.a",
    ]


@pytest.mark.parametrize(
    "name", ["a::b", "a b\n[x]", "<script>", "\x1b[31m", "\ud800", "名", "", "x" * 10_000]
)
def test_unmapped_nodes_of_any_name_have_ids_that_can_be_selected(name: str) -> None:
    own = unmapped_names(alone(name))[0].split("::")
    assert own[:3] == ["d", "step0", "unmapped"]
    assert len(own) == 4
    assert re.fullmatch(r"[\w+\-.\[\]/]+", own[3], re.ASCII)
    assert len(own[3]) <= LONGEST


def test_long_names_that_differ_at_the_end_stay_different() -> None:
    names = unmapped_names(alone("x" * 10_000 + "a"), alone("x" * 10_000 + "b"))
    assert names[0] != names[1]
    assert not names[1].endswith(".2")


# Making the plan of a session, from settings alone.


def test_a_plan_that_cannot_be_made_leaves_the_garbage_collector_as_it_was(tmp_path: Path) -> None:
    assert gc.isenabled()
    with pytest.raises(AccError):
        make_plan(Settings(golden=str(tmp_path / "no"), mine=str(tmp_path / "where")))
    assert gc.isenabled()
