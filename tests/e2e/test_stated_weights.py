"""`weights.json` of mine that is absent, another capture's or edited: the run says so, and is not milder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from acc_pytest import DumpConfig, register_hook
from acc_pytest.cli import main
from acc_pytest.reporting.rows_file import read_rows
from tests.capture.models import Stack

from .conftest import QUICKER

Homes = tuple[Path, Path]


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Homes:
    """The process folders of two captures; a weight that reaches no tensor differs in mine."""
    monkeypatch.chdir(tmp_path)
    found = []
    for name in ("golden", "mine"):
        torch.manual_seed(0)
        model = Stack()
        model.register_buffer("unused", torch.tensor([1.0 if name == "golden" else 2.0]))
        with register_hook(model, DumpConfig(tmp_path / name, range(1))) as handle:
            model(torch.ones(1, 4))
        found.append(handle.dump_path)
    return found[0], found[1]


def compare(pytester: pytest.Pytester, homes: Homes) -> pytest.RunResult:
    golden, mine = homes
    words = (f"--acc-golden={golden}", f"--acc-mine={mine}", "--acc-rows=r.jsonl")
    return pytester.runpytest_inprocess(*QUICKER, *words)


def weight_verdicts() -> set[str]:
    return {row.verdict for row in read_rows("r.jsonl").rows if row.policy == "weights"}


def said(result: pytest.RunResult) -> list[str]:
    """What the summary says of weights, after the verdicts."""
    lines = result.outlines
    after = next(place for place, line in enumerate(lines) if line.startswith("verdicts: "))
    return [line for line in lines[after:] if line.startswith("weights: ")]


def test_digests_that_the_manifest_states_are_compared_and_nothing_is_said(
    pytester: pytest.Pytester, homes: Homes
) -> None:
    result = compare(pytester, homes)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert weight_verdicts() == {"pass", "fail"}
    assert said(result) == []


def test_weights_that_mine_does_not_state_are_counted_in_the_summary(
    pytester: pytest.Pytester, homes: Homes, capsys: pytest.CaptureFixture[str]
) -> None:
    count = len(json.loads((homes[0] / "weights.json").read_text())["weights"])
    (homes[1] / "weights.json").unlink()
    result = compare(pytester, homes)
    line = f"weights: {count} of golden and 0 of mine are not compared; mine states none (weights.json)"
    assert said(result) == [line]
    assert weight_verdicts() == set()
    capsys.readouterr()
    main(["report", "merge", "r.jsonl"])
    assert line in capsys.readouterr().out


def test_golden_s_weights_in_the_place_of_mine_s_are_red(pytester: pytest.Pytester, homes: Homes) -> None:
    shutil.copy(homes[0] / "weights.json", homes[1] / "weights.json")
    result = compare(pytester, homes)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert weight_verdicts() == {"incomparable"}
    reasons = {row.sentence for row in read_rows("r.jsonl").rows if row.policy == "weights"}
    (reason,) = reasons
    assert reason.startswith("weights.json was edited or is of another capture (manifest.json states")
    assert reason.endswith(str(homes[1] / "weights.json"))


def test_digests_that_no_manifest_vouches_for_are_compared_and_told(
    pytester: pytest.Pytester, homes: Homes
) -> None:
    """As those of older dumps; so golden's file, copied, is green, but not without a word."""
    shutil.copy(homes[0] / "weights.json", homes[1] / "weights.json")
    path = homes[1] / "manifest.json"
    content = json.loads(path.read_text())
    del content["weights_crc32"]
    path.write_text(json.dumps(content))
    result = compare(pytester, homes)
    assert result.ret == pytest.ExitCode.OK
    assert weight_verdicts() == {"pass"}
    assert said(result) == ["weights: no manifest vouches for weights.json of mine"]
