"""Operators of ATB computed from golden's inputs: whether they make golden's result, and what that is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from acc_pytest.base.vocabulary import NO_NOISE
from acc_pytest.diagnosis import golden_inputs
from acc_pytest.diagnosis.golden_inputs import GoldenValues, golden_values
from acc_pytest.diagnosis.inheritance import may_differ
from acc_pytest.diagnosis.recompute_atb import AtbRecomputer
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.judging.judges import Judge
from acc_pytest.lab.atb import Fault
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.views import ExpertPick, Selected
from acc_pytest.reporting.row import Row
from acc_pytest.running.comparison import ComparisonMode
from acc_pytest.settings import find_config, read_config
from acc_pytest.tensors.ref import TensorRef
from tests.e2e.hf_models import HuggingFace, scratch

from .plans import plan_of, row_of


@dataclass
class Bench:
    """Networks as ATB beside their golden dumps."""

    networks: HuggingFace

    def dumps(
        self, name: str, ranks: int, family: str | None = None, fault: Fault | None = None
    ) -> tuple[Path, Path, tuple[str, ...]]:
        """Golden's dump, that of mine, and the operators that have the fault."""
        network = self.networks.golden(name, "float16", steps=1)
        return network.path, *self.networks.run(network, "float16", ranks, fault, family)

    def plan(
        self, name: str, ranks: int, family: str | None = None, fault: Fault | None = None
    ) -> tuple[Plan, tuple[str, ...]]:
        golden_path, path, faulty = self.dumps(name, ranks, family, fault)
        golden = open_dump(str(golden_path))
        return plan(golden, open_dump(str(path), golden=golden)), faulty


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with scratch() as directory:
        yield Bench(HuggingFace(directory))


def recomputer(planned: Plan) -> AtbRecomputer:
    return AtbRecomputer(planned.pairs, between=planned.between, parents=planned.parents)


def outcomes(planned: Plan) -> dict[str, list[str]]:
    """What is found of the operators that wrote floats, by name."""
    found: dict[str, list[str]] = {}
    computed = recomputer(planned)
    for number, pair in enumerate(planned.pairs):
        if pair.mine.op_type.endswith("Operation") and pair.mine.slot.startswith("output") and not pair.fed:
            found.setdefault(pair.mine.name, []).append(computed.of_golden(number).outcome)
    return found


@pytest.mark.parametrize(
    ("name", "family", "ranks"),
    [
        ("llama", None, 1),
        ("llama", "llama-int8", 2),
        ("llama", "llama-int8", 1),
        ("bloom", None, 2),
        ("glm", None, 2),
    ],
)
def test_operators_of_a_right_run_make_golden_of_its_inputs(
    bench: Bench, name: str, family: str | None, ranks: int
) -> None:
    """Packed and shared out over ranks, sums of ranks, caches, biases, quantised inputs and weights."""
    planned, _ = bench.plan(name, ranks, family)
    found = outcomes(planned)
    assert {outcome for each in found.values() for outcome in each} == {"right"}
    assert len(found) > 30


@pytest.mark.parametrize(
    ("fault", "family"),
    [
        (Fault("weight", 1), None),
        (Fault("norm_eps", 0, size=1e-3), None),
        (Fault("rope_base", 1, size=2.0), None),
        (Fault("softmax_scale", 1, size=1.3), None),
        (Fault("int8_scale", 1, size=1.4), "llama-int8"),
    ],
)
def test_an_operator_with_another_number_does_not(bench: Bench, fault: Fault, family: str | None) -> None:
    """It is right on the inputs of mine, with the numbers of mine. What golden has no tensor of (a rotated
    query) shows in what reads it."""
    planned, faulty = bench.plan("llama", 1, family, fault)
    found = outcomes(planned)
    wrong = [name for name, each in found.items() if "wrong" in each]
    assert set(faulty) & set(found)
    assert set(faulty) & set(found) <= set(wrong)
    assert len(wrong) <= 4


def test_a_kernel_that_is_off_is_not_right_though_its_numbers_are(bench: Bench) -> None:
    planned, faulty = bench.plan("llama", 1, None, Fault("scale", 1, "LinearOperation", size=1.02))
    found = outcomes(planned)
    assert {outcome for name in faulty if name in found for outcome in found[name]} == {"wrong"}


def test_without_what_pairs_are_computed_from_nothing_is_said(bench: Bench) -> None:
    planned, _ = bench.plan("llama", 1)
    found = AtbRecomputer(planned.pairs).of_golden(len(planned.pairs) - 1)
    assert (found.outcome, found.why) == ("", "what it computes from is not known")


def test_an_input_that_is_not_known_makes_another_result(bench: Bench) -> None:
    """Nothing is right for want of data: without parents golden's inputs are those of mine."""
    planned, _ = bench.plan("llama", 1, "llama-int8")
    blind = AtbRecomputer(planned.pairs, parents=[()] * len(planned.pairs))
    number = max(n for n, pair in enumerate(planned.pairs) if pair.mine.op_type == "LinearOperation")
    assert recomputer(planned).of_golden(number).outcome == "right"
    assert blind.of_golden(number).outcome == "wrong"


def test_errors_of_quantisation_that_accumulate_are_no_failure(bench: Bench) -> None:
    """Beside the bounds of a model that is not quantised: all beyond these are explained, and say so."""
    planned, _ = bench.plan("llama", 2, "llama-int8")
    rules = read_config(find_config("default")).rules
    rows, diagnosis = run(planned, lambda _: Judge(rules))
    explained = [row for row in rows if row.context.get("replay_accumulated")]
    assert explained
    assert not [row.name for row in rows if row.red or row.verdict == "inherited"]
    assert not diagnosis.roots
    assert all("rounding that has accumulated" in row.sentence for row in explained)


def test_they_do_not_hide_another_scale(bench: Bench) -> None:
    planned, faulty = bench.plan("llama", 1, "llama-int8", Fault("int8_scale", 1, size=2.0))
    rules = read_config(find_config("default")).rules
    rows, diagnosis = run(planned, lambda _: Judge(rules))
    assert any(row.red for row in rows)
    assert diagnosis.roots[0].name in faulty


def test_golden_values_of_earlier_steps_are_looked_for_in_its_own_layer_once(tmp_path: Path) -> None:
    """Keys and values of all steps are put into the caches; nothing else of an earlier step is opened. Each
    pair of all layers and steps, for each pair, made a run quadratic."""
    paths = make_demo(tmp_path, DemoSpec("llama-int8", layers=2, decode_steps=3, prompt_length=3))
    golden = open_dump(str(paths.golden))
    planned = plan(golden, open_dump(str(paths.mine), golden=golden))
    attention = [n for n, pair in enumerate(planned.pairs) if pair.mine.op_type == "PagedAttentionOperation"]
    computing = recomputer(planned)
    with mock.patch.object(golden_inputs, "golden_values", side_effect=golden_values) as looked:
        assert computing.of_golden(attention[-1]).outcome == "right"
        opened = [call.args[0] for call in looked.call_args_list]
        assert {pair.layer for pair in opened} == {planned.pairs[attention[-1]].layer}
        assert {pair.step for pair in opened} == {0, 1, 2, 3}
        assert len({(pair.id, pair.step) for pair in opened}) == len(opened) <= 12 * 4
        computing.of_golden(attention[-3])  # that layer, a step before
        assert looked.call_count <= len(opened) + 2


def test_little_of_golden_is_remembered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, _ = bench.plan("llama", 1)
    monkeypatch.setattr(golden_inputs, "_REMEMBERED", 0)
    assert {outcome for each in outcomes(planned).values() for outcome in each} == {"right"}


def test_what_was_computed_unasked_is_not_computed_again_for_a_cause(bench: Bench) -> None:
    planned, _ = bench.plan("llama", 1)
    number = max(n for n, pair in enumerate(planned.pairs) if pair.mine.op_type == "LinearOperation")
    unasked = recomputer(planned)
    found = unasked.of_golden(number)
    causes = AtbRecomputer(planned.pairs, between=planned.between, parents=planned.parents, small=unasked)
    with mock.patch.object(golden_inputs.GoldenInputs, "of_pair") as again:
        assert causes.of_golden(number) is found
    again.assert_not_called()


def rows_of(bench: Bench, fault: Fault | None, replay: str) -> tuple[list[Row], tuple[str, ...]]:
    """The rows of a quantised model, as a session judges them that was asked for nothing."""
    golden, mine, faulty = bench.dumps("llama", 2, "llama-int8", fault)
    options = {"golden": str(golden), "mine": str(mine), "noise": NO_NOISE, "config": ("w8a8",)}
    mode = ComparisonMode.opened({**options, "replay": replay})
    assert mode is not None
    judge = Judge(mode.settings.rules, standard=mode.judges.standard)
    pairs = enumerate(mode.plan.pairs)
    return [mode.compared(pair, number, pair.id, lambda: judge) for number, pair in pairs], faulty


def test_another_activation_is_found_in_int8_unasked(bench: Bench) -> None:
    """Its error is half of what T allows there, and it is right with the parameters of mine."""
    fault = Fault("activation", 1, step=1)
    rows, faulty = rows_of(bench, fault, "auto")
    [red] = [row for row in rows if row.red]
    assert red.name in faulty
    assert "of golden's inputs it does not make golden's" in red.sentence
    assert not [row for row in rows_of(bench, fault, "off")[0] if row.red]
    assert not [row for row in rows_of(bench, None, "auto")[0] if row.red]


@pytest.mark.parametrize(
    ("op_type", "error", "after_tie", "asked"),
    [
        ("LinearOperation", 0.02, 0, True),
        ("LinearOperation", 0.003, 0, False),  # 8 u of float16 are 0.0039
        ("ElewiseOperation", 0.02, 0, False),
        ("LinearOperation", 0.02, 1, False),
    ],
)
def test_golden_s_inputs_are_asked_of_what_may_have_other_numbers(
    op_type: str, error: float, after_tie: int, asked: bool
) -> None:
    pair = plan_of([[]]).pairs[0]
    row = row_of(0, 0.5, error=error, context={"tokens_after_tie": after_tie, "tokens": 4})
    row = replace(row, golden=replace(row.golden, dtype="float32"), mine=replace(row.mine, dtype="float16"))
    assert may_differ(row, 0, replace(pair, mine=replace(pair.mine, op_type=op_type))) is asked
    chosen = Selected(TensorRef("chosen.pth"))
    inside = replace(pair.golden, experts=ExpertPick(None, None, "golden", chosen, chosen, 1))
    assert not may_differ(row, 0, replace(pair, golden=inside))


def test_values_stand_where_a_longer_tensor_has_those_of_mine() -> None:
    """Keys of one step in a cache; elsewhere nothing is put."""
    mine = torch.tensor([1.0, 2.0, 3.0])
    golden = GoldenValues(mine, torch.tensor([0, 2]), torch.tensor([10.0, 30.0], dtype=torch.float64))
    cache = torch.tensor([1.0, 0.0, 1.0, 7.0, 3.0, 0.0])
    into = cache.double()
    assert golden.fill(cache, into)
    assert into.tolist() == [1.0, 0.0, 10.0, 7.0, 30.0, 0.0]
    for other in (torch.zeros(6), mine[:2], mine.half()):
        assert not golden.fill(other, other.double())
