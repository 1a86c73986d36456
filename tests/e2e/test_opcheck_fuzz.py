"""`--acc-opcheck-fuzz` makes a test of each operator; a failing one has saved its smallest case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

# pytester forgets modules that an inner session imported first; torch cannot be imported twice.
import acc_pytest.strategies.fuzz
from acc_pytest.operators import compute

from .conftest import QUICKER


def fuzz(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makeini("[pytest]")
    return pytester.runpytest_inprocess(*QUICKER, "--acc-fuzz-examples=20", *arguments)


def test_each_operator_is_one_test(pytester: pytest.Pytester) -> None:
    result = fuzz(pytester, "--acc-opcheck-fuzz=Split", "--acc-opcheck-fuzz=RepeatOperation", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["acc-fuzz::SplitOperation PASSED*", "acc-fuzz::RepeatOperation PASSED*"])
    assert not Path("acc_fuzz").exists()


def test_a_failure_says_the_element_and_the_case_and_where_it_is_saved(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(operator: str, param: Any, inputs: Sequence[Any]) -> Any:
        (y,) = compute(operator, param, inputs)
        return (y.flip(0),)

    monkeypatch.setattr(acc_pytest.strategies.fuzz, "compute", spoiled)
    result = fuzz(pytester, "--acc-opcheck-fuzz=Repeat", "--acc-output=out")
    result.assert_outcomes(failed=1)
    saved = Path("out/acc_fuzz/RepeatOperation/operation_tensors_0.csv")
    result.stdout.fnmatch_lines(
        [
            "RepeatOperation disagrees with its independent formulation (case * of 20, made smaller)",
            "output 0: element [[]*[]] is *, not * within 0",
            "DrawnCase('RepeatOperation', {'multiples': [[]*[]]}, (*",
            f"saved as {saved}; check it: pytest --acc-opcheck={saved}",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    header, row = saved.read_text().splitlines()
    assert row.split("|")[header.split("|").index("OpName")] == "RepeatOperation_0"
    assert (saved.parent / "0_RepeatOperation" / "after" / "outtensor0.bin").is_file()


def test_ids_on_the_command_line_pick_operators(pytester: pytest.Pytester) -> None:
    both = ("--acc-opcheck-fuzz=Split", "--acc-opcheck-fuzz=Repeat")
    result = fuzz(pytester, *both, "acc-fuzz::RepeatOperation", "-v")
    result.assert_outcomes(passed=1)
    assert fuzz(pytester, *both, "acc-fuzz").parseoutcomes() == {"passed": 2}
    wrong = fuzz(pytester, *both, "acc-fuzz::SortOperation")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines(["*acc-fuzz::SortOperation: not among --acc-opcheck-fuzz SplitOperation Rep*"])


def test_named_paths_of_tests_are_run_instead(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("def test_own():\n    pass\n")
    fuzz(pytester, "--acc-opcheck-fuzz=Split", path.name).assert_outcomes(passed=1)


def test_the_ini_file_may_name_them(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nacc_opcheck_fuzz =\n    Split\n    Repeat\nacc_fuzz_examples = 5\n")
    pytester.runpytest_inprocess(*QUICKER).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--acc-opcheck-fuzz=Splat"], "*--acc-opcheck-fuzz: SplatOperation: no strategy; did you mean*"),
        (["--acc-opcheck-fuzz=AllReduce"], "*AllReduceOperation: no strategy; it computes between ranks*"),
        (["--acc-opcheck-fuzz=Split", "--acc-fuzz-examples=0"], "*--acc-fuzz-examples 0: how many cases*"),
        (["--acc-opcheck-fuzz=Split", "--acc-fuzz-examples=x"], "*--acc-fuzz-examples x: how many cases*"),
        (["--acc-fuzz-examples=5"], "*--acc-fuzz-examples needs --acc-opcheck-fuzz OPERATOR"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    pytester: pytest.Pytester, arguments: list[str], message: str
) -> None:
    pytester.makeini("[pytest]")
    result = pytester.runpytest_inprocess(*QUICKER, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
