"""Operators of ATB computed from golden's inputs: whether they make golden's result, and what that is for."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from acc_pytest.base.vocabulary import NO_NOISE
from acc_pytest.diagnosis.inheritance import may_differ
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.errors import AccError
from acc_pytest.judging.judges import Judge
from acc_pytest.lab.atb import Fault
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.views import ExpertPick, Selected
from acc_pytest.operators import compute
from acc_pytest.reference import golden_inputs
from acc_pytest.reference.atb import AtbRecomputer, unlike_layers
from acc_pytest.reference.golden_inputs import (
    GoldenValues,
    directory_of_node,
    entry_of,
    golden_values,
    number_of,
    operator_directory,
)
from acc_pytest.reference.recomputation import Recomputation, Recomputations, attempted, worst
from acc_pytest.reference.twice import SIZE
from acc_pytest.reporting.row import Row
from acc_pytest.running.comparison import ComparisonMode
from acc_pytest.settings import find_config, read_config
from acc_pytest.tensors import atb_bin
from acc_pytest.tensors.ref import TensorRef
from tests.diagnosis.plans import plan_of, row_of
from tests.e2e.hf_models import HuggingFace, scratch
from tests.opcheck.made import MadeDump
from tests.slow import slow


@dataclass
class Bench:
    """Networks as ATB beside their golden dumps, each run and mapped once."""

    networks: HuggingFace

    def __post_init__(self) -> None:
        self.dumps = functools.cache(self._dumps)
        self.plan = functools.cache(self._plan)

    def _dumps(
        self, name: str, ranks: int, family: str | None, fault: Fault | None = None
    ) -> tuple[Path, Path, tuple[str, ...]]:
        """Golden's dump, that of mine, and the operators that have the fault."""
        network = self.networks.golden(name, "float16", steps=1, layers=1)
        return network.path, *self.networks.run(network, "float16", ranks, fault, family)

    def _plan(
        self, name: str, ranks: int, family: str | None, fault: Fault | None = None
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
        slow("bloom", None, 2),
        slow("glm", None, 2),
    ],
)
def test_operators_of_a_right_run_make_golden_of_its_inputs(
    bench: Bench, name: str, family: str | None, ranks: int
) -> None:
    """Packed and shared out over ranks, sums of ranks, caches, biases, quantised inputs and weights."""
    planned, _ = bench.plan(name, ranks, family)
    found = outcomes(planned)
    assert {outcome for each in found.values() for outcome in each} == {"right"}
    assert len(found) > 25  # of one layer


@pytest.mark.parametrize(
    ("fault", "family"),
    [
        (Fault("weight", 0), None),
        slow(Fault("norm_eps", 0, size=1e-3), None),
        slow(Fault("rope_base", 0, size=2.0), None),
        slow(Fault("softmax_scale", 0, size=1.3), None),
        (Fault("int8_scale", 0, size=1.4), "llama-int8"),
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
    planned, faulty = bench.plan("llama", 1, None, Fault("scale", 0, "LinearOperation", size=1.02))
    found = outcomes(planned)
    assert {outcome for name in faulty if name in found for outcome in found[name]} == {"wrong"}


def test_without_what_pairs_are_computed_from_nothing_is_said(bench: Bench) -> None:
    planned, _ = bench.plan("llama", 1, None)
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
    planned, faulty = bench.plan("llama", 1, "llama-int8", Fault("int8_scale", 0, size=2.0))
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
    planned, _ = bench.plan("llama", 1, None)
    monkeypatch.setattr(golden_inputs, "_REMEMBERED", 0)
    assert {outcome for each in outcomes(planned).values() for outcome in each} == {"right"}


def test_what_was_computed_unasked_is_not_computed_again_for_a_cause(bench: Bench) -> None:
    planned, _ = bench.plan("llama", 1, None)
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
    judge = Judge(mode.settings.rules, standard=mode.judges.standard)
    pairs = enumerate(mode.plan.pairs)
    return [mode.compared(pair, number, pair.id, lambda: judge) for number, pair in pairs], faulty


def test_another_activation_is_found_in_int8_unasked(bench: Bench) -> None:
    """Its error is half of what T allows there, and it is right with the parameters of mine."""
    fault = Fault("activation", 0, step=1)
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


# The directory of an operator in an ATB dump, found from a tensor of another one.


OPERATOR = "2_layer/0_Attention/1_Rope"


def tensor(home: Path, operator: str, state: str = "after") -> TensorRef:
    """A tensor that an operator wrote, whose directory is made."""
    directory = home / operator / state
    directory.mkdir(parents=True, exist_ok=True)
    return TensorRef(str(directory / "outtensor0.bin"))


@pytest.mark.parametrize(("state", "is_one"), [("after", True), ("before", True), ("other", False)])
def test_tensors_lie_in_states_of_their_operator(tmp_path: Path, state: str, is_one: bool) -> None:
    home = str(tmp_path / OPERATOR)
    assert operator_directory(tensor(tmp_path, OPERATOR, state)) == (home if is_one else "")


@pytest.mark.parametrize("own", [0, 3, 40])
def test_ids_of_the_first_level_differ_between_ranks_by_a_constant(tmp_path: Path, own: int) -> None:
    """Mine's tree calls the layer 2, this rank calls it `own`; so what the tree calls 5 is `own` + 3."""
    ref = tensor(tmp_path, f"{own}_layer/0_Attention/1_Rope")
    tensor(tmp_path, f"{own + 3}_layer/1_Mlp")
    tensor(tmp_path, f"{own}_layer/0_Attention/7_Rope")
    (tmp_path / "5_layer" / "1_Mlp").mkdir(parents=True, exist_ok=True)
    assert directory_of_node(ref, OPERATOR, "5_layer/1_Mlp") == str(tmp_path / f"{own + 3}_layer/1_Mlp")
    beside = tmp_path / f"{own}_layer/0_Attention/7_Rope"
    assert directory_of_node(ref, OPERATOR, "2_layer/0_Attention/7_Rope") == str(beside)
    assert directory_of_node(ref, OPERATOR, "9_layer/1_Mlp") == "", "there is none"


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ("2_layer/9_Other/1_Rope", OPERATOR),  # the tensor is not one of that node
        (f"0_top/{'1_a/' * 60}{OPERATOR}", OPERATOR),  # deeper than the path of the tensor
        (OPERATOR, "layer/0_Attention/1_Rope"),  # a name without an id
    ],
)
def test_what_does_not_fit_has_no_directory(tmp_path: Path, node: str, path: str) -> None:
    assert directory_of_node(tensor(tmp_path, OPERATOR), node, path) == ""
    assert directory_of_node(tensor(tmp_path, OPERATOR, "other"), OPERATOR, OPERATOR) == ""


def test_an_operator_of_the_first_level_is_found_from_one(tmp_path: Path) -> None:
    tensor(tmp_path, "8_Norm")
    assert directory_of_node(tensor(tmp_path, "7_Embed"), "1_Embed", "2_Norm") == str(tmp_path / "8_Norm")


@pytest.mark.parametrize(("name", "number"), [("12_layer", 12), ("0_a_1", 0), ("layer", 0), ("x_1", 0)])
def test_the_id_of_a_name_is_0_where_it_has_none(name: str, number: int) -> None:
    assert number_of(name) == number


def test_a_directory_is_listed_as_itself_only_where_it_is_an_operator_s(tmp_path: Path) -> None:
    tensor(tmp_path, OPERATOR)
    (tmp_path / OPERATOR / "op_param.json").write_text("{}")
    directory = str(tmp_path / OPERATOR)
    entry = entry_of(directory)
    assert entry is not None
    assert entry.directory == directory
    assert entry_of(str(tmp_path / "2_layer")) is None


# Parameters of an operator beside those of the other layers, from files of parameters.


LAYERS = ("2_Prefill_layer", "3_Prefill_layer", "4_Prefill_layer")
PATH = "1_Norm/0_RmsNormOperation"


def written(home: Path, *params: object, layers: tuple[str, ...] = LAYERS) -> list[str]:
    """An operator of each layer with these parameters; the directory of each."""
    found = []
    for layer, param in zip(layers, params):
        directory = home / layer / PATH
        directory.mkdir(parents=True)
        (directory / "op_param.json").write_text(param if isinstance(param, str) else json.dumps(param))
        found.append(str(directory))
    return found


def test_the_parameter_of_one_layer_is_told_with_both_values(tmp_path: Path) -> None:
    usual = {"layerType": 1, "normParam": {"epsilon": 1e-05}}
    odd = {**usual, "normParam": {"epsilon": 1.0}}
    one, two, three = written(tmp_path, usual, odd, usual)
    assert unlike_layers(two, 3) == "its normParam.epsilon is 1.0, that of layer 2_Prefill_layer is 1e-05"
    assert unlike_layers(one, 3) == unlike_layers(three, 3) == ""


def test_two_layers_are_enough_and_a_missing_key_is_not_set(tmp_path: Path) -> None:
    one, two = written(tmp_path, {"epsilon": 1.0, "x": 2}, {"epsilon": 1.0})
    assert unlike_layers(one, 3) == "its x is 2, that of layer 3_Prefill_layer is not set"
    assert unlike_layers(two, 3) == ""


def test_parameters_that_every_layer_has_otherwise_are_no_sign(tmp_path: Path) -> None:
    """Such as a scale by the number of the layer."""
    for directory in written(tmp_path, {"scale": 1}, {"scale": 2}, {"scale": 3}):
        assert unlike_layers(directory, 3) == ""


@pytest.mark.parametrize("other", ["", "[1]", "{", "[" * 100_000])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, other: str) -> None:
    one, two = written(tmp_path, {"epsilon": 1.0}, other)
    assert unlike_layers(one, 3) == unlike_layers(two, 3) == unlike_layers(str(tmp_path / "gone"), 3) == ""


def test_layers_of_another_kind_and_operators_outside_of_layers_say_nothing(tmp_path: Path) -> None:
    one, _ = written(tmp_path, {"a": 1}, {"a": 2}, layers=("2_Prefill_layer", "3_Decoder_layer"))
    assert unlike_layers(one, 3) == ""
    for number in (0, 1):
        home = tmp_path / f"{number}_LinearOperation"
        home.mkdir()
        (home / "op_param.json").write_text(json.dumps({"a": number}))
    assert unlike_layers(str(tmp_path / "0_LinearOperation"), 1) == ""


def test_hostile_values_are_short(tmp_path: Path) -> None:
    one, _ = written(tmp_path, {"\x1b[2J" + "k" * 9000: "\x1b" + "v" * 9000}, {})
    assert len(unlike_layers(one, 3)) < 250


@pytest.mark.parametrize("deep", ['{"a": ' * 900 + "1" + "}" * 900, '{"a": ' + "[" * 900 + "]" * 900 + "}"])
def test_parameters_as_deep_as_json_may_be_break_nothing(tmp_path: Path, deep: str) -> None:
    one, two = written(tmp_path, {"epsilon": 1.0}, deep)
    assert unlike_layers(one, 3) in ("", "its epsilon is 1.0, that of layer 3_Prefill_layer is not set")
    assert len(unlike_layers(two, 3)) < 250


# Single operators of ATB computed again from the files of a hand-made dump.


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).half()
SOFTMAX = {"axes": [-1]}


def pair_of(*homes: Path, op_type: str = "", slot: str = "output[0]", node: str = "") -> Pair:
    """The pair of an operator that was dumped in these directories, one for each rank."""
    path = node or f"5_Attention/{homes[0].name}"
    files = (home / "after" / f"outtensor{slot.rstrip(']')[-1]}.bin" for home in homes)
    operand = Operand(
        path,
        "Name_5_0",
        op_type or homes[0].name.partition("_")[2],
        slot,
        tuple(TensorRef(str(f)) for f in files),
    )
    return Pair("id", 0, None, "op", "", 0, 0, "", "", operand, operand)


def of(*homes: Path, **fields: str) -> Recomputation:
    return AtbRecomputer([pair_of(*homes, **fields)]).of_pair(0)


def made(
    root: Path,
    operator: str,
    param: dict[str, Any],
    inputs: list[torch.Tensor],
    *outputs: torch.Tensor,
    **more: Any,
) -> Path:
    """The directory of an operator with these outputs; without any, with what it computes."""
    return MadeDump(root).add(operator, param, inputs, outputs or None, path="5_Attention", **more)


@pytest.mark.parametrize(("factor", "said"), [(1.0, "right"), (1.002, "right"), (1.25, "wrong")])
def test_a_result_may_be_rounded_and_not_more(tmp_path: Path, factor: float, said: str) -> None:
    [right] = compute("SoftmaxOperation", SOFTMAX, [X])
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X], (right.float() * factor).half())
    assert of(home).outcome == said


def test_what_is_only_moved_is_exact(tmp_path: Path) -> None:
    other = X.T.contiguous()
    other[0, 0] = other[0, 0] * 1.001
    assert of(made(tmp_path / "a", "TransposeOperation", {"perm": [1, 0]}, [X])).outcome == "right"
    assert of(made(tmp_path / "b", "TransposeOperation", {"perm": [1, 0]}, [X], other)).outcome == "wrong"
    flat = made(tmp_path / "c", "TransposeOperation", {"perm": [1, 0]}, [X], X.T.reshape(-1))
    assert of(flat).outcome == "right", "the same values in another shape"
    short = made(tmp_path / "d", "TransposeOperation", {"perm": [1, 0]}, [X], X.T[:2])
    assert (of(short).outcome, of(short).why) == ("", SIZE)


def test_a_result_of_another_size_says_nothing(tmp_path: Path) -> None:
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X], X[:2])
    assert (of(home).outcome, of(home).why) == ("", SIZE)


def test_among_equal_values_an_operator_may_choose_others(tmp_path: Path) -> None:
    values, places = compute("SortOperation", {"num": [2]}, [X])
    for name, chosen, said in (("a", places, "right"), ("b", places + 3, "")):
        home = made(tmp_path / name, "SortOperation", {"num": [2]}, [X], values, chosen)
        assert of(home).outcome == "right"
        assert of(home, slot="output[1]").outcome == said
    assert of(home, slot="output[1]").why == "it chose other elements, which it may among equal ones"


def test_longer_sums_may_be_further_off(tmp_path: Path) -> None:
    """The longest last dimension of an input is the length K of the sums: T = 8 * (2^-11 + sqrt(K) * 2^-24).

    It is 0.0039 for two terms and 0.0049 for four million. Off by 9 of 2000 is 0.0045.
    """
    param = {"hasBias": False, "transposeB": True}
    for terms, value, said in ((1 << 22, 0.02185, "right"), (2, 31.64, "wrong")):
        x = torch.full((1, terms), value).half()
        [right] = compute("LinearOperation", param, [x, x])
        assert 1990 < float(right) < 2010
        assert of(made(tmp_path / str(terms), "LinearOperation", param, [x, x], right + 9)).outcome == said


def test_an_output_that_the_operator_has_not_is_unknown(tmp_path: Path) -> None:
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X])
    assert of(home, slot="output[3]").why == "it has no such output"
    atb_bin.write(home / "after" / "outtensor1.bin", X)
    found = of(home, slot="output[1]")
    assert (found.outcome, bool(found.why)) == ("", True)


def test_inputs_that_were_dumped_after_the_execution_are_none(tmp_path: Path) -> None:
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X], state="after")
    assert of(home).why == "its inputs were dumped after the execution only"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"op_type": "FooOperation"}, "FooOperation has no reference computation"),
        ({"slot": "input[0]"}, "input[0] is not written by Name_5_0"),
        ({"slot": "output[key]"}, "output[key] is not written by Name_5_0"),
    ],
)
def test_what_cannot_be_computed_again_says_why(tmp_path: Path, fields: dict[str, str], said: str) -> None:
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X])
    assert of(home, **fields) == Recomputation(why=said)


def test_tensors_outside_of_an_operator_s_directory_have_no_inputs(tmp_path: Path) -> None:
    home = made(tmp_path, "SoftmaxOperation", SOFTMAX, [X])
    pair = pair_of(home)
    moved = Operand(
        "n", "n", "SoftmaxOperation", "output[0]", (*pair.mine.refs, TensorRef(str(tmp_path / "x.bin")))
    )
    both = Pair("id", 0, None, "op", "", 0, 0, "", "", moved, moved)
    assert AtbRecomputer([both]).of_pair(0).why == "its inputs were not dumped beside it"
    (home / "op_param.json").unlink()
    (home / "before" / "intensor0.bin").unlink()
    assert of(home).outcome == ""


def test_an_operator_is_right_if_it_is_on_every_rank(tmp_path: Path) -> None:
    [right] = compute("SoftmaxOperation", SOFTMAX, [X])
    homes = [made(tmp_path / str(n), "SoftmaxOperation", SOFTMAX, [X], right * (1 + n)) for n in range(2)]
    assert [of(home).outcome for home in homes] == ["right", "wrong"]
    assert of(*homes).outcome == "wrong"
    assert of(homes[0], homes[0]).outcome == "right"


def test_operators_beside_a_pair_are_found_by_their_path_and_judged_by_all_outputs(tmp_path: Path) -> None:
    dump = MadeDump(tmp_path)
    [right] = compute("SoftmaxOperation", SOFTMAX, [X])
    home = dump.add("SoftmaxOperation", SOFTMAX, [X], [right], path="5_Attention")
    dump.add("SortOperation", {"num": [2]}, [X], path="5_Attention")
    values, places = compute("SortOperation", {"num": [2]}, [X])
    dump.add("SortOperation", {"num": [2]}, [X], [values * 2, places], path="5_Attention")
    local = AtbRecomputer([pair_of(home)])
    assert local.of_operator(0, "5_Attention/0_SoftmaxOperation").outcome == "right"
    assert local.of_operator(0, "5_Attention/1_SortOperation").outcome == "right"
    assert local.of_operator(0, "5_Attention/2_SortOperation").outcome == "wrong"
    assert local.of_operator(0, "5_Attention/9_SortOperation") == Recomputation(
        why="its directory is not known"
    )
    assert local.of_golden(0) == Recomputation(why="what it computes from is not known")


def test_parameters_are_held_against_those_of_the_other_layers_on_any_rank(tmp_path: Path) -> None:
    dump = MadeDump(tmp_path)
    homes = [
        dump.add("SoftmaxOperation", {"axes": [axis]}, [X], path=f"{layer}_Layer")
        for layer, axis in ((1, 0), (2, -1), (3, -1))
    ]
    dump.execution.joinpath("1_Layer", "9_Other").mkdir()
    pairs = [pair_of(home, node=f"{home.parent.name}/{home.name}") for home in homes]
    for home, new in zip(homes, ("0_S", "0_S", "0_S")):
        home.rename(home.parent / new)
    renamed = [
        pair_of(home.parent / "0_S", node=f"{home.parent.name}/0_S", op_type="SoftmaxOperation")
        for home in homes
    ]
    local = AtbRecomputer(renamed)
    assert local.unlike(0, "1_Layer/0_S") == "its axes is [0], that of layer 2_Layer is [-1]"
    assert local.unlike(1, "2_Layer/0_S") == ""
    assert local.unlike(0, "1_Layer/9_Other") == local.unlike(0, "7_Layer/0_S") == ""
    assert AtbRecomputer(pairs).unlike(0, pairs[0].mine.node) == ""


# ---- outcomes ---------------------------------------------------------------------------------------


def test_an_outcome_is_computed_once() -> None:
    known, asked = Recomputations(), []

    def compute_again() -> Recomputation:
        asked.append(1)
        return Recomputation("right")

    assert known.of("a", compute_again, "").outcome == known.of("a", compute_again, "").outcome == "right"
    known.of("b", compute_again, "")
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AccError("no reference"), "no reference"),
        (OSError(2, "gone"), "[Errno 2] gone"),
        (ZeroDivisionError("by 0"), "computing x again: ZeroDivisionError: by 0"),
    ],
)
def test_an_error_is_the_reason_why_nothing_is_known(error: Exception, said: str) -> None:
    def fail() -> Recomputation:
        raise error

    found = attempted(fail, "computing x again")
    assert (found.outcome, found.why.startswith(said)) == ("", True)


def test_of_several_the_worst_and_of_these_the_largest_error_counts() -> None:
    outcomes = [
        Recomputation("right", 0.5),
        Recomputation("wrong", None, "a"),
        Recomputation("wrong", 0.2, "b"),
    ]
    assert worst(outcomes) == outcomes[2]
    assert worst(outcomes[:2]) == outcomes[1]
    assert worst([Recomputation("right", None), Recomputation("right", 0.0)]).error == 0.0
    assert worst([]) == Recomputation(why="it has no output")
