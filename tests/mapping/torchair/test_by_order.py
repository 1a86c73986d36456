"""GE against FX without a graph text."""

from __future__ import annotations

from pathlib import Path

from .hand_made import Fx, Ge, mapped, pairs, reasons, tensor

GELU, NORM = "aten.gelu.default", "aten.native_layer_norm.default"
A, B, C, D = (tensor(number) for number in range(4))


def test_operators_of_one_kind_and_shape_meet_in_the_order_they_ran(tmp_path: Path) -> None:
    fx = Fx(tmp_path / "fx").ran(f"gelu-{GELU}", {"0": A}, B).ran(f"gelu_1-{GELU}", {"0": B}, C)
    fx.ran(f"native_layer_norm-{NORM}", {"0": C}, D, A, B)
    ge = Ge(tmp_path / "ge")
    ge.ran("Gelu_4", [A], [B])
    ge.ran("Gelu_9", [B], [C])
    ge.ran("LayerNormV4", [C], [D, A, B])
    found = mapped(tmp_path / "fx", tmp_path / "ge")
    assert pairs(found) == [
        f"Gelu_4 output[0] = gelu-{GELU} output[0]",
        f"Gelu_9 output[0] = gelu_1-{GELU} output[0]",
        *(f"LayerNormV4 output[{k}] = native_layer_norm-{NORM} output[{k}]" for k in range(3)),
    ]
    assert {pair.policy for pair in found.pairs} == {"order"}
    assert "there is no graph text" in reasons(found, "Gelu_4")[0]
    assert any("no graph text (dynamo_original_graph_1" in note for note in found.notes)


def test_kinds_that_one_side_ran_more_often_stay_alone(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran(f"gelu-{GELU}", {"0": A}, B)
    ge = Ge(tmp_path / "ge")
    ge.ran("Gelu", [A], [B])
    ge.ran("Gelu_1", [B], [C])
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == []


def test_kinds_that_torchair_builds_for_other_calls_or_fusion_hides_stay_alone(tmp_path: Path) -> None:
    Fx(tmp_path / "fx").ran("mul-aten.mul.Tensor", {"0": A}, B).ran(f"gelu-{GELU}", {"0": A}, B)
    ge = Ge(tmp_path / "ge")
    ge.ran("Mul", [A], [B])
    ge.ran("Gelu", [A], [B])
    ge.ran("Gelu_1Sub_3", [A], [B], kind="ElementWise")
    assert pairs(mapped(tmp_path / "fx", tmp_path / "ge")) == []
