"""`acc_opcheck_optimization` and `acc opcheck -opt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acc_pytest.commands.arguments import Parser
from acc_pytest.commands.opcheck import add_opcheck, values_of
from tests.opcheck.stand_in import install
from tests.opcheck.test_optimization import attention_csv, wrong_where

from .conftest import QUICKER, read_rows


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return attention_csv(tmp_path_factory.mktemp("attention"))


def run(pytester: pytest.Pytester, csv: Path, *words: str) -> pytest.RunResult:
    device = ("-oacc_opcheck_backend=operation_torch", "--acc-csv=r.csv")
    return pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={csv}", *device, *words)


def test_the_report_says_which_optimisation_was_closed_and_which_is_the_suspect(
    pytester: pytest.Pytester, csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, wrong_where("maskType", 1))
    result = run(pytester, csv, "-oacc_opcheck_optimization=true")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*with maskType=0 the device's result passes: suspect the optimisation*"])
    rows = read_rows("r.csv")
    assert [(row["op_id"], row["optimization_closed"], row["precision_result"]) for row in rows] == [
        ("3_1", "", "FAILED"),
        ("3_1_1", "maskType", "PASS"),
        ("3_1_2", "clampType", "FAILED"),
    ]


def test_the_ini_file_may_ask_for_it_and_without_nothing_is_run_again(
    pytester: pytest.Pytester, csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, wrong_where("headNum", 0))
    run(pytester, csv).assert_outcomes(passed=1)
    (row,) = read_rows("r.csv")
    assert "optimization_closed" not in row
    pytester.makeini("[pytest]\nacc_opcheck_optimization = true\n")
    run(pytester, csv).assert_outcomes(passed=1)
    assert len(read_rows("r.csv")) == 3


def test_without_a_device_it_is_a_mistake(pytester: pytest.Pytester, csv: Path) -> None:
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={csv}", "-oacc_opcheck_optimization=true")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*acc_opcheck_optimization runs operators again*add -o acc_opcheck_backend*"]
    )


def test_the_old_flag_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = Parser()
    add_opcheck(parser.add_subparsers())
    given: Any = parser.parse_args(["opcheck", "-i", "dump", "-rerun", "-opt"])
    assert values_of(given)["opcheck_optimization"] is True
