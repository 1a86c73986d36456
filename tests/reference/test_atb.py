"""Operators computed again on its own inputs: right, wrong, and never right for want of data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.dumps.torch_model import Outline
from acc_pytest.lab.atb import Fault
from acc_pytest.lab.demo import DemoPaths, DemoSpec, make_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.reference.atb import AtbRecomputer
from acc_pytest.reference.atb_outlined import NumberChange, OutlinedAtbRecomputer
from acc_pytest.reference.recomputation import Recomputation, RecomputeBudget, StoredRecomputer, worst
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings
from acc_pytest.tensors.atb_bin import write
from acc_pytest.tensors.ref import TensorRef
from tests.e2e.hf_models import Golden, HuggingFace, scratch
from tests.slow import slow

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


# Operators of ATB beside what golden's dump outlines: weights over ranks, epsilons, scales.


BUDGET = RecomputeBudget(1 << 20, measured=True)


@dataclass(frozen=True)
class Run:
    """The outcome of every pair of a run of ATB beside golden."""

    plan: Plan
    outcomes: list[Recomputation]

    def of(self, golden: str, op_type: str) -> list[Recomputation]:
        """Those of the operators of a type that golden's module is, in the prefill."""
        return [
            outcome
            for pair, outcome in zip(self.plan.pairs, self.outcomes)
            if pair.step == 0
            and pair.golden.node.endswith(golden)
            and (pair.mine.op_type, pair.mine.slot) == (op_type, "output[0]")
        ]


@dataclass
class Bench:
    """A Llama of two layers and its dump; other networks by name."""

    networks: HuggingFace

    @property
    def golden(self) -> Golden:
        return self.networks.golden("llama", "float16", steps=1)

    def run(self, ranks: int = 1, fault: Fault | None = None, name: str = "llama") -> Run:
        network = self.networks.golden(name, "float16", steps=1)
        path, _ = self.networks.run(network, "float16", ranks, fault)
        golden = open_dump(str(network.path))
        mapped = plan(golden, open_dump(str(path), golden=golden))
        outline = golden.outline(golden.ranks[0])
        assert isinstance(outline, Outline)
        recomputer = OutlinedAtbRecomputer(mapped, outline, BUDGET, sampled=1 << 24, small=None)
        return Run(mapped, [recomputer.of_pair(number) for number in range(len(mapped.pairs))])


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with scratch() as directory:
        yield Bench(HuggingFace(directory))


class Scaled:
    """While it lasts, a weight of the network has other values than golden was dumped with."""

    def __init__(self, golden: Golden, module: str, factor: float) -> None:
        self._weight: Any = golden.model.get_submodule(module).weight
        self._factor = factor

    def __enter__(self) -> None:
        self._right = self._weight.detach().clone()
        with torch.no_grad():
            self._weight *= self._factor

    def __exit__(self, *_: object) -> None:
        with torch.no_grad():
            self._weight.copy_(self._right)


@pytest.mark.parametrize("ranks", [slow(1), 2])
def test_a_right_run_is_right_beside_golden(bench: Bench, ranks: int) -> None:
    run = bench.run(ranks)
    assert not [one.detail for one in run.outcomes if one.outcome == "wrong"]
    assert not [one.note for one in run.outcomes if one.note]
    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        held = run.of(name, "LinearOperation")
        assert held, name
        assert all(one.outcome == "right" and one.golden_error is not None for one in held), name


@pytest.mark.parametrize(("ranks", "name"), [(1, "k_proj"), slow(2, "o_proj"), slow(2, "up_proj")])
def test_weights_that_are_not_golden_s_are_told(bench: Bench, ranks: int, name: str) -> None:
    """Their operator computes faithfully with them, whole, by columns and by rows. A twentieth is several
    times the rounding of float16. The projection of one row tells it but for a quarter (1 / sqrt(16))."""
    module = f"model.layers.1.{'mlp' if name == 'up_proj' else 'self_attn'}.{name}"
    with Scaled(bench.golden, module, 1.05):
        run = bench.run(ranks)
    wrong = [one for one in run.of(f"{name}", "LinearOperation") if one.outcome == "wrong"]
    assert wrong
    for one in wrong:
        assert one.detail.startswith("its weights are other ones than golden's: relative L2 error 0.0"), one
        assert one.golden_error == pytest.approx(0.05, rel=0.5)
    assert not [
        one for one in run.of("layers.0.self_attn.q_proj", "LinearOperation") if one.outcome == "wrong"
    ]


def test_an_epsilon_that_golden_was_not_told_is_wrong(bench: Bench) -> None:
    run = bench.run(fault=Fault("norm_eps", layer=0, operator="0_RmsNormOperation", size=1e-3))
    (found,) = run.of("layers.0.input_layernorm", "RmsNormOperation")
    assert found.outcome == "wrong"
    assert found.detail == "its normParam.epsilon is 0.001, that of golden is 1e-06"
    assert found.is_beyond(2.0)


def test_an_epsilon_of_which_nothing_comes_is_wrong_too(bench: Bench) -> None:
    """As a weight that differs is, whatever comes of it."""
    run = bench.run(fault=Fault("norm_eps", layer=1, operator="0_RmsNormOperation", size=2e-6))
    (found,) = run.of("layers.1.input_layernorm", "RmsNormOperation")
    assert found.detail == "its normParam.epsilon is 2e-06, that of golden is 1e-06"


def test_an_epsilon_that_was_rounded_to_a_half_is_the_same(bench: Bench) -> None:
    """1e-6 in float16 is 9.54e-07."""
    half = float(torch.tensor(1e-6).half())
    run = bench.run(fault=Fault("norm_eps", layer=1, operator="0_RmsNormOperation", size=half))
    (found,) = run.of("layers.1.input_layernorm", "RmsNormOperation")
    assert (found.outcome, found.note) == ("right", "")


def test_half_a_percent_of_a_scale_is_told(bench: Bench) -> None:
    """All tokens have it together, which is told from rounding where one could not be."""
    run = bench.run(fault=Fault("softmax_scale", layer=1, size=1.005))
    (found,) = run.of("layers.1.self_attn.o_proj", "SelfAttentionOperation")
    assert found.detail == "its qkScale is 0.25125, that of golden is 0.25"


@pytest.mark.parametrize(
    ("part", "doubt", "golden", "mine"),
    [(1.0, 0.2, True, False), (0.0, 0.2, False, True), (0.5, 2.0, False, False)],
)
def test_what_is_in_doubt_speaks_for_neither_side(
    part: float, doubt: float, golden: bool, mine: bool
) -> None:
    change = NumberChange(part, doubt)
    assert (change.speaks_for_golden, change.speaks_for_mine) == (golden, mine)


def test_a_scale_of_scores_that_golden_was_not_told_is_wrong(bench: Bench) -> None:
    run = bench.run(fault=Fault("softmax_scale", layer=1, size=1.3))
    (found,) = run.of("layers.1.self_attn.o_proj", "SelfAttentionOperation")
    assert found.detail == "its qkScale is 0.325, that of golden is 0.25"


def test_a_scale_that_a_port_has_in_its_query_is_right(bench: Bench) -> None:
    """Golden's tensor is what mine makes with its own number, not what it would make with golden's."""
    with Scaled(bench.golden, "model.layers.1.self_attn.q_proj", 4.0):
        run = bench.run(fault=Fault("softmax_scale", layer=1, size=0.25))
    (found,) = run.of("layers.1.self_attn.o_proj", "SelfAttentionOperation")
    assert (found.outcome, found.note) == ("right", "")


def test_of_an_operator_the_outputs_that_golden_lacks_are_computed_too(bench: Bench) -> None:
    """Golden has no rotated query."""
    run = bench.run(fault=Fault("scale", layer=0, operator="RopeOperation", size=1.01))
    wrong = {
        pair.mine.op_type: one for pair, one in zip(run.plan.pairs, run.outcomes) if one.outcome == "wrong"
    }
    assert set(wrong) == {"RopeOperation"}
    assert wrong["RopeOperation"].note == "output[0], which golden does not have, is the wrong one"


def test_ranks_that_have_other_inputs_do_not_make_a_layer_wrong(bench: Bench) -> None:
    """Rank 1 has a sum of its own, 2 % larger, and goes on with it."""
    run = bench.run(ranks=2, fault=Fault("replica", layer=0, size=1.02))
    wrong = {pair.mine.op_type for pair, one in zip(run.plan.pairs, run.outcomes) if one.outcome == "wrong"}
    assert wrong == {"AllReduceOperation"}


def test_operators_that_golden_lacks_are_found_with_what_they_lead_to(bench: Bench) -> None:
    """Those of the experts: golden has them as one module."""
    fault = Fault("scale", layer=0, operator="ActivationOperation", size=1.02)
    run = bench.run(fault=fault, name="mixtral")
    wrong = [one for one in run.outcomes if one.outcome == "wrong"]
    assert {one.culprit.partition("_")[0] for one in wrong} == {"ActivationOperation"}
    sentence = wrong[0].sentence
    assert sentence.startswith("ActivationOperation_2_")
    assert "before it and not compared, is wrong on its own inputs: relative L2 error 0.02" in sentence
