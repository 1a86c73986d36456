"""GE against GE: a fused run against one that was not, with and without a graph text."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.errors import FormatError
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.tensors.ge_record import GeValue, OriginalOp

from .hand_made import Ge, mapped, op, pairs, reasons, tensor

A, B, C, D, E = (tensor(number) for number in range(5))
GRAPH = (
    op("arg0_1", kind="Data"),
    op("arg1_1", kind="Data"),
    op("arg2_1", kind="Data"),
    op("Mul_1", "arg0_1 arg1_1"),
    op("Add_1", "Mul_1 arg2_1"),
)


def unfused(root: Path, *, text: bool = True) -> Path:
    ge = Ge(root).graph(*GRAPH) if text else Ge(root)
    ge.ran("Mul_1", [A, B], [D])
    ge.ran("Add_1", [D, C], [E])
    return root


def fused(root: Path, name: str = "Mul_1Add_1", *, text: bool = True, origin: bool = False) -> Path:
    ge = Ge(root).graph(*GRAPH) if text else Ge(root)
    output = GeValue(E, original_op=OriginalOp("Add_1", 0) if origin else None)
    ge.ran(name, [A, B, C], [output], kind="AutomaticBufferFusionOp")
    return root


def test_a_fused_operator_meets_the_parts_that_ran_alone(tmp_path: Path) -> None:
    found = mapped(unfused(tmp_path / "g"), fused(tmp_path / "m"))
    assert pairs(found) == [
        "Mul_1Add_1 input[0] = Mul_1 input[0]",
        "Mul_1Add_1 input[1] = Mul_1 input[1]",
        "Mul_1Add_1 input[2] = Add_1 input[1]",
        "Mul_1Add_1 output[0] = Add_1 output[0]",
    ]
    assert [pair.policy for pair in found.pairs] == ["edge", "edge", "edge", "fused"]
    assert found.pairs[-1].reason == "fused of Mul_1, Add_1"
    assert reasons(found, "Mul_1") == ["output[0]: no dumped operator of mine has this tensor"]


def test_golden_may_be_the_fused_side(tmp_path: Path) -> None:
    found = mapped(fused(tmp_path / "g"), unfused(tmp_path / "m"))
    assert pairs(found) == ["Add_1 output[0] = Mul_1Add_1 output[0]"]
    assert reasons(found, "Mul_1")[-1] == "output[0]: golden dumped no output Mul_1:0"


@pytest.mark.parametrize("name", ["Mul_1_ub_fusion", "Mul_1", "made_up"])
def test_names_that_lost_their_parts_are_known_by_the_origin_of_their_outputs(
    tmp_path: Path, name: str
) -> None:
    found = mapped(unfused(tmp_path / "g"), fused(tmp_path / "m", name, origin=True))
    assert pairs(found)[-1] == f"{name} output[0] = Add_1 output[0]"
    assert found.pairs[-1].policy == "origin"


def test_a_cut_name_without_an_origin_is_told(tmp_path: Path) -> None:
    found = mapped(unfused(tmp_path / "g"), fused(tmp_path / "m", "Mul_1_ub_fusion"))
    assert pairs(found) == []
    assert "only the first part is known (Mul_1)" in reasons(found, "Mul_1_ub_fusion")[0]


@pytest.mark.parametrize("origin", [False, True])
def test_without_texts_the_parts_of_a_name_are_looked_up_in_golden(tmp_path: Path, origin: bool) -> None:
    found = mapped(unfused(tmp_path / "g", text=False), fused(tmp_path / "m", text=False, origin=origin))
    assert pairs(found) == ["Mul_1Add_1 output[0] = Add_1 output[0]"]
    assert [reason.split(":")[0] for reason in reasons(found, "Mul_1Add_1")] == [
        "input[0]",
        "input[1]",
        "input[2]",
    ]
    assert any("no graph text" in note for note in found.notes)


def test_without_texts_equal_names_and_types_are_equal_operators(tmp_path: Path) -> None:
    found = mapped(unfused(tmp_path / "g", text=False), unfused(tmp_path / "m", text=False))
    assert len(found.pairs) == 6
    assert {pair.policy for pair in found.pairs} == {"name"}


def test_one_text_serves_both_runs(tmp_path: Path) -> None:
    found = mapped(unfused(tmp_path / "g"), fused(tmp_path / "m", text=False))
    assert len(found.pairs) == 4


def test_texts_of_two_scripts_are_noted(tmp_path: Path) -> None:
    Ge(unfused(tmp_path / "g")).graph(*GRAPH, op("Sub", "Add_1"))
    found = mapped(tmp_path / "g", fused(tmp_path / "m"))
    assert any("golden has 6 operators, mine 5, 5 in common" in note for note in found.notes)


def test_operators_that_ge_inserted_mean_nothing_in_the_other_run(tmp_path: Path) -> None:
    """`trans_TransData_1` counts what one compilation inserted; the other's first may be another one."""
    for side, value in (("g", A), ("m", B)):
        unfused(tmp_path / side)
        Ge(tmp_path / side).ran("trans_TransData_1", [value], [value], kind="TransData")
    found = mapped(tmp_path / "g", tmp_path / "m")
    (check,) = [pair for pair in found.pairs if pair.mine.name == "trans_TransData_1"]
    assert check.golden.refs[0].path == check.mine.refs[0].path
    assert reasons(found, "trans_TransData_1") == [
        f"{slot}: inserted by GE, so that its name means nothing in the other run"
        for slot in ("input[0]", "output[0]")
    ]


def test_a_cut_record_of_mine_fails_where_golden_has_its_operator(tmp_path: Path) -> None:
    golden, mine = unfused(tmp_path / "g"), unfused(tmp_path / "m")
    path = next(mine.rglob("Add.Add_1.*"))
    path.write_bytes(path.read_bytes()[:12])
    found = mapped(golden, mine)
    (broken,) = [pair for pair in found.pairs if pair.mine.name == "Add_1"]
    with pytest.raises(FormatError):
        open_pair(broken)


def test_a_transpose_that_only_one_run_has_is_no_golden_of_a_square_input(tmp_path: Path) -> None:
    square = tensor(1, (3, 3))
    graph = (op("arg0_1", kind="Data"), op("Transpose", "arg0_1"), op("MatMulV2", "arg0_1 Transpose"))
    golden, mine = Ge(tmp_path / "g").graph(*graph), Ge(tmp_path / "m").graph(*graph)
    golden.ran("Transpose", [square.t()], [square])
    golden.ran("MatMulV2", [A, square], [E])
    mine.ran("MatMulV2", [A, square.t().contiguous()], [E])
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert pairs(found) == [
        "MatMulV2 input[0] = MatMulV2 input[0]",
        "MatMulV2 output[0] = MatMulV2 output[0]",
    ]
    assert "Transpose ran on one side only" in reasons(found, "MatMulV2")[0]


def test_inputs_that_cannot_be_the_same_are_told(tmp_path: Path) -> None:
    golden, mine = Ge(tmp_path / "g").graph(*GRAPH), Ge(tmp_path / "m").graph(*GRAPH)
    golden.ran("Mul_1", [A, B], [D])
    mine.ran("Mul_1", [A, tensor(1, (5,))], [D])
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert len(found.pairs) == 2
    assert "shapes [2, 3] and [5] do not agree" in reasons(found, "Mul_1")[0]


def test_records_that_cannot_be_read_on_one_side_only_are_told(tmp_path: Path) -> None:
    golden, mine = Ge(tmp_path / "g").graph(*GRAPH), Ge(tmp_path / "m").graph(*GRAPH)
    golden.ran("Mul_1", [A, B], [D]).write_bytes(b"cut")
    mine.ran("Add_1", [D, C], [E]).write_bytes(b"cut")
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert found.pairs == ()
    assert "not a GE record" in reasons(found, "Mul_1")[0]
    assert "not a GE record" in reasons(found, "Add_1")[0]


def test_without_texts_a_name_of_several_readings_or_none_is_told(tmp_path: Path) -> None:
    golden, mine = Ge(tmp_path / "g"), Ge(tmp_path / "m")
    for name in ("a", "ab", "aa", "b"):
        golden.ran(name, [], [A], kind="Add")
    mine.ran("aab", [], [A], kind="Fused")
    mine.ran("other", [], [A], kind="Fused")
    mine.ran("trans_Data_3", [A], [A], kind="Data")
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert found.pairs == ()
    assert "can be read in several ways" in reasons(found, "aab")[0]
    assert "nor the parts of it" in reasons(found, "other")[0]
    assert "inserted by GE" in reasons(found, "trans_Data_3")[0]
