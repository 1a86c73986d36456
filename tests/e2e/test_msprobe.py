"""Dumps of msprobe through the plugin: green where nothing is wrong, red at the module that is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # layers import it when they are made, and pytester forgets what it imported

import acc_pytest
from acc_pytest import cli, dump_data
from acc_pytest.capture import manual
from acc_pytest.tensors import atb_bin
from tests.dumps.msprobe_writer import RankWriter, record
from tests.dumps.test_msprobe import Model
from tests.dumps.tool_dumps import SglangWriter, debugged, tensor, two_layers, write_pass
from tests.slow import slow

from .conftest import QUICKER, ids, read_rows

FRAME = "File /opt/m.py, line 7, in forward, \n y = f(x)"


def dumped(home: Path, dtype: torch.dtype = torch.float32, fault: str = "", **how: Any) -> Path:
    """The same model, perhaps in another dtype, with the weight of one module times 1.1."""
    torch.manual_seed(5)
    model, x = Model(width=32), torch.randn(24, 32)
    if fault:
        with torch.no_grad():
            model.get_parameter(f"{fault}.weight").mul_(1.1)
    writer = record(RankWriter(home / "step0" / "proc1", **how), model.to(dtype), [[x.to(dtype)]])
    writer.stacks["Module.layers.1.linear.Linear.forward.0"] = [
        "File /opt/m.py, line 7, in forward, \n y = f(x)"
    ]
    writer.write()
    return home


def generated(home: Path, dtype: torch.dtype = torch.float32, wrong: float = 1.0, steps: int = 1) -> Path:
    """Three calls of a model, in one step of msprobe or each in its own; `wrong` scales a result."""
    torch.manual_seed(5)
    model = Model(width=32).to(dtype)
    given = [[torch.randn(rows, 32).to(dtype)] for rows in (24, 1, 1)]
    for step in range(steps):
        writer = RankWriter(home / f"step{step}" / "proc1")
        record(writer, model, given if steps == 1 else given[step : step + 1]).write()
    if wrong != 1:
        name = "Module.layers.1.linear.Linear.forward.1.output.0.pt"
        file = home / "step0" / "proc1" / "dump_tensor_data" / name
        torch.save(torch.load(file) * wrong, file)
    return home


def run(pytester: pytest.Pytester, golden: Path, mine: Path, *words: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(
        *QUICKER, "-p", "no:cacheprovider", f"--acc-golden={golden}", f"--acc-mine={mine}", *words
    )


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_another_dtype_is_green_whatever_was_kept(
    pytester: pytest.Pytester, tmp_path: Path, task: str
) -> None:
    golden = dumped(tmp_path / "golden", task="tensor")
    mine = dumped(tmp_path / "mine", torch.bfloat16, task=task)
    result = run(pytester, golden, mine)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["verdicts: * pass"])


def model_file(home: Path) -> str:
    """A function that makes the model of `dumped`, for `--acc-model`."""
    lines = ("import torch", "from tests.dumps.test_msprobe import Model", "def make():")
    file = home / "model.py"
    file.write_text("\n".join([*lines, "    torch.manual_seed(5)", "    return Model(width=32)"]))
    return f"{file}:make"


class Int8Linear(torch.nn.Linear):
    """Codes of 8 bits, with one scale a row."""

    weight_scale: torch.nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, (self.weight * self.weight_scale).to(x.dtype), self.bias)


def in_int8(home: Path, fault: str = "") -> Path:
    """The model of `dumped` with its linear layers in int8, the scales of one 5 % too large."""
    torch.manual_seed(5)
    model, x = Model(width=32), torch.randn(24, 32)
    for name, linear in model.named_modules():
        if isinstance(linear, torch.nn.Linear):
            scale = linear.weight.detach().abs().amax(-1, keepdim=True) / 127
            codes = (linear.weight.detach() / scale).round().to(torch.int8)
            linear.__class__ = Int8Linear
            linear.weight = torch.nn.Parameter(codes, requires_grad=False)
            wrong = 1.05 if name == fault else 1.0
            linear.register_parameter("weight_scale", torch.nn.Parameter(wrong * scale))
    record(RankWriter(home / "step0" / "proc1"), model, [[x]]).write()
    return home


def test_codes_are_weights_by_their_scales_and_their_rounding_is_known(tmp_path: Path) -> None:
    golden, checkpoint = dumped(tmp_path / "golden"), model_file(tmp_path)

    def compared(mine: Path) -> acc_pytest.Comparison:
        return acc_pytest.compare(str(golden), str(mine), model=checkpoint, mine_dtype="int8")

    right = compared(in_int8(tmp_path / "mine"))
    assert right.verdict == "pass"
    codes = [row for row in right.rows if "int8 times its scale" in row.notes]
    assert {row.mine.name.rpartition(".")[2] for row in codes} == {"weight"}
    assert "are not compared" not in right.summary
    wrong = compared(in_int8(tmp_path / "wrong", "layers.1.linear"))
    assert [root.name for root in wrong.roots] == ["root.layers.1.linear.weight"]


def stored_in_float32(home: Path, fault: str = "") -> Path:
    """The model of `dumped` computed in bfloat16, all of whose tensors a tool stored as float32."""
    files = dumped(home, torch.bfloat16, fault) / "step0" / "proc1"
    for file in (files / "dump_tensor_data").iterdir():
        torch.save(torch.load(file, weights_only=True).float(), file)
    manifest = files / "dump.json"
    manifest.write_text(manifest.read_text().replace("torch.bfloat16", "torch.float32"))
    return home


def test_what_is_stored_wider_than_it_was_computed_is_computed_again_as_stated(tmp_path: Path) -> None:
    golden, checkpoint = dumped(tmp_path / "golden"), model_file(tmp_path)

    def compared(mine: Path, dtype: str = "bf16") -> acc_pytest.Comparison:
        return acc_pytest.compare(str(golden), str(mine), model=checkpoint, mine_dtype=dtype)

    right = stored_in_float32(tmp_path / "mine")
    assert compared(right).verdict == "pass"
    functions = acc_pytest.compare(str(golden), str(right), mine_dtype="bf16", replay="1000000")
    assert functions.verdict == "pass"  # its functions, without a model
    assert "were computed again" in functions.summary
    assert "state it with --acc-mine-dtype bf16" in compared(right, "").summary
    wrong = compared(stored_in_float32(tmp_path / "wrong", "layers.1.linear"))
    assert [root.name for root in wrong.roots] == ["root.layers.1.linear.weight"]


@pytest.mark.parametrize("how", [{}, {"task": "statistics"}, {"task": "statistics", "digests": True}])
def test_a_wrong_module_is_the_only_root(
    pytester: pytest.Pytester, tmp_path: Path, how: dict[str, Any]
) -> None:
    golden = dumped(tmp_path / "golden", **how)
    mine = dumped(tmp_path / "mine", fault="layers.1.linear", **how)
    result = run(pytester, golden, mine)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["root cause: weight of layers.1.linear differs*", "*verdicts: * 1 fail, *"])


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_checkpoints_beside_dumps_name_the_wrong_weight(
    pytester: pytest.Pytester, tmp_path: Path, task: str
) -> None:
    golden = dumped(tmp_path / "golden", task=task)
    mine = dumped(tmp_path / "mine", fault="layers.1.linear", task=task)
    torch.manual_seed(5)
    state = Model(width=32).state_dict()
    torch.save(state, "golden.pth")
    torch.save(state | {"layers.1.linear.weight": 1.1 * state["layers.1.linear.weight"]}, "mine.pth")
    words = ("--acc-weights=golden=golden.pth", "--acc-weights=mine=mine.pth", "-oacc_cache_dir=cache")
    result = run(pytester, golden, mine, *words)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["root cause: weight of layers.1.linear differs*", "*verdicts: * 1 fail, *"])


def test_digests_alone_say_what_differs(pytester: pytest.Pytester, tmp_path: Path) -> None:
    how: dict[str, Any] = {"task": "statistics", "exclusive": True}
    golden, same = dumped(tmp_path / "golden", **how), dumped(tmp_path / "same", **how)
    assert run(pytester, golden, same).ret == 0
    result = run(pytester, golden, dumped(tmp_path / "mine", fault="layers.1.linear", **how))
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*the digests differ: golden and mine are not the same bytes*"])
    result = run(pytester, golden, dumped(tmp_path / "other", torch.bfloat16, **how))
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["nothing was compared: every pair is incomparable*"])


def test_a_failure_names_the_line_of_the_program(pytester: pytest.Pytester, tmp_path: Path) -> None:
    golden = dumped(tmp_path / "golden")
    mine = dumped(tmp_path / "mine")
    file = (
        mine / "step0" / "proc1" / "dump_tensor_data" / "Module.layers.1.linear.Linear.forward.0.output.0.pt"
    )
    torch.save(torch.load(file) * 1.5, file)
    result = run(pytester, golden, mine)
    result.stdout.fnmatch_lines(
        ["code    golden m.py:7 in forward: y = f(x), mine m.py:7 in forward: y = f(x)*"]
    )


def test_calls_of_a_model_that_generates_are_steps(pytester: pytest.Pytester, tmp_path: Path) -> None:
    golden = generated(tmp_path / "golden", steps=3)
    right = run(pytester, golden, generated(tmp_path / "right", torch.bfloat16))
    assert right.ret == 0
    right.stdout.fnmatch_lines(["*step 0 has 3 calls of the model: steps 0 to 2*"])
    wrong = run(pytester, golden, generated(tmp_path / "wrong", wrong=1.1))
    assert wrong.ret == 1
    wrong.stdout.fnmatch_lines(["*root cause: root.layers.1.linear (Linear) step 1 *"])


# Dumps of SGLang and of Hugging Face's debugger under pytest: right ones are green, roots are named.


Write = Callable[[Path, float], object]


def _sglang(folder: Path, scale: float) -> None:
    two_layers(SglangWriter(folder / "dump_20260801_101112_123456"), scale=scale)


def _without_names(folder: Path, scale: float) -> None:
    two_layers(SglangWriter(folder), scale=scale, explicit=False)


def _passes(folder: Path, scale: float) -> None:
    hidden, home = tensor(1), folder / "TP0_PP0_Rank0_pid7"
    made = hidden.cos() * scale
    inside = {"model.embed": hidden, "model.layers.0.mlp": made, "model.norm": made + hidden}
    write_pass(home, 0, inside)
    write_pass(home, 1, {"model": made + hidden, "lm_head": (made + hidden).sin()} | inside)


def _files(folder: Path, scale: float) -> None:
    debugged(folder, layers=3, scale=scale)


def _prints(folder: Path, scale: float) -> None:
    debugged(folder, layers=3, scale=scale, prints=True)


WRITERS: dict[str, tuple[Write, str]] = {
    "sglang": (_sglang, "root.model.layers.1.mlp step 0*"),
    "sglang without names": (_without_names, "root.model.layers.1.mlp *step 0*"),
    "sglang passes": (_passes, "root.model.layers.0.mlp *step 0*"),
    "debugger": (_files, "root.model.layers.1.mlp *step 0*"),
    "debugger with prints": (_prints, "root.model.layers.1.mlp *step 0*"),
}


@pytest.mark.parametrize("name", [slow(name) if n % 2 else name for n, name in enumerate(WRITERS)])
def test_equal_dumps_are_green_and_a_fault_is_named(pytester: pytest.Pytester, name: str) -> None:
    write, root = WRITERS[name]
    here = pytester.path
    for side, scale in (("golden", 1.0), ("right", 1.0), ("wrong", 1.05)):
        write(here / side, scale)
    right = pytester.runpytest_inprocess(*QUICKER, "--acc-golden=golden", "--acc-mine=right")
    assert right.ret == 0
    wrong = pytester.runpytest_inprocess(*QUICKER, "--acc-golden=golden", "--acc-mine=wrong")
    assert wrong.ret == 1
    wrong.stdout.fnmatch_lines([f"*root cause: {root}"])


def test_dumps_of_two_tools_meet(pytester: pytest.Pytester) -> None:
    """Passes have outputs alone, so those are compared."""
    here = pytester.path
    hidden = tensor(1)
    made = hidden.cos()
    writer = SglangWriter(here / "golden")
    writer.module("model.embed", {"0": tensor(9)}, [hidden])
    writer.module("model.layers.0.mlp", {"0": hidden}, [made], layer_id=0)
    writer.module("model.norm", {"0": made}, [made + hidden])
    _passes(here / "mine", 1.05)
    result = pytester.runpytest_inprocess(*QUICKER, "--acc-golden=golden", "--acc-mine=mine")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*root cause: root.model.layers.0.mlp *"])


# From dump_data in a loop of tokens to one test per pair.


Capture = pytest.CaptureFixture[str]


@pytest.fixture
def dumped_by_hand(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two steps; an attention output from an ATB dump, a hidden state from `.npy`, logits from `.pth`.

    Mine is golden in float16, but for the attention output of step 1, whose sign is wrong.
    """
    manual._run_time.cache_clear()
    monkeypatch.setenv("ATB_TIMESTAMP", "20260102_030405")
    pytester.makeini("[pytest]")
    here = pytester.path
    generator = torch.Generator().manual_seed(3)
    for step in range(2):
        bins = (
            here / "mine" / "tensors" / "0_7" / str(step) / "2_Layer" / "3_SelfAttentionOperation" / "after"
        )
        bins.mkdir(parents=True)
        golden = {name: torch.randn(4, 16, generator=generator) for name in ("attention", "hidden", "logits")}
        files = {
            "attention": bins / "outtensor0.bin",
            "hidden": here / f"hidden{step}.npy",
            "logits": here / f"logits{step}.pth",
        }
        atb_bin.write(files["attention"], golden["attention"].half() * (-1 if step else 1))
        np.save(files["hidden"], golden["hidden"].half().numpy())
        torch.save(golden["logits"].half(), files["logits"])
        for name, value in golden.items():
            dump_data(step, name, value, files[name], here / "out")
    (process,) = (here / "out" / "msit_dump_20260102_030405").iterdir()
    return process


def test_golden_alone_compares_every_pair_and_names_step_and_data_id(
    pytester: pytest.Pytester, dumped_by_hand: Path
) -> None:
    result = pytester.runpytest_inprocess(
        *QUICKER, f"--acc-golden={dumped_by_hand}", "--acc-csv=acc.csv", "-v"
    )
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(
        [
            "manual::step0::model::data_attention PASSED*",
            "manual::step0::model::data_hidden PASSED*",
            "manual::step0::model::data_logits PASSED*",
            "manual::step1::model::data_attention FAILED*",
            "root cause: 3_SelfAttentionOperation (SelfAttentionOperation) step 1 *",
        ]
    )
    rows = {(row["token_id"], Path(row["my_data_path"]).name): row for row in read_rows("acc.csv")}
    assert len(rows) == 6
    assert {key for key, row in rows.items() if row["verdict"] != "pass"} == {("1", "outtensor0.bin")}
    assert float(rows["1", "outtensor0.bin"]["cosine_similarity"]) < -0.999
    assert float(rows["0", "hidden0.npy"]["cosine_similarity"]) > 0.999


def test_the_command_that_the_failure_prints_runs_that_pair_again(
    pytester: pytest.Pytester, dumped_by_hand: Path
) -> None:
    node = "manual::step1::model::data_attention"
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={dumped_by_hand}", node)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"re-run: pytest --acc-golden=* {node}"])


@pytest.mark.parametrize("place", ["../..", "..", "golden_tensor", "golden_tensor/metadata.json"])
def test_any_place_of_the_dump_will_do(pytester: pytest.Pytester, dumped_by_hand: Path, place: str) -> None:
    result = pytester.runpytest_inprocess(
        *QUICKER, f"--acc-golden={dumped_by_hand / place}", "--co", "-q", "-k", "step0"
    )
    assert [name.rpartition("::")[2] for name in ids(result)] == [
        "data_attention",
        "data_hidden",
        "data_logits",
    ]


def test_mine_may_be_named_and_names_the_tests_then(pytester: pytest.Pytester, dumped_by_hand: Path) -> None:
    result = pytester.runpytest_inprocess(
        *QUICKER, f"--acc-golden={dumped_by_hand}", f"--acc-mine={dumped_by_hand}", "--co", "-q"
    )
    assert len(ids(result)) == 6


def test_the_old_command_line_needs_no_mine(dumped_by_hand: Path, capsys: Capture) -> None:
    assert (
        cli.main(["compare", "-gp", str(dumped_by_hand), "-o", "reports", "--", *QUICKER, "-k", "step0"]) == 0
    )
    (report,) = Path("reports").glob("*.csv")
    assert {row["verdict"] for row in read_rows(report)} == {"pass"}
    assert cli.main(["map", "-gp", str(dumped_by_hand)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("manual: declared in metadata.json") >= 6


def test_a_golden_that_is_no_manual_dump_needs_mine(dumped_by_hand: Path, capsys: Capture) -> None:
    assert cli.main(["map", "-gp", str(dumped_by_hand / "golden_tensor" / "0" / "logits_tensor.pth")]) == 4
    assert "--acc-golden needs --acc-mine too: only a dump written by dump_data" in capsys.readouterr().err


def test_a_file_of_mine_that_is_gone_costs_its_own_test(
    pytester: pytest.Pytester, dumped_by_hand: Path
) -> None:
    (pytester.path / "hidden0.npy").unlink()
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={dumped_by_hand}", "--acc-csv=acc.csv")
    result.stdout.fnmatch_lines(["*hidden0.npy: no such file*"])
    rows = {(row["token_id"], Path(row["my_data_path"]).name): row["verdict"] for row in read_rows("acc.csv")}
    assert sorted(rows.values()) == ["fail", "incomparable", "pass", "pass", "pass", "pass"]


def test_a_dump_that_was_moved_still_has_its_golden(pytester: pytest.Pytester, dumped_by_hand: Path) -> None:
    moved = dumped_by_hand.rename(pytester.path / "moved")
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={moved}", "-v")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["acc note: 6 golden files taken from beside metadata.json*"])


def test_metadata_of_the_old_tool_with_a_key_twice(pytester: pytest.Pytester, dumped_by_hand: Path) -> None:
    """Given an int, it wrote the key of a data id again for the next token, and loaders kept the last."""
    path = dumped_by_hand / "golden_tensor" / "metadata.json"
    known = json.loads(path.read_text())["hidden"]
    entries = [f'"a b": {{"{token}": {json.dumps(files)}}}' for token, files in known.items()]
    path.write_text("{" + ", ".join(entries) + "}")
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={dumped_by_hand}", "--co", "-q")
    assert ids(result) == ["manual::step0::model::data_a_b", "manual::step1::model::data_a_b"]


def test_metadata_that_declares_nothing_is_a_usage_error(
    pytester: pytest.Pytester, dumped_by_hand: Path
) -> None:
    (dumped_by_hand / "golden_tensor" / "metadata.json").write_text("{}")
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={dumped_by_hand}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *the manual mapping has no pair*"])
