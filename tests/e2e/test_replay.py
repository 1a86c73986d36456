"""Operators of mine on their own inputs (`--acc-replay`): what is wrong within all bounds is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # layers import it when they are made, and pytester forgets what it imported

from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.errors import AccError
from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault, make_demo
from acc_pytest.lab.demo.torchair import TorchairPaths, TorchairSpec, make_torchair_demo
from acc_pytest.mapping.planner import plan
from acc_pytest.reference import modules
from acc_pytest.reference.golden_model.models import load_model
from acc_pytest.reference.recomputation import RecomputeBudget
from acc_pytest.reference.twice import hold
from acc_pytest.tensors.ge_record import read_record
from acc_pytest.tensors.ref import TensorRef
from tests.dumps.hooked_models import debugger_run, sglang_run
from tests.dumps.msprobe_writer import RankWriter, record
from tests.newer import caches_have_layers
from tests.slow import slow
from tests.tensors.ge_writer import GeValue, write_record

from . import replay_models
from .conftest import QUICKER, Run, read_rows
from .replay_models import Decoder, make_massive, make_model

IDS = torch.arange(24).reshape(1, 24) * 7 % 97
Spoil = Callable[[Decoder], None]
Layers = Any
"""What `nn.ModuleList` gives, which has no types."""


class Dumps:
    """Golden in float32, and runs of mine in bfloat16."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.golden = self.dump("golden", torch.float32)

    def dump(
        self,
        name: str,
        dtype: torch.dtype = torch.bfloat16,
        spoil: Spoil | None = None,
        make: Callable[[], Decoder] = make_model,
        **how: Any,
    ) -> Path:
        """Run a model, with a mistake where `spoil` makes one, and dump it."""
        model = make()
        if spoil is not None:
            spoil(model)
        where = self._directory / name
        with torch.no_grad(), register_hook(model.to(dtype), DumpConfig(where, **how)):
            model(IDS)
        return where


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Dumps:
    return Dumps(tmp_path_factory.mktemp("replay"))


Replay = Callable[..., pytest.RunResult]


@pytest.fixture
def replay(dumps: Dumps, pytester: pytest.Pytester) -> Replay:
    pytester.makeini("[pytest]")

    def run(
        mine: Path, *arguments: str, model: str = "make_model", golden: Path = dumps.golden
    ) -> pytest.RunResult:
        words = [f"--acc-golden={golden}", f"--acc-mine={mine}", "--acc-output=out", "--acc-csv=acc.csv"]
        words += ["--acc-replay", f"--acc-model={replay_models.__file__}:{model}"] if model else []
        return pytester.runpytest_inprocess(*QUICKER, *words, "-q", *arguments)

    return run


def of_rows(column: str, wanted: Callable[[dict[str, str]], bool] = lambda _: True) -> dict[str, str]:
    """A column of the report by the name of mine."""
    return {row["my_name"]: row[column] for row in read_rows() if wanted(row)}


def q_weights(model: Decoder) -> None:
    layers: Layers = model.layers
    weight = layers[1].attn.q_proj.weight
    weight.data *= 1 + 0.03 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))


def down_weights(model: Decoder) -> None:
    layers: Layers = model.layers
    weight = layers[0].mlp.down_proj.weight
    weight.data *= 1 + 0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))


def epsilon(model: Decoder) -> None:
    layers: Layers = model.layers
    layers[1].norm2.eps = 1e-2


def attention_scale(model: Decoder) -> None:
    layers: Layers = model.layers
    layers[0].attn.scale *= 1.05


def zeroed_token(model: Decoder) -> None:
    layers: Layers = model.layers
    layers[1].mlp.register_forward_hook(_zeroed)


def _zeroed(module: object, given: object, result: torch.Tensor) -> torch.Tensor:
    return result.index_fill(1, torch.tensor(5), 0.0)


FAULTS: dict[Spoil, str] = {
    q_weights: "root.layers.1.attn.q_proj (",
    down_weights: "root.layers.0.mlp.down_proj (",
    epsilon: "root.layers.1.norm2 (",
    attention_scale: "root.layers.0.attn ",
    zeroed_token: "root.layers.1.mlp (",
}


def test_a_right_port_is_green_and_every_operator_was_computed_again(dumps: Dumps, replay: Replay) -> None:
    result = replay(dumps.dump("right"))
    assert result.ret == 0
    rows = [row for row in read_rows() if not row["fed"]]
    assert len(rows) > 20
    assert not [row["test_id"] for row in rows if "replay_error <=" not in row["thresholds"]]
    assert not [row for row in rows if "not computed again" in row["notes"]]
    result.stdout.fnmatch_lines(
        [f"replay: {len(rows)} of {len(rows)} tensors of operators were computed again"]
    )


@pytest.mark.parametrize(
    "spoil", [*list(FAULTS)[:2], *map(slow, list(FAULTS)[2:])], ids=lambda spoil: spoil.__name__
)
def test_a_fault_is_the_only_red_test_and_named(spoil: Spoil, dumps: Dumps, replay: Replay) -> None:
    result = replay(dumps.dump(spoil.__name__, spoil=spoil, weight_digest=False))
    roots = [line.removeprefix("root cause: ") for line in result.outlines if line.startswith("root cause: ")]
    assert len(roots) == 1, result.stdout.str()
    assert roots[0].startswith(FAULTS[spoil])
    assert "wrong on its own inputs" in roots[0]
    assert len(of_rows("verdict", lambda row: row["verdict"] == "fail")) == 1


@pytest.mark.slow
def test_without_replay_none_of_these_faults_is_seen(dumps: Dumps, replay: Replay) -> None:
    """They are inside the bounds of a comparison (but the token): else the test above would show little."""
    for spoil in FAULTS.keys() - {zeroed_token}:
        mine = dumps.dump(f"{spoil.__name__}_alone", spoil=spoil, weight_digest=False)
        result = replay(mine, "--acc-replay=off", model="")
        assert result.ret == 0, spoil


def test_modules_are_judged_by_what_golden_outlines_of_them(
    dumps: Dumps, replay: Replay, pytester: pytest.Pytester
) -> None:
    """Nobody asked, and there is no model: golden's dump has projections of weights, and traces."""
    mine = dumps.dump("outlined", spoil=down_weights, weight_digest=False)
    result = replay(mine, "--acc-rows=rows.jsonl", model="")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["replay: 35 of 35 tensors of operators were computed again"])
    name = "root.layers.0.mlp.down_proj"
    assert of_rows("verdict", lambda row: row["verdict"] != "pass") == {name: "fail"}
    assert "wrong on its own inputs: relative L2 error 0.00" in of_rows("why")[name]
    assert "replay_error <= 0.00" in of_rows("thresholds")[name]
    again = ("--acc-from-rows=rows.jsonl", "--acc-output=out", "--acc-csv=acc.csv")
    assert pytester.runpytest_inprocess(*QUICKER, "-q", *again).ret == 1
    assert of_rows("verdict", lambda row: row["verdict"] != "pass") == {name: "fail"}


def test_another_weight_is_the_root_and_its_module_inherits(dumps: Dumps, replay: Replay) -> None:
    replay(dumps.dump("weights", spoil=q_weights))
    assert of_rows("verdict", lambda row: row["verdict"] != "pass") == {
        "root.layers.1.attn.q_proj.weight": "fail",
        "root.layers.1.attn.q_proj": "inherited",
    }
    assert "wrong on its own inputs" in of_rows("why")["root.layers.1.attn.q_proj"]


def test_rows_judged_again_say_the_same(dumps: Dumps, replay: Replay, pytester: pytest.Pytester) -> None:
    replay(dumps.dump("again", spoil=attention_scale), "--acc-rows=rows.jsonl")
    first = [(row["test_id"], row["verdict"], row["root"], row["why"]) for row in read_rows()]
    again = ("--acc-from-rows=rows.jsonl", "--acc-output=out", "--acc-csv=acc.csv")
    assert pytester.runpytest_inprocess(*QUICKER, "-q", *again).ret == 1
    assert [(row["test_id"], row["verdict"], row["root"], row["why"]) for row in read_rows()] == first


@pytest.mark.slow
@pytest.mark.usefixtures("python_with_torch")
def test_workers_and_any_selection_give_the_same_verdicts(dumps: Dumps, replay: Replay) -> None:
    mine = dumps.dump("workers", spoil=epsilon)
    replay(mine)
    first = {row["test_id"]: (row["verdict"], row["why"]) for row in read_rows()}
    assert replay(mine, "-n", "2").ret == 1
    assert {row["test_id"]: (row["verdict"], row["why"]) for row in read_rows()} == first
    assert replay(mine, "-k", "norm2").ret == 1


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("missing", "replay_models.py has no function missing; define it or correct the name"),
        ("not_callable", "has no function not_callable"),
        ("make_trouble", "calling make_trouble in *replay_models.py: OSError: the checkpoint is not there*"),
        ("make_nothing", "make_nothing in *replay_models.py must return a torch.nn.Module, got int"),
        ("make_sized", "make_sized in *replay_models.py needs width, but is called without arguments*"),
    ],
)
def test_a_factory_that_makes_no_model_stops_the_run(
    model: str, said: str, dumps: Dumps, replay: Replay
) -> None:
    result = replay(dumps.golden, model=model)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--acc-model: *{said}*"])


def test_a_module_that_the_model_lacks_is_said(dumps: Dumps, replay: Replay) -> None:
    assert replay(dumps.dump("right_too"), model="make_smaller").ret == 0
    said = "not computed again: golden's model has no module root.layers.1"
    assert said in of_rows("notes")["root.layers.1"]


def test_a_run_in_which_no_module_could_be_computed_again_is_red(dumps: Dumps, replay: Replay) -> None:
    result = replay(dumps.dump("right_for_another"), model="make_other")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes().keys() == {"passed"}
    said = "replay: 0 of * computed again, so the run is not a success; one was not because * has no module *"
    result.stdout.fnmatch_lines([said])


def test_inputs_that_were_not_dumped_are_outputs_in_the_places_of_goldens(
    dumps: Dumps, replay: Replay
) -> None:
    right = replay(dumps.dump("outputs", tensor_part=1))
    assert right.ret == 0
    right.stdout.fnmatch_lines(["replay: 30 of 30 tensors of operators were computed again"])

    wrong = replay(dumps.dump("outputs_wrong", spoil=zeroed_token, tensor_part=1))
    wrong.stdout.fnmatch_lines(
        ["root cause: root.layers.1.mlp *, and the operator is wrong on its own inputs*"]
    )


def test_replay_without_a_model_and_a_model_without_replay_are_refused(dumps: Dumps, replay: Replay) -> None:
    result = replay(dumps.golden, "--acc-replay", model="")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--acc-replay of a dump of torch needs --acc-model: a directory of Hugging Face*"]
    )
    model = f"--acc-model={replay_models.__file__}:make_model"
    result = replay(dumps.golden, model, "--acc-replay=off", model="")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--acc-model is for computing operators again; leave out --acc-replay=off*"]
    )
    assert replay(dumps.golden, model, model="").ret == 0


def test_an_operator_of_too_many_elements_is_left_out(dumps: Dumps, replay: Replay) -> None:
    assert replay(dumps.dump("large"), "--acc-replay=2000").ret == 0
    said = "it has 3072 elements, and of more than 2000 none is computed again"
    assert said in of_rows("notes")["root.layers.0.attn.q_proj"]


def test_a_zeroed_token_beside_a_massive_activation_is_named(dumps: Dumps, replay: Replay) -> None:
    def spoil(model: Decoder) -> None:
        layers: Layers = model.layers
        layers[0].register_forward_hook(_zeroed)

    golden = dumps.dump("massive_golden", torch.float32, make=make_massive)
    right = dumps.dump("massive", make=make_massive)
    assert replay(right, model="make_massive", golden=golden).ret == 0
    wrong = dumps.dump("massive_zeroed", make=make_massive, spoil=spoil)
    result = replay(wrong, model="make_massive", golden=golden)
    assert list(of_rows("why", lambda row: row["verdict"] == "fail")) == ["root.layers.0"]
    result.stdout.fnmatch_lines(["root cause: root.layers.0 (Layer)*wrong on its own inputs*"])


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """An ATB dump in which a product of layer 1 is 1 % too large."""
    fault = Fault("scale", 1, step=0, size=1.01)
    spec = DemoSpec(layers=2, decode_steps=0, dtype="bfloat16", fault=fault)
    return make_demo(tmp_path_factory.mktemp("scaled"), spec)


@pytest.mark.parametrize("how", [slow("--acc-replay"), "--acc-replay=auto"])
def test_an_operator_of_atb_that_is_one_percent_off_is_found(acc: Run, scaled: DemoPaths, how: str) -> None:
    result = acc(scaled, "-q", how)
    assert result.ret == 1
    wrong = of_rows("verdict", lambda row: row["verdict"] == "fail")
    assert wrong.keys() == {scaled.faulty[0]}
    roots = [line for line in result.outlines if line.startswith("root cause: ")]
    assert len(roots) == 1
    assert scaled.faulty[0] in roots[0]


def test_without_replay_it_is_not(acc: Run, scaled: DemoPaths) -> None:
    assert acc(scaled, "-q", "--acc-replay=off").ret == 0


@pytest.mark.usefixtures("python_with_torch")
def test_operators_of_a_right_atb_dump_are_right(acc: Run, clean: DemoPaths) -> None:
    assert acc(clean, "-q", "--acc-replay", "-n", "2").ret == 0
    operators = [row for row in read_rows() if "replay_" in row["thresholds"]]
    assert {"LinearOperation", "RmsNormOperation", "SelfAttentionOperation", "RopeOperation"} <= {
        row["my_op_type"] for row in operators
    }


def test_a_model_is_refused_for_an_atb_dump(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean, "--acc-replay", f"--acc-model={replay_models.__file__}:make_model")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--acc-model is for dumps of torch models (*), and mine is one of atb; leave it out*"]
    )


@pytest.fixture(scope="module", autouse=True)
def graphs(tmp_path_factory: pytest.TempPathFactory) -> TorchairPaths:
    """For every test: what `torch.compile` imports must be there before pytester, which forgets the rest."""
    spec = TorchairSpec(tokens=(5,), steps=1)
    return make_torchair_demo(tmp_path_factory.mktemp("graphs"), spec)


@pytest.mark.parametrize("kind", ["ge", slow("fx")])
def test_operators_of_graphs_are_right_or_wrong_on_their_own_inputs(
    kind: str, acc: Run, graphs: TorchairPaths, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(graphs.mine if kind == "ge" else graphs.golden, mine)
    files = "*.Gelu.*" if kind == "ge" else "gelu-aten.gelu.default.OUTPUT*"
    assert acc(DemoPaths(graphs.golden, mine, ()), "-q", "--acc-replay").ret == 0
    assert sum("replay_error <=" in row["thresholds"] for row in read_rows()) >= 5
    for file in mine.rglob(files):
        spoil_file(file)
    acc(DemoPaths(graphs.golden, mine, ()), "-q", "--acc-replay")
    why = of_rows("why", lambda row: row["verdict"] == "fail")
    assert "wrong on its own inputs" in next(why[name] for name in why if name.lower().startswith("gelu"))


def spoil_file(file: Path) -> None:
    """Make what a file of an operator holds as its result 4 % larger."""
    if file.suffix == ".npy":
        import numpy as np

        np.save(file, np.load(file) * np.float32(1.04))
        return
    record = read_record(file)
    given = [TensorRef(str(file), f"inputs/{n}").open().clone() for n in range(len(record.inputs))]
    made = [TensorRef(str(file), f"outputs/{n}").open().clone() for n in range(len(record.outputs))]
    made[0] = (made[0].double() * 1.04).to(made[0].dtype)
    write_record(file, record.op_name, given, [GeValue(one) for one in made])


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`golden`, `right` and `wrong`: three steps of a model of transformers, each with the cache of the last.

    Before pytester, as `graphs`: transformers takes seconds to import.
    """
    caches_have_layers()
    directory = tmp_path_factory.mktemp("cached")
    models = {"golden": replay_models.make_llama()}
    for name in ("right", "wrong"):
        models[name] = replay_models.make_llama().to(torch.bfloat16)
    models["wrong"].model.layers[1].self_attn.scaling *= 1.3
    for name, model in models.items():
        with torch.no_grad(), register_hook(model, DumpConfig(directory / name, token_range=range(3))):
            past = model(IDS % 50).past_key_values
            for step in (1, 2):
                past = model(IDS[:, step : step + 1] % 50, past_key_values=past).past_key_values
    return directory


@pytest.mark.parametrize("mine", [slow("right"), "wrong"])
def test_the_cache_of_a_decode_step_is_what_the_step_before_left(
    mine: str, cached: Path, replay: Replay
) -> None:
    """Of transformers' models a dump has keys and values only, and no flag that a module was called with."""
    result = replay(cached / mine, model="make_llama", golden=cached / "golden")
    assert result.ret == (mine == "wrong")
    judged = [row for row in read_rows() if "replay_error <=" in row["thresholds"]]
    assert {row["token_id"] for row in judged} == {"0", "1", "2"}
    assert not [row for row in read_rows() if "not computed again" in row["notes"]]
    wrong = {row["my_name"] for row in judged if row["verdict"] == "fail"}
    assert wrong == ({"root.model.layers.1.self_attn.o_proj"} if mine == "wrong" else set())


def alone(pytester: pytest.Pytester, mine: Path, *words: str) -> pytest.RunResult:
    """Replay without golden."""
    more = ("--acc-replay", "--acc-output=out", "--acc-csv=acc.csv", "-q")
    return pytester.runpytest_inprocess(*QUICKER, f"--acc-mine={mine}", *more, *words)


@pytest.mark.usefixtures("python_with_torch")
def test_without_golden_every_module_is_a_test(dumps: Dumps, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    model = f"--acc-model={replay_models.__file__}:make_model"
    right = alone(pytester, dumps.dump("right_alone"), model)
    assert right.ret == 0
    assert right.parseoutcomes().keys() == {"passed"}
    right.stdout.fnmatch_lines(["replay: 36 of 36 tensors of operators were computed again"])
    wrong = alone(pytester, dumps.dump("wrong_alone", spoil=attention_scale), model, "--acc-rows=rows.jsonl")
    assert wrong.parseoutcomes()["failed"] == 1
    line = "root cause: root.layers.0.attn * the operator is wrong on its own inputs: relative L2 error *"
    wrong.stdout.fnmatch_lines([line])
    assert "its inputs agree" not in wrong.stdout.str()
    first = {row["test_id"]: (row["verdict"], row["why"], row["root"]) for row in read_rows()}
    again = ("--acc-from-rows=rows.jsonl", "--acc-output=out", "--acc-csv=acc.csv")
    assert pytester.runpytest_inprocess(*QUICKER, "-q", *again).ret == 1
    assert {row["test_id"]: (row["verdict"], row["why"], row["root"]) for row in read_rows()} == first
    assert alone(pytester, dumps.dump("wrong_alone_too", spoil=attention_scale), model, "-n2").ret == 1
    assert {row["test_id"]: (row["verdict"], row["why"], row["root"]) for row in read_rows()} == first


def test_without_golden_what_cannot_be_computed_again_is_a_skipped_test(
    scaled: DemoPaths, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]")
    result = alone(pytester, scaled.mine, "-rs")
    assert result.ret == 1
    assert of_rows("verdict", lambda row: row["verdict"] == "fail").keys() == {scaled.faulty[0]}
    assert result.parseoutcomes()["passed"] > 30


def test_without_golden_a_run_in_which_nothing_was_computed_is_red(
    dumps: Dumps, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]")
    model = f"--acc-model={replay_models.__file__}:make_model"
    result = alone(pytester, dumps.dump("nothing"), model, "--acc-replay=1", "-rs")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["*SKIPPED*not computed again: it has * elements, and of more than 1 none*"])
    result.stdout.fnmatch_lines(["nothing was compared*"])


def test_without_golden_options_of_a_comparison_are_refused(dumps: Dumps, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    result = alone(pytester, dumps.golden, f"--acc-noise={dumps.golden}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--acc-noise is for comparing with golden; add --acc-golden*"])


@pytest.mark.slow
def test_a_pair_beyond_its_bound_is_no_failure_where_every_operator_is_right(
    dumps: Dumps, replay: Replay, pytester: pytest.Pytester
) -> None:
    """Bounds that are far too tight stand for a network that makes much of rounding."""
    rule = '[[threshold]]\nmatch = { name = "root.l*", level = ["op", "layer", "logits"] }\n'
    Path("tight.toml").write_text(f"{rule}factor = 0.02\n", encoding="utf-8")
    right = dumps.dump("tight")
    assert replay(right, "--acc-config=tight.toml", "--acc-replay=off", model="").ret == 1
    assert replay(right, "--acc-config=tight.toml", model="").ret == 0
    assert replay(right, "--acc-config=tight.toml", "--acc-rows=rows.jsonl").ret == 0
    notes = of_rows("notes", lambda row: row["my_name"] == "root.lm_head")
    assert "rounding that has accumulated" in notes["root.lm_head"]
    again = ("--acc-from-rows=rows.jsonl", "--acc-config=tight.toml", "--acc-output=out")
    assert pytester.runpytest_inprocess(*QUICKER, "-q", *again).ret == 0
    assert replay(dumps.dump("tight_wrong", spoil=attention_scale), "--acc-config=tight.toml").ret == 1
    fails = of_rows("verdict", lambda row: row["verdict"] == "fail")
    assert set(fails) == {"root.layers.0.attn.o_proj"}
    assert "inherited" in of_rows("verdict").values()


# Modules in dumps of other tools on their own inputs: golden's model computes them again (`--acc-model`).


TOKEN_IDS = torch.arange(24).reshape(1, 24) * 7 % 97


def msprobe(home: Path, model: Decoder) -> None:
    record(RankWriter(home / "step0" / "proc1", level="L0"), model, [[TOKEN_IDS]]).write()


def sglang(home: Path, model: Decoder) -> None:
    sglang_run(home, model, {"input_ids": TOKEN_IDS})


def debugger(home: Path, model: Decoder) -> None:
    debugger_run(home, model, {"input_ids": TOKEN_IDS})


Write = Callable[[Path, Decoder], None]


def dumped(home: Path, write: Write, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Path:
    """A run of the model; `scale` changes the softmax of one attention."""
    model = make_model()
    layers: Any = model.layers
    layers[0].attn.scale *= scale
    write(home, model.to(dtype))
    return home


def replayed(pytester: pytest.Pytester, golden: Path, mine: Path) -> pytest.RunResult:
    model = f"--acc-model={replay_models.__file__}:make_model"
    report = ("--acc-output=out", "--acc-csv=acc.csv", "-q")
    sides = (f"--acc-golden={golden}", f"--acc-mine={mine}")
    return pytester.runpytest_inprocess(*QUICKER, *sides, *report, "--acc-replay", model)


def with_function(home: Path, scale: float = 1.0) -> Path:
    """A dump of level mix: a function that an MLP called, beside all modules."""
    writer = record(RankWriter(home / "step0" / "proc1"), make_model().bfloat16(), [[TOKEN_IDS]])
    name, x = "Functional.silu.0.forward", torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
    writer.began(name, "Module.layers.0.mlp.Mlp.forward.0")
    writer.ended(
        name, {"input_args": [x], "input_kwargs": {}, "output": [torch.nn.functional.silu(x) * scale]}
    )
    writer.write()
    return home


def test_functions_beside_the_modules_of_a_model_are_computed_from_their_records(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    golden = with_function(tmp_path / "golden")
    assert replayed(pytester, golden, with_function(tmp_path / "right")).ret == 0
    rows = {row["my_name"]: row["thresholds"] for row in read_rows() if row["my_slot"] == "output[0]"}
    assert "replay_error" in rows["root.layers.0.mlp.silu"]
    assert "replay_error" in rows["root.layers.0.mlp.down_proj"]
    result = replayed(pytester, golden, with_function(tmp_path / "wrong", 1.5))
    result.stdout.fnmatch_lines(["root cause: root.layers.0.mlp.silu *wrong on its own inputs*"])


@pytest.mark.parametrize(
    ("write", "least"),
    [slow(msprobe, 33), (sglang, 35), slow(debugger, 24)],
    ids=["msprobe", "sglang", "debugger"],
)
def test_modules_are_right_or_wrong_on_their_own_inputs(
    pytester: pytest.Pytester, tmp_path: Path, write: Write, least: int
) -> None:
    golden = dumped(tmp_path / "golden", write, torch.float32)
    right = replayed(pytester, golden, dumped(tmp_path / "right", write))
    assert right.ret == 0
    rows = [row for row in read_rows() if "replay_error <=" in row["thresholds"]]
    assert len(rows) >= least, right.stdout.str()
    wrong = replayed(pytester, golden, dumped(tmp_path / "wrong", write, scale=1.05))
    assert wrong.ret == 1
    fails = [row["my_name"] for row in read_rows() if row["verdict"] == "fail"]
    assert len(fails) == 1
    assert fails[0].startswith("root.layers.0.attn")


# A checkpoint of Hugging Face is a golden model: dumps of other tools need no more.


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    home = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(4)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=97, num_key_value_heads=2, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(home)
    return home


@pytest.mark.parametrize("fault", [slow(False), True])
def test_a_checkpoint_computes_modules_again(
    pytester: pytest.Pytester, checkpoint: Path, fault: bool
) -> None:
    golden = load_model(str(checkpoint))
    assert next(golden.parameters()).dtype == torch.float32
    msprobe(pytester.path / "golden", golden)  # type: ignore[arg-type]
    mine: Any = load_model(str(checkpoint)).bfloat16()
    mine.model.layers[2].mlp.down_proj.weight.data *= 1.02 if fault else 1
    msprobe(pytester.path / "mine", mine)
    sides = ("--acc-golden=golden", "--acc-mine=mine")
    plain = pytester.runpytest_inprocess(*QUICKER, *sides)
    plain.stdout.fnmatch_lines(
        ["acc replay: no module of mine is computed again, since golden's dump does not*"]
    )
    result = pytester.runpytest_inprocess(*QUICKER, *sides, f"--acc-model={checkpoint}")
    assert result.ret == int(fault)
    if fault:
        result.stdout.fnmatch_lines(["root cause: *model.layers.2.mlp.down_proj*"])


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("architectures", ["pipeline"], "have no model pipeline; correct config.json"),
        ("quantization_config", {"quant_method": "gptq"}, "is quantised"),
    ],
)
def test_a_checkpoint_names_a_model_and_is_not_quantised(
    tmp_path: Path, checkpoint: Path, key: str, value: object, sentence: str
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(AccError, match=sentence):
        load_model(str(tmp_path))


def test_a_directory_without_a_checkpoint_is_refused(pytester: pytest.Pytester) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(AccError, match="--acc-model: reading the checkpoint"):
        load_model(str(pytester.path))


def test_containers_that_were_not_dumped_round_as_mine_did(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A residual stream that only modules around the dumped ones make has their roundings, not one."""
    sides = tmp_path / "golden", tmp_path / "mine"
    for side, dtype in zip(sides, (torch.float32, torch.bfloat16)):
        debugger(side, load_model(str(checkpoint)).to(dtype))  # type: ignore[arg-type]
    streams: list[tuple[torch.Tensor, torch.Tensor]] = []

    def noted(twice: Any, mine: torch.Tensor) -> Any:
        streams.append((twice.rounded(mine.dtype), mine))
        return hold(twice, mine)

    monkeypatch.setattr(modules, "hold", noted)
    dumps = [open_dump(str(side)) for side in sides]
    made = plan(*dumps)
    number = next(n for n, p in enumerate(made.pairs) if p.golden.node == "root.model.layers.2")
    budget = RecomputeBudget(1 << 20, measured=True)
    recomputer = modules.TorchRecomputer(dumps[1], made.pairs, load_model(str(checkpoint)), budget)
    assert recomputer.of_pair(number).outcome == "right"
    assert all(torch.equal(rounded, mine) for rounded, mine in streams if mine.shape[-1] == 64)


def test_code_around_dumped_modules_is_named_by_the_module_that_it_stands_in(
    pytester: pytest.Pytester, checkpoint: Path
) -> None:
    """Hugging Face's debugger keeps no results of modules that call others."""
    debugger(pytester.path / "golden", load_model(str(checkpoint)))  # type: ignore[arg-type]
    mine: Any = load_model(str(checkpoint))
    mine.model.layers[1].register_forward_hook(
        lambda _module, _inputs, output: (
            output * 1.05 if isinstance(output, torch.Tensor) else (output[0] * 1.05, *output[1:])
        )
    )
    debugger(pytester.path / "mine", mine.bfloat16())
    result = pytester.runpytest_inprocess(
        *QUICKER, "--acc-golden=golden", "--acc-mine=mine", f"--acc-model={checkpoint}"
    )
    assert result.ret == 1
    result.stdout.fnmatch_lines(["root cause: root.model.layers.1 step 0 *; root.model.layers.1, before it*"])


def test_what_code_around_dumped_modules_computed_again_is_evidence(tmp_path: Path, checkpoint: Path) -> None:
    """The result of a layer follows from what its modules gave, although no dump has it."""
    sides = tmp_path / "golden", tmp_path / "mine"
    for side, dtype in zip(sides, (torch.float32, torch.bfloat16)):
        debugger(side, load_model(str(checkpoint)).to(dtype))  # type: ignore[arg-type]
    dumps = [open_dump(str(side)) for side in sides]
    made = plan(*dumps)
    number = next(n for n, p in enumerate(made.pairs) if p.golden.node == "root.model.layers.2")
    model = load_model(str(checkpoint))
    recomputer = modules.TorchRecomputer(dumps[1], made.pairs, model, RecomputeBudget(1 << 20, True))
    assert "root.model.layers.1" in made.between[number]
    outcomes = {path: recomputer.of_operator(number, path).outcome for path in made.between[number]}
    assert set(outcomes.values()) == {"right"}
    norm = next(n for n, p in enumerate(made.pairs) if p.golden.node == "root.model.norm")
    assert recomputer.of_operator(norm, "root.model.layers.2.mlp.down_proj").outcome == "right"
    gate = next(n for n, p in enumerate(made.pairs) if p.golden.node == "root.model.layers.2.mlp.gate_proj")
    assert recomputer.of_operator(gate, "root.model.layers.1").outcome == ""  # it ran with other code
