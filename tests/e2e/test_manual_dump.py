"""From dump_data in a loop of tokens to one test per pair."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from acc_pytest import cli, dump_data
from acc_pytest.capture import manual
from acc_pytest.tensors import atb_bin

from .conftest import QUICKER, ids, read_rows

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def dumped(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
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
        for name, tensor in golden.items():
            dump_data(step, name, tensor, files[name], here / "out")
    (process,) = (here / "out" / "msit_dump_20260102_030405").iterdir()
    return process


def test_golden_alone_compares_every_pair_and_names_step_and_data_id(
    pytester: pytest.Pytester, dumped: Path
) -> None:
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={dumped}", "--acc-csv=acc.csv", "-v")
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
    pytester: pytest.Pytester, dumped: Path
) -> None:
    node = "manual::step1::model::data_attention"
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={dumped}", node)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"re-run: pytest --acc-golden=* {node}"])


@pytest.mark.parametrize("place", ["../..", "..", "golden_tensor", "golden_tensor/metadata.json"])
def test_any_place_of_the_dump_will_do(pytester: pytest.Pytester, dumped: Path, place: str) -> None:
    result = pytester.runpytest_inprocess(
        *QUICKER, f"--acc-golden={dumped / place}", "--co", "-q", "-k", "step0"
    )
    assert [name.rpartition("::")[2] for name in ids(result)] == [
        "data_attention",
        "data_hidden",
        "data_logits",
    ]


def test_mine_may_be_named_and_names_the_tests_then(pytester: pytest.Pytester, dumped: Path) -> None:
    result = pytester.runpytest_inprocess(
        *QUICKER, f"--acc-golden={dumped}", f"--acc-mine={dumped}", "--co", "-q"
    )
    assert len(ids(result)) == 6


def test_the_old_command_line_needs_no_mine(dumped: Path, capsys: Capture) -> None:
    assert cli.main(["compare", "-gp", str(dumped), "-o", "reports", "--", *QUICKER, "-k", "step0"]) == 0
    (report,) = Path("reports").glob("*.csv")
    assert {row["verdict"] for row in read_rows(report)} == {"pass"}
    assert cli.main(["map", "-gp", str(dumped)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("manual: declared in metadata.json") >= 6


def test_a_golden_that_is_no_manual_dump_needs_mine(dumped: Path, capsys: Capture) -> None:
    assert cli.main(["map", "-gp", str(dumped / "golden_tensor" / "0" / "logits_tensor.pth")]) == 4
    assert "--acc-golden needs --acc-mine too: only a dump written by dump_data" in capsys.readouterr().err


def test_a_file_of_mine_that_is_gone_costs_its_own_test(pytester: pytest.Pytester, dumped: Path) -> None:
    (pytester.path / "hidden0.npy").unlink()
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={dumped}", "--acc-csv=acc.csv")
    result.stdout.fnmatch_lines(["*hidden0.npy: no such file*"])
    rows = {(row["token_id"], Path(row["my_data_path"]).name): row["verdict"] for row in read_rows("acc.csv")}
    assert sorted(rows.values()) == ["fail", "incomparable", "pass", "pass", "pass", "pass"]


def test_a_dump_that_was_moved_still_has_its_golden(pytester: pytest.Pytester, dumped: Path) -> None:
    moved = dumped.rename(pytester.path / "moved")
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={moved}", "-v")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["acc note: 6 golden files taken from beside metadata.json*"])


def test_metadata_of_the_old_tool_with_a_key_twice(pytester: pytest.Pytester, dumped: Path) -> None:
    """Given an int, it wrote the key of a data id again for the next token, and loaders kept the last."""
    path = dumped / "golden_tensor" / "metadata.json"
    known = json.loads(path.read_text())["hidden"]
    entries = [f'"a b": {{"{token}": {json.dumps(files)}}}' for token, files in known.items()]
    path.write_text("{" + ", ".join(entries) + "}")
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={dumped}", "--co", "-q")
    assert ids(result) == ["manual::step0::model::data_a_b", "manual::step1::model::data_a_b"]


def test_metadata_that_declares_nothing_is_a_usage_error(pytester: pytest.Pytester, dumped: Path) -> None:
    (dumped / "golden_tensor" / "metadata.json").write_text("{}")
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-golden={dumped}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *the manual mapping has no pair*"])
