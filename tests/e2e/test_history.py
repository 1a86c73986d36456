"""`--acc-history` and `acc history` over real runs: by pytest, of two workers, without pytest, of shards."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from acc_pytest.cli import main
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.reporting.history import History
from tests.reporting.html.made import read_page

from .conftest import TWO_WORKERS, Run


def test_every_way_to_run_adds_the_same_run(
    acc: Run, faulty: DemoPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q"], check=True)  # without a commit, which is no error
    acc(faulty, "--acc-history=runs", "--acc-rows=whole.jsonl")
    acc(faulty, "--acc-history=runs", *TWO_WORKERS, subprocess=True)
    main(["compare", str(faulty.golden), str(faulty.mine), "--history=runs"])
    main(["report", "merge", "whole.jsonl", "--history=runs", "--html=page.html"])
    history = History("runs")
    assert history.warnings == []
    assert len(history.runs) == 4
    (facts,) = {
        (run.verdict, run.roots, run.failures, run.pairs, run.partial, run.worst, run.worst_error, run.mine)
        for run in history.runs
    }
    assert facts[0] == "fail"
    assert facts[3] > 20
    assert not facts[4]
    first, *others = history.errors(lambda name: True)
    assert all(run == first for run in others)
    assert all(name.startswith("step0::") for name in first)
    capsys.readouterr()
    assert main(["history", "runs"]) == 0
    assert "3 runs ago; no run before is without it" in " ".join(capsys.readouterr().out.split())
    head, body = read_page(Path("page.html").read_text(encoding="utf-8"))
    assert len(head["history"]["errors"]) == 4
    assert body["history"]


def test_a_run_of_some_tests_is_partial(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, "--acc-history=runs", "-k", "RmsNorm")
    assert History("runs").runs[0].partial
    result.stdout.fnmatch_lines(["report: runs/20*.jsonl"])


def test_the_command_for_one_test_adds_no_run(acc: Run, faulty: DemoPaths) -> None:
    result = acc(faulty, "--acc-history=runs", "-k", "ElewiseOperation")
    result.stdout.fnmatch_lines(["*re-run: *--acc-golden*"])
    result.stdout.no_fnmatch_line("*re-run: *--acc-history*")
