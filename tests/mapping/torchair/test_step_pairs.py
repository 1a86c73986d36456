"""Which rank, graph and step meets which, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.base import keep_rank
from acc_pytest.errors import DumpError, MappingError
from acc_pytest.mapping.planner import plan
from acc_pytest.tensors.ge_record import write_record

from .hand_made import Fx, mapped, tensor

A, B = tensor(1), tensor(2)
ADD = "add-aten.add.Tensor"


def ranks(root: Path, numbers: tuple[int, ...], world: int = 4) -> Path:
    for number in numbers:
        Fx(root, rank=number, world=world).ran(ADD, {"0": A}, B)
    return root


def test_common_ranks_meet_and_the_others_are_told(tmp_path: Path) -> None:
    found = mapped(ranks(tmp_path / "g", (0, 1, 2)), ranks(tmp_path / "m", (1, 2, 3)))
    assert sorted({pair.rank for pair in found.pairs if pair.rank is not None}) == [1, 2]
    assert [(alone.side, alone.reason) for alone in found.unmapped] == [
        ("golden", "rank 0 was dumped by golden only"),
        ("mine", "rank 3 was dumped by mine only"),
    ]
    assert "ranks: 2 on both sides (1, 2), compared rank by rank" in found.notes


def test_one_rank_on_each_side_is_a_pair_whatever_its_number(tmp_path: Path) -> None:
    found = mapped(ranks(tmp_path / "g", (0,), 1), ranks(tmp_path / "m", (3,)))
    assert {pair.rank for pair in found.pairs} == {3}
    assert any("rank 0 of golden and rank 3 of mine are paired" in note for note in found.notes)


def test_no_rank_in_common_is_an_error_with_both_lists(tmp_path: Path) -> None:
    with pytest.raises(MappingError, match=r"no rank in common: golden .* has 0, 1, mine .* has 2, 3"):
        mapped(ranks(tmp_path / "g", (0, 1)), ranks(tmp_path / "m", (2, 3)))


def test_worlds_of_different_size_are_noted(tmp_path: Path) -> None:
    found = mapped(ranks(tmp_path / "g", (0, 1), 2), ranks(tmp_path / "m", (0, 1), 4))
    assert any("golden ran in worldsize2, mine in worldsize4" in note for note in found.notes)


def test_acc_rank_leaves_one_rank_of_both(tmp_path: Path) -> None:
    golden = open_dump(str(ranks(tmp_path / "g", (0, 1))))
    mine = open_dump(str(ranks(tmp_path / "m", (0, 1, 2))))
    keep_rank(golden, mine, 1)
    found = plan(golden, mine)
    assert {pair.rank for pair in found.pairs} == {1}
    assert any("--acc-rank 1 leaves out the ranks 0, 2" in note for note in found.notes)


def test_acc_rank_that_a_side_lacks_is_an_error(tmp_path: Path) -> None:
    golden = open_dump(str(ranks(tmp_path / "g", (0, 1))))
    mine = open_dump(str(ranks(tmp_path / "m", (0, 1, 2))))
    with pytest.raises(DumpError, match=r"--acc-rank 2: golden .* has no such rank; choose one of 0, 1"):
        keep_rank(golden, mine, 2)


def test_graphs_meet_by_number_not_by_place(tmp_path: Path) -> None:
    for number in (1, 2):
        Fx(tmp_path / "g").ran(ADD, {"0": A}, B, graph=number)
    for number in (2, 3):
        Fx(tmp_path / "m").ran(ADD, {"0": A}, B, graph=number)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert {pair.layer for pair in found.pairs} == {"graph_2"}
    assert [(alone.side, alone.reason) for alone in found.unmapped] == [
        ("golden", "graph_1 was dumped by golden only"),
        ("mine", "graph_3 was dumped by mine only"),
    ]


def test_one_graph_on_each_side_is_a_pair_whatever_its_number(tmp_path: Path) -> None:
    Fx(tmp_path / "g").ran(ADD, {"0": A}, B, graph=1)
    Fx(tmp_path / "m").ran(ADD, {"0": A}, B, graph=5)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert {pair.layer for pair in found.pairs} == {"graph_5"}
    assert any("graph_1 of golden and graph_5 of mine are paired" in note for note in found.notes)


def test_steps_meet_by_label_and_the_others_are_told(tmp_path: Path) -> None:
    for step in (0, 1, 2):
        Fx(tmp_path / "g").ran(ADD, {"0": A}, B, step=step)
    for step in (1, 5):
        Fx(tmp_path / "m").ran(ADD, {"0": A}, B, step=step)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert {pair.step for pair in found.pairs} == {1}
    assert [(alone.side, alone.step) for alone in found.unmapped] == [
        ("golden", 0),
        ("golden", 2),
        ("mine", 5),
    ]


def test_steps_that_were_both_named_meet_whatever_their_label(tmp_path: Path) -> None:
    Fx(tmp_path / "g").ran(ADD, {"0": A}, B, step=0)
    Fx(tmp_path / "m").ran(ADD, {"0": A}, B, step=4)
    below = "worldsize1_global_rank0/graph_1"
    found = mapped(tmp_path / "g" / below / "0", tmp_path / "m" / below / "4")
    assert {pair.step for pair in found.pairs} == {4}
    with pytest.raises(MappingError, match=r"nothing in common: golden .* has graph_1 step 0"):
        mapped(tmp_path / "g", tmp_path / "m")


def test_graphs_without_numbers_meet_in_their_order(tmp_path: Path) -> None:
    """Other front ends than TorchAir call their models as they like."""
    values = [tensor(1), tensor(2)]
    for side in ("g", "m"):
        for number, name in enumerate(("ge_default_20241114", "other_model")):
            home = tmp_path / side / "20241121145738/0" / name / str(number) / "0"
            write_record(home / f"Gelu.Gelu.1.6.{1763670000000000 + number}", "Gelu", [], [values[number]])
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert [pair.layer for pair in found.pairs] == ["ge_default_20241114", "other_model"]
    assert any("graphs meet in their order" in note for note in found.notes)
