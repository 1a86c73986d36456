"""What a dump states and does not hold fails a run in every view; its first line says what is not shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from acc_pytest import DumpConfig, register_hook
from acc_pytest.cli import main
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.rows_file import read_rows as read_file
from tests.capture.models import Stack

from .conftest import QUICKER, Run, ids, read_rows

ABSENT = "msit_dump::step1::unmapped::mine.ElewiseOperation_7_3"


@pytest.fixture
def lacking(copied: DemoPaths) -> DemoPaths:
    """The clean pair, of which mine lacks the output of an operator in the decode step."""
    [file] = copied.mine.glob("*/tensors/*/1/7_*_layer/3_ElewiseOperation/after/outtensor0.bin")
    file.unlink()
    return copied


def incomplete() -> list[str]:
    return [row["test_id"] for row in read_rows() if row["verdict"] == "incomplete"]


def first_line(result: pytest.RunResult) -> str:
    lines = result.stdout.lines
    [start] = [number for number, line in enumerate(lines) if "= acc-pytest =" in line]
    return lines[start + 1]


@pytest.mark.usefixtures("python_with_torch")
def test_an_absent_tensor_fails_a_test_of_its_own_in_every_view(
    acc: Run, lacking: DemoPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = ("--junitxml=j.xml", "--acc-html=p.html", "--acc-summary=s.md", "--acc-rows=r.jsonl")
    for asked in ((), ("-oacc_unmapped=ignore",), ("-n2",)):
        result = acc(lacking, *asked, *reports)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        assert result.parseoutcomes()["failed"] == 1
        assert incomplete() == [ABSENT]
        assert first_line(result).startswith("incomplete: a dump lacks what it states")
        result.stdout.fnmatch_lines([
            "*incomplete mine: the dump names outtensor0.bin, which is not there",
            "dump it again, or leave it out of the run with -m 'not acc_unmapped' or --deselect",
        ])  # fmt: skip
        cases = ElementTree.parse("j.xml").getroot().iter("testcase")
        assert [case.get("name") for case in cases if case.find("failure") is not None] == [
            ABSENT.rpartition("::")[2]
        ]
        assert "incomplete: a dump lacks what it states" in Path("s.md").read_text()
        assert "| incomplete | 1 |" in Path("s.md").read_text()
        assert "incomplete: a dump lacks what it states" in Path("p.html").read_text()
    assert main(["report", "merge", "r.jsonl"]) == 1
    assert "1 incomplete" in capsys.readouterr().out


def test_stored_rows_fail_for_it_again(acc: Run, lacking: DemoPaths, pytester: pytest.Pytester) -> None:
    acc(lacking, "--acc-rows=r.jsonl")
    again = pytester.inline_run("--acc-from-rows=r.jsonl", "-q", "-p", "no:cacheprovider")
    assert again.ret == pytest.ExitCode.TESTS_FAILED
    assert [report.nodeid for report in again.getfailures()] == [ABSENT]


def test_who_asks_for_less_gets_less(acc: Run, lacking: DemoPaths) -> None:
    for asked in (("-m", "not acc_unmapped"), (f"--deselect={ABSENT}",), ("-k", "RmsNorm")):
        assert acc(lacking, *asked).ret == pytest.ExitCode.OK
    assert ids(acc(lacking, "--co", "-q", "-m", "acc_unmapped(why='incomplete')")) == [ABSENT]


def test_a_run_without_the_last_output_says_so_first(acc: Run, copied: DemoPaths) -> None:
    for logits in copied.mine.glob("*/tensors/*/*/*_LmHead*"):
        shutil.rmtree(logits)
    result = acc(copied)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "; the last output of golden's model was not compared" in first_line(result)
    assert acc(copied, "--acc-level=layer").ret == pytest.ExitCode.OK


def test_the_same_directory_twice_is_said_first(acc: Run, clean: DemoPaths) -> None:
    result = acc(DemoPaths(clean.golden, clean.golden))
    assert first_line(result) == "golden and mine are the same directory"


def test_a_golden_that_is_not_finite_fails_the_run(
    acc: Run, copied: DemoPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where mine has the same, and in rows that are merged."""
    name = "root.model.layers.0.post_attention_layernorm"
    for file in copied.golden.rglob(f"0/{name}/output.pth"):
        torch.save(torch.full_like(torch.load(file), torch.nan), file)
    result = acc(DemoPaths(copied.golden, copied.golden), "--acc-rows=r.jsonl")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes().keys() == {"passed"}
    said = f"golden is not finite from {name} (step 0) on, so the run fails; dump one without NaN and Inf"
    assert first_line(result) == f"{said}; golden and mine are the same directory"
    assert main(["report", "merge", "r.jsonl"]) == 1
    assert said in capsys.readouterr().out


def test_the_default_floor_is_a_half(acc: Run, clean: DemoPaths) -> None:
    result = acc(clean)
    result.stdout.fnmatch_lines(["coverage: *floor 50% reached"])


# `weights.json` of mine that is absent, another capture's or edited: the run says so, and is not milder.


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
    return {row.verdict for row in read_file("r.jsonl").rows if row.policy == "weights"}


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
    reasons = {row.sentence for row in read_file("r.jsonl").rows if row.policy == "weights"}
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
