"""`acc_precision_mode` reaches the checks, and refuses what is no mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.commands.arguments import Parser
from acc_pytest.commands.opcheck import add_opcheck, values_of
from acc_pytest.opcheck.stand_alone import StandAlone, write_case
from tests.opcheck.made import MadeDump, softmax_dump
from tests.opcheck.stand_in import install
from tests.opcheck.test_backends import attention_csv, wrong_where

from .conftest import QUICKER, read_rows

COMMAND = "import sys; from acc_pytest.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    x = torch.linspace(-3, 3, 12).reshape(3, 4).bfloat16()
    y = x.float().softmax(1).bfloat16()
    return write_case(StandAlone("SoftmaxOperation", {"axes": [1]}, [x], [y], {}), tmp_path)


@pytest.mark.parametrize(("words", "outcome"), [([], "passed"), (["-oacc_precision_mode=fp32"], "failed")])
def test_the_mode_decides_the_type(
    pytester: pytest.Pytester, csv: Path, words: list[str], outcome: str
) -> None:
    pytester.makeini("[pytest]")
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={csv}", "--acc-output=out", *words)
    assert result.parseoutcomes()[outcome] == 1


def test_another_mode_is_refused(pytester: pytest.Pytester, csv: Path) -> None:
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={csv}", "-oacc_precision_mode=fp8")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*acc_precision_mode: unknown value 'fp8'*"])


@pytest.mark.usefixtures("python_with_torch")
@pytest.mark.parametrize(("mode", "code"), [("keep_origin_dtype", 0), ("force_fp32", 1)])
def test_the_old_command_has_its_flag(
    csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["opcheck", "-c", str(csv), "-o", "out", "-pmode", mode, "--", *QUICKER, "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, check=False)
    assert done.returncode == code, done.stdout.decode()


# `acc_opcheck_backend` and `acc_device_id`, on a machine without NPU.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-oacc_opcheck_backend=torch_atb"], "*backend torch_atb: needs an NPU and torch_npu*"),
        (["-oacc_opcheck_backend=operation_torch"], "*backend operation_torch: needs an NPU*"),
        (["-oacc_opcheck_backend=cuda"], "*acc_opcheck_backend: unknown value 'cuda'*"),
        (["-oacc_device_id=first"], "*acc_device_id must be the number of an NPU, >= 0, got first*"),
    ],
)
def test_what_cannot_be_is_said_before_the_first_test(
    pytester: pytest.Pytester, tmp_path: Path, words: list[str], message: str
) -> None:
    x = torch.ones(2)
    csv = write_case(StandAlone("RepeatOperation", {"multiples": [1]}, [x], [x], {}), tmp_path)
    result = pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={csv}", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_outputs_of_the_dump_are_the_default(pytester: pytest.Pytester, tmp_path: Path) -> None:
    x = torch.ones(2)
    csv = write_case(StandAlone("RepeatOperation", {"multiples": [1]}, [x], [x], {}), tmp_path)
    words = ["-oacc_opcheck_backend=dumped", "--acc-output=out", f"--acc-opcheck={csv}"]
    pytester.runpytest_inprocess(*QUICKER, *words).assert_outcomes(passed=1)


# `acc_opcheck_optimization` and `acc opcheck -opt`.


@pytest.fixture(scope="module")
def attention_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return attention_csv(tmp_path_factory.mktemp("attention"))


def run(pytester: pytest.Pytester, csv: Path, *words: str) -> pytest.RunResult:
    device = ("-oacc_opcheck_backend=operation_torch", "--acc-csv=r.csv")
    return pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={csv}", *device, *words)


def test_the_report_says_which_optimisation_was_closed_and_which_is_the_suspect(
    pytester: pytest.Pytester, attention_cases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, wrong_where("maskType", 1))
    result = run(pytester, attention_cases, "-oacc_opcheck_optimization=true")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*with maskType=0 the device's result passes: suspect the optimisation*"])
    rows = read_rows("r.csv")
    assert [(row["op_id"], row["optimization_closed"], row["precision_result"]) for row in rows] == [
        ("3_1", "", "FAILED"),
        ("3_1_1", "maskType", "PASS"),
        ("3_1_2", "clampType", "FAILED"),
    ]


def test_the_ini_file_may_ask_for_it_and_without_nothing_is_run_again(
    pytester: pytest.Pytester, attention_cases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, wrong_where("headNum", 0))
    run(pytester, attention_cases).assert_outcomes(passed=1)
    (row,) = read_rows("r.csv")
    assert "optimization_closed" not in row
    pytester.makeini("[pytest]\nacc_opcheck_optimization = true\n")
    run(pytester, attention_cases).assert_outcomes(passed=1)
    assert len(read_rows("r.csv")) == 3


def test_without_a_device_it_is_a_mistake(pytester: pytest.Pytester, attention_cases: Path) -> None:
    result = pytester.runpytest_inprocess(
        *QUICKER, f"--acc-opcheck={attention_cases}", "-oacc_opcheck_optimization=true"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*acc_opcheck_optimization runs operators again*add -o acc_opcheck_backend*"]
    )


def test_the_old_flag_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = Parser()
    add_opcheck(parser.add_subparsers())
    given: Any = parser.parse_args(["opcheck", "-i", "dump", "-rerun", "-opt"])
    assert values_of(given)["opcheck_optimization"] is True


# Threshold rules of config files, markers and the hook hold for single operators; the stronger wins.


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> MadeDump:
    """Softmax (5_0) with one element 0.25 off, a product (5_1) and a transposition (2)."""
    return softmax_dump(tmp_path_factory.mktemp("wrong"), wrong=True)


def run_with_rules(pytester: pytest.Pytester, dump: MadeDump, *words: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={dump.csv}", "--acc-csv=r.csv", *words)


def config(text: str) -> str:
    Path("mine.toml").write_text(text, encoding="utf-8")
    return "--acc-config=mine.toml"


@pytest.mark.parametrize(
    ("match", "stretched"),
    [
        ('{ op_type = "Softmax*", name = "SoftmaxOperation_5_0", dtype = "float16" }', True),
        ('{ name = "5_*", step = 0, level = "op", layer = "5", policy = "opcheck" }', True),
        ('{ dtype = "bfloat16" }', False),
        ('{ step = 1, op_type = "Softmax*" }', False),
    ],
)
def test_a_table_of_a_config_file_holds_for_the_operators_it_matches(
    pytester: pytest.Pytester, wrong: MadeDump, match: str, stretched: bool
) -> None:
    given = config(f'[[threshold]]\nmatch = {match}\nfactor = 1000\nreason = "known"\n')
    result = run_with_rules(pytester, wrong, given, "-kSoftmax")
    outcome = "passed" if stretched else "failed"
    assert result.parseoutcomes()[outcome] == 1


HOOK = """
def pytest_acc_case_thresholds(case, config):
    if case.name == "SoftmaxOperation" and case.param["axes"] == [-1]:
        return {"max_absolute_error": 1.0, "factor": 1000}
"""
MARKER = """
import pytest
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.acc_threshold(max_absolute_error=1e-9))
"""


def bound(dump: MadeDump) -> str:
    (row,) = [row for row in read_rows("r.csv") if row["op_name"] == "SoftmaxOperation"]
    return next((part for part in row["thresholds"].split("; ") if part.startswith("max_absolute")), "")


def test_hook_over_marker_over_config_file(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    given = config('[[threshold]]\nmax_absolute_error = 0.5\nreason = "half"\n')
    run_with_rules(pytester, wrong, given)
    assert bound(wrong) == "max_absolute_error <= 0.5"
    pytester.makeconftest(MARKER)
    run_with_rules(pytester, wrong, given)
    assert bound(wrong) == "max_absolute_error <= 1e-09"
    pytester.makeconftest(MARKER + HOOK)
    run_with_rules(pytester, wrong, given).assert_outcomes(passed=3)
    assert bound(wrong) == "max_absolute_error <= 1"


def test_a_rule_is_a_marker_of_the_test(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    pytester.makeconftest(
        """
        def pytest_collection_modifyitems(items):
            for item in items:
                for mark in item.iter_markers("acc_threshold"):
                    print(f"{item.name} has {mark.kwargs}")
        """
    )
    table = '[[threshold]]\nmatch = { op_type = "Linear*" }\nkl_divergence = 0.25\n'
    result = run_with_rules(pytester, wrong, config(table), "--co", "-s")
    result.stdout.fnmatch_lines(["LinearOperation_5_1 has {'kl_divergence': 0.25}"])
    result.stdout.no_fnmatch_line("Softmax* has *")


def test_a_wrong_answer_of_a_hook_fails_its_test_with_a_sentence(
    pytester: pytest.Pytester, wrong: MadeDump
) -> None:
    pytester.makeconftest(
        "def pytest_acc_case_thresholds(case):\n    return {'cosine': 1} if case.ids == '2' else None\n"
    )
    result = run_with_rules(pytester, wrong)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*hook pytest_acc_case_thresholds: unknown key 'cosine'*"])


def test_the_hook_of_pairs_is_not_asked_for_operators(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    pytester.makeconftest("def pytest_acc_thresholds(pair, config):\n    return {'factor': pair.nothing}\n")
    run_with_rules(pytester, wrong).assert_outcomes(passed=2, failed=1)


def test_rules_hold_for_the_fixtures_too(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    pytester.makeconftest(HOOK)
    pytester.makepyfile(f"def test_it(acc_opcheck):\n    acc_opcheck({str(wrong.csv)!r})\n")
    pytester.runpytest_inprocess(*QUICKER, "--acc-output=out").assert_outcomes(passed=1)


@pytest.mark.slow
@pytest.mark.usefixtures("python_with_torch")
def test_workers_of_xdist_ask_the_same_rules(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    pytest.importorskip("xdist")
    words = [config('[[threshold]]\nmatch = { op_type = "Softmax*" }\nfactor = 1000\n'), "-n1"]
    words += [f"--acc-opcheck={wrong.csv}"]
    pytester.runpytest_subprocess(*QUICKER, *words).assert_outcomes(passed=3)
