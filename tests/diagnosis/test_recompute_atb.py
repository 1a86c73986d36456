"""Operators computed again on its own inputs: right, wrong, and never right for want of data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from acc_pytest.diagnosis.recomputation import Recomputation, StoredRecomputer, worst
from acc_pytest.diagnosis.recompute_atb import AtbRecomputer
from acc_pytest.lab.demo import DemoPaths, DemoSpec, make_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings
from acc_pytest.tensors.atb_bin import write
from acc_pytest.tensors.ref import TensorRef

LINEAR = "2_Prefill_layer/0_Attention/4_LinearNoQuant/0_LinearOperation"
ROPE = "2_Prefill_layer/0_Attention/1_RotaryPositionEmbedding/0_RopeOperation"
CACHE = "2_Prefill_layer/0_Attention/2_ReshapeAndCacheOperation"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoPaths, Plan]:
    paths = make_demo(tmp_path_factory.mktemp("demo"), DemoSpec(layers=1, decode_steps=0))
    return paths, make_plan(Settings.from_values({"golden": str(paths.golden), "mine": str(paths.mine)}))


@pytest.fixture
def spoilt(demo: tuple[DemoPaths, Plan], tmp_path: Path) -> tuple[Path, Plan]:
    """A copy of mine that a test may change, and the plan of it."""
    paths, _ = demo
    shutil.copytree(paths.mine, tmp_path / "mine")
    plan = make_plan(Settings.from_values({"golden": str(paths.golden), "mine": str(tmp_path / "mine")}))
    return tmp_path / "mine", plan


def number_of(plan: Plan, node: str, slot: str = "output[0]") -> int:
    return next(n for n, pair in enumerate(plan.pairs) if (pair.mine.node, pair.mine.slot) == (node, slot))


def file_of(mine: Path, node: str, name: str) -> Path:
    [found] = [one for one in mine.rglob(name) if f"/1/{node}/" in str(one)]
    return found


def change(file: Path, factor: float) -> None:
    write(file, TensorRef(str(file)).open().clone() * factor)


def test_every_operator_of_a_right_run_is_right_or_unknown(demo: tuple[DemoPaths, Plan]) -> None:
    _, plan = demo
    local = AtbRecomputer(plan.pairs)
    found = [local.of_pair(number).outcome for number in range(len(plan.pairs))]
    assert set(found) == {"right", ""}
    assert found.count("right") > 15
    between = {path: local.of_operator(n, path) for n, paths in plan.between.items() for path in paths}
    assert {one.outcome for one in between.values()} == {"right"}
    assert ROPE in between


def test_an_operator_with_another_output_is_wrong_by_that_much(spoilt: tuple[Path, Plan]) -> None:
    mine, plan = spoilt
    change(file_of(mine, LINEAR, "outtensor0.bin"), 1.25)
    found = AtbRecomputer(plan.pairs).of_pair(number_of(plan, LINEAR))
    assert found.outcome == "wrong"
    # What was rounded to float16 twice is 0.25 off but for three roundings of 2^-11.
    assert found.error == pytest.approx(0.25, abs=3 * 2**-11)


def test_a_new_nan_is_told_instead_of_the_error_of_the_rest(spoilt: tuple[Path, Plan]) -> None:
    mine, plan = spoilt
    file = file_of(mine, LINEAR, "outtensor0.bin")
    tensor = TensorRef(str(file)).open().clone()
    tensor.view(-1)[3] = torch.nan
    write(file, tensor)
    found = AtbRecomputer(plan.pairs).of_pair(number_of(plan, LINEAR))
    assert found == Recomputation("wrong", None, f"1 of {tensor.numel()} elements are NaN or infinite")


def test_a_wrong_input_makes_no_operator_wrong(spoilt: tuple[Path, Plan]) -> None:
    mine, plan = spoilt
    out, into = (file_of(mine, LINEAR, name) for name in ("outtensor0.bin", "intensor0.bin"))
    change(out, 2.0)
    change(into, 2.0)
    assert AtbRecomputer(plan.pairs).of_pair(number_of(plan, LINEAR)).outcome == "right"


def test_an_operator_that_is_not_compared_is_found_beside_a_pair(spoilt: tuple[Path, Plan]) -> None:
    mine, plan = spoilt
    number = next(n for n, paths in plan.between.items() if ROPE in paths)
    change(file_of(mine, ROPE, "outtensor0.bin"), 1.5)
    assert AtbRecomputer(plan.pairs).of_operator(number, ROPE).outcome == "wrong"
    assert AtbRecomputer(plan.pairs).of_operator(number, "9_Nothing/0_RopeOperation").outcome == ""


def test_an_operator_whose_parameters_are_damaged_is_unknown_and_looked_at_once_an_output(
    spoilt: tuple[Path, Plan],
) -> None:
    mine, plan = spoilt
    number = next(n for n, paths in plan.between.items() if ROPE in paths)
    after = file_of(mine, ROPE, "outtensor0.bin").parent
    (after.parent / "op_param.json").write_text("{")
    found = AtbRecomputer(plan.pairs).of_operator(number, ROPE)
    assert found.outcome == ""
    assert "the parameters are not JSON" in found.why


@pytest.mark.parametrize("gone", ["before", "op_param.json", "before/intensor0.bin"])
def test_what_lacks_inputs_or_parameters_is_unknown(spoilt: tuple[Path, Plan], gone: str) -> None:
    mine, plan = spoilt
    home = file_of(mine, LINEAR, "outtensor0.bin").parents[1]
    (shutil.rmtree if (home / gone).is_dir() else Path.unlink)(home / gone)
    found = AtbRecomputer(plan.pairs).of_pair(number_of(plan, LINEAR))
    assert (found.outcome, bool(found.why)) == ("", True)


def test_what_writes_in_place_is_unknown_without_the_state_before(spoilt: tuple[Path, Plan]) -> None:
    mine, plan = spoilt
    number = number_of(plan, CACHE)
    assert AtbRecomputer(plan.pairs).of_pair(number).outcome == "right"
    shutil.rmtree(file_of(mine, CACHE, "outtensor0.bin").parents[1] / "before")
    assert AtbRecomputer(plan.pairs).of_pair(number).outcome == ""


def test_one_element_that_only_moves_must_be_exact(spoilt: tuple[Path, Plan]) -> None:
    mine, plan = spoilt
    split = "2_Prefill_layer/0_Attention/0_QKVLinearSplitPack/1_SplitOperation"
    file = file_of(mine, split, "outtensor0.bin")
    tensor = TensorRef(str(file)).open().clone()
    tensor.view(-1)[0] = torch.nextafter(tensor.view(-1)[0].float(), torch.tensor(9e9)) * 1.002
    write(file, tensor)
    found = AtbRecomputer(plan.pairs).of_pair(number_of(plan, split))
    assert (found.outcome, found.why) == ("wrong", f"1 of {tensor.numel()} elements are not those it moves")


def test_composites_and_inputs_have_no_reference(demo: tuple[DemoPaths, Plan]) -> None:
    _, plan = demo
    layer = AtbRecomputer(plan.pairs).of_pair(number_of(plan, "2_Prefill_layer"))
    table = AtbRecomputer(plan.pairs).of_pair(number_of(plan, ROPE, "input[2]"))
    assert (layer.outcome, table.outcome) == ("", "")


def test_several_ranks_are_wrong_if_one_is_and_right_if_all_are() -> None:
    right, wrong, unknown = Recomputation("right", 0.1), Recomputation("wrong", 0.5), Recomputation("")
    assert worst([right, wrong, unknown]) == wrong
    assert worst([right, unknown]) == unknown
    assert worst([right, Recomputation("right", 0.2)]).error == 0.2
    assert worst([]).outcome == ""


def test_what_is_remembered_says_nothing_of_others() -> None:
    known = StoredRecomputer({3: Recomputation("wrong", 0.5)})
    assert known.of_pair(3).outcome == "wrong"
    assert (known.of_pair(4).outcome, known.of_operator(3, "x").outcome) == ("", "")
