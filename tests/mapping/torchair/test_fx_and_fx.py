"""FX against FX: call by call."""

from __future__ import annotations

from pathlib import Path

import torch

from .hand_made import Fx, mapped, pairs, reasons, tensor

A, B, C = tensor(1), tensor(2), tensor(3)
ADD, MUL = "add-aten.add.Tensor", "mul-aten.mul.Tensor"


def test_every_argument_and_result_of_a_call_is_compared(tmp_path: Path) -> None:
    for side in ("g", "m"):
        Fx(tmp_path / side).ran("cat-aten.cat.default", {"0.0": A, "0.1": B, "1": -1}, C)
    assert pairs(mapped(tmp_path / "g", tmp_path / "m")) == [
        f"cat-aten.cat.default {slot} = cat-aten.cat.default {slot}"
        for slot in ("input[0][0]", "input[0][1]", "input[1]", "output[0]")
    ]


def test_arguments_that_are_no_tensors_are_told_and_never_opened(tmp_path: Path) -> None:
    for side in ("g", "m"):
        Fx(tmp_path / side).ran(ADD, {"0": A, "1": None, "2": "[None, tensor(1)]"}, B)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert len(found.pairs) == 2
    told = [reason for reason in reasons(found, ADD) if reason.startswith("input")]
    assert sum("pickled object, which is never opened" in reason for reason in told) == 2
    assert sum("stored as text" in reason for reason in told) == 2


def test_names_of_symbolic_arithmetic_are_mapped_and_selectable(tmp_path: Path) -> None:
    call = "mul_15-<built-in function mul>"
    for side in ("g", "m"):
        Fx(tmp_path / side).ran(call, {"0": 3, "1": 4}, 12)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert found.pairs[-1].mine.node == call
    assert found.pairs[-1].id == "mul_15-_built-in_function_mul_"


def test_keyword_arguments_of_one_side_only_are_told(tmp_path: Path) -> None:
    Fx(tmp_path / "g").ran(ADD, {"0": A}, B)
    Fx(tmp_path / "m").ran(ADD, {"0": A, "KWARG.alpha": 2}, B)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert len(found.pairs) == 2
    assert reasons(found, ADD) == [f"input[alpha]: golden's {ADD} has no input[alpha]"]


def test_a_call_more_on_one_side_does_not_shift_the_names_of_the_others(tmp_path: Path) -> None:
    """Mine computes one `mul` more, so `mul_1` of mine is `mul` of golden and so on."""
    golden, mine = Fx(tmp_path / "g"), Fx(tmp_path / "m")
    mine.ran(MUL, {"0": A}, tensor(9, (5,)))
    for number in range(4):
        values = [tensor(10 * number + place) for place in range(3)]
        tail = f"_{number}" if number else ""
        golden.ran(f"mul{tail}-aten.mul.Tensor", {"0": values[0]}, values[1])
        golden.ran(f"add{tail}-aten.add.Tensor", {"0": values[1]}, values[2])
        mine.ran(f"mul_{number + 1}-aten.mul.Tensor", {"0": values[0]}, values[1])
        mine.ran(f"add{tail}-aten.add.Tensor", {"0": values[1]}, values[2])
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert len(found.pairs) == 16
    for pair in found.pairs:
        assert torch.equal(pair.golden.refs[0].open(), pair.mine.refs[0].open())
    assert {pair.policy for pair in found.pairs if "mul" in pair.mine.node} == {"order"}
    assert "golden calls aten.mul.Tensor 4 times, mine 5 times" in reasons(found, MUL)[0]


def test_a_view_on_one_side_and_a_reshape_on_the_other_are_one_call(tmp_path: Path) -> None:
    Fx(tmp_path / "g").ran("view-aten.view.default", {"0": A}, A)
    Fx(tmp_path / "m").ran("view-aten.reshape.default", {"0": A}, A)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert len(found.pairs) == 2
    assert "view->reshape" in found.pairs[0].reason


def test_calls_of_one_side_only_have_a_reason(tmp_path: Path) -> None:
    Fx(tmp_path / "g").ran(ADD, {"0": A}, B).ran("exp-aten.exp.default", {"0": A}, C)
    Fx(tmp_path / "m").ran(ADD, {"0": A}, B).ran("log-aten.log.default", {"0": A}, C)
    found = mapped(tmp_path / "g", tmp_path / "m")
    assert reasons(found, "log-aten.log.default")[0] == "input[0]: golden dumped no call of aten.log.default"
    assert "no call of mine is known to be this one" in reasons(found, "exp-aten.exp.default")[0]
    assert (found.golden_mapped, found.golden_total) == (1, 2)


def test_what_no_call_made_comes_first_and_is_told_by_the_calls_that_read_it(tmp_path: Path) -> None:
    x, weight, bias = tensor(1, (2, 4)), tensor(2, (3, 4)), tensor(3, (3,))
    for side in ("one", "other"):
        fx = Fx(tmp_path / side)
        fx.ran("relu-aten.relu.default", {"0": x}, x + 1)
        fx.ran("t-aten.t.default", {"0": weight}, weight.t().contiguous())
        fx.ran(
            "addmm-aten.addmm.default", {"0": bias, "1": x + 1, "2": weight.t().contiguous()}, x @ weight.t()
        )
    found = mapped(tmp_path / "one", tmp_path / "other")
    fed = [(pair.id, pair.fed) for pair in found.pairs if pair.fed]
    assert fed == [("t-aten.t.default[in0]", "weight"), ("addmm-aten.addmm.default[in0]", "weight")]
    assert [pair.fed for pair in found.pairs[:2]] == ["weight", "weight"]
    assert found.parents[:2] == ((), ())
