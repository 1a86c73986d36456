"""Threshold rules of config files, markers and the hook hold for single operators; the stronger wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.opcheck.made import MadeDump, softmax_dump

from .conftest import QUICKER, read_rows


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> MadeDump:
    """Softmax (5_0) with one element 0.25 off, a product (5_1) and a transposition (2)."""
    return softmax_dump(tmp_path_factory.mktemp("wrong"), wrong=True)


def run(pytester: pytest.Pytester, dump: MadeDump, *words: str) -> pytest.RunResult:
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
    result = run(pytester, wrong, given, "-kSoftmax")
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
    run(pytester, wrong, given)
    assert bound(wrong) == "max_absolute_error <= 0.5"
    pytester.makeconftest(MARKER)
    run(pytester, wrong, given)
    assert bound(wrong) == "max_absolute_error <= 1e-09"
    pytester.makeconftest(MARKER + HOOK)
    run(pytester, wrong, given).assert_outcomes(passed=3)
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
    result = run(pytester, wrong, config(table), "--co", "-s")
    result.stdout.fnmatch_lines(["LinearOperation_5_1 has {'kl_divergence': 0.25}"])
    result.stdout.no_fnmatch_line("Softmax* has *")


def test_a_wrong_answer_of_a_hook_fails_its_test_with_a_sentence(
    pytester: pytest.Pytester, wrong: MadeDump
) -> None:
    pytester.makeconftest(
        "def pytest_acc_case_thresholds(case):\n    return {'cosine': 1} if case.ids == '2' else None\n"
    )
    result = run(pytester, wrong)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*hook pytest_acc_case_thresholds: unknown key 'cosine'*"])


def test_the_hook_of_pairs_is_not_asked_for_operators(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    pytester.makeconftest("def pytest_acc_thresholds(pair, config):\n    return {'factor': pair.nothing}\n")
    run(pytester, wrong).assert_outcomes(passed=2, failed=1)


def test_rules_hold_for_the_fixtures_too(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    pytester.makeconftest(HOOK)
    pytester.makepyfile(f"def test_it(acc_opcheck):\n    acc_opcheck({str(wrong.csv)!r})\n")
    pytester.runpytest_inprocess(*QUICKER, "--acc-output=out").assert_outcomes(passed=1)


@pytest.mark.usefixtures("python_with_torch")
def test_workers_of_xdist_ask_the_same_rules(pytester: pytest.Pytester, wrong: MadeDump) -> None:
    pytest.importorskip("xdist")
    words = [config('[[threshold]]\nmatch = { op_type = "Softmax*" }\nfactor = 1000\n'), "-n1"]
    words += [f"--acc-opcheck={wrong.csv}"]
    pytester.runpytest_subprocess(*QUICKER, *words).assert_outcomes(passed=3)
