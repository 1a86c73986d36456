"""What a dump states and does not hold fails a run in every view; its first line says what is not shown."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from acc_pytest.cli import main
from acc_pytest.lab.demo import DemoPaths

from .conftest import Run, ids, read_rows

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
