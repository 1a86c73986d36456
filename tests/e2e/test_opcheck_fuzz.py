"""`--acc-opcheck-fuzz` makes a test of each operator; a failing one has saved its smallest case.

The device is a stand-in that computes as we do, or as a test wants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

# pytester forgets modules that an inner session imported first; torch cannot be imported twice.
import acc_pytest.lab.strategies.fuzz  # noqa: F401
from acc_pytest.operators import compute
from tests.opcheck.stand_in import install

from .conftest import QUICKER

DEVICE = "-oacc_opcheck_backend=operation_torch"


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, compute)


def fuzz(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makeini("[pytest]")
    return pytester.runpytest_inprocess(*QUICKER, DEVICE, "-oacc_fuzz_examples=20", *arguments)


def test_each_operator_is_one_test(pytester: pytest.Pytester) -> None:
    names = ("Split", "KvCacheOperation", "Softmax")  # copies, writes in place, rounds
    result = fuzz(pytester, *(f"--acc-opcheck-fuzz={name}" for name in names), "-oacc_device_id=1", "-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["acc-fuzz::SplitOperation PASSED*", "acc-fuzz::KvCacheOperation PASSED*"])
    assert not Path("acc_fuzz").exists()


def test_a_wrong_device_is_found_and_the_saved_case_fails_without_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(name: str, param: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        (y,) = compute(name, param, inputs)
        return [y + (y.numel() > 2)]

    install(monkeypatch, late)
    result = fuzz(pytester, "--acc-opcheck-fuzz=Softmax", "--acc-output=out")
    result.assert_outcomes(failed=1)
    csv = "out/acc_fuzz/SoftmaxOperation/operation_tensors_0.csv"
    result.stdout.fnmatch_lines(
        [
            "SoftmaxOperation disagrees with our operator by the standard ascend (case * of 20, *",
            "output[[]0[]]: max_scaled_error 1 is * times the allowed *; 3 of 3 elements are beyond it*",
            "DrawnCase('SoftmaxOperation', *",
            f"saved as {csv}; check it: pytest --acc-opcheck={csv} --acc-opcheck-standard=ascend",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    header, row = Path(csv).read_text().splitlines()
    assert row.split("|")[header.split("|").index("OpName")] == "SoftmaxOperation_0"
    assert (Path(csv).parent / "0_SoftmaxOperation" / "after" / "outtensor0.bin").is_file()
    again = pytester.runpytest_inprocess(*QUICKER, f"--acc-opcheck={csv}", "--acc-opcheck-standard=ascend")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["max_scaled_error 1, allowed 0.00391 *", "3 of 3 elements are beyond it*"])


def test_cases_that_the_device_refuses_are_counted_and_said(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def narrow(name: str, param: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        if len(param.get("multiples", ())) > 1:
            raise RuntimeError("error code 4: rank\nand a long tail")
        return compute(name, param, inputs)

    install(monkeypatch, narrow)
    result = fuzz(pytester, "--acc-opcheck-fuzz=Repeat")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(
        ["*RepeatOperation: the device refused * of 20 drawn cases: *error code 4: rank"]
    )


def test_a_device_that_refuses_everything_is_not_green(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(name: str, param: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        raise RuntimeError("no stream")

    install(monkeypatch, none)
    result = fuzz(pytester, "--acc-opcheck-fuzz=Repeat")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*refused 20 of 20 drawn cases: no stream; nothing was checked"])


def test_ids_on_the_command_line_pick_operators(pytester: pytest.Pytester) -> None:
    both = ("--acc-opcheck-fuzz=Split", "--acc-opcheck-fuzz=Repeat")
    result = fuzz(pytester, *both, "acc-fuzz::RepeatOperation", "-v")
    result.assert_outcomes(passed=1)
    assert fuzz(pytester, *both, "acc-fuzz").parseoutcomes() == {"passed": 2}
    wrong = fuzz(pytester, *both, "acc-fuzz::SortOperation")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines(["*no generated test matches 'acc-fuzz::SortOperation'; nearest: acc-fuzz*"])


def test_named_paths_of_tests_are_run_instead(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("def test_own():\n    pass\n")
    fuzz(pytester, "--acc-opcheck-fuzz=Split", path.name).assert_outcomes(passed=1)


def test_the_ini_file_may_name_them(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nacc_opcheck_fuzz =\n    Split\n    Repeat\nacc_fuzz_examples = 5\n")
    pytester.runpytest_inprocess(*QUICKER, DEVICE).assert_outcomes(passed=2)


def test_without_an_npu_one_sentence_says_so(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(pytester.path)
    result = fuzz(pytester, "--acc-opcheck-fuzz=Repeat")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*backend operation_torch: needs an NPU and torch_npu*"])


@pytest.mark.parametrize(
    "words", [[], ["-oacc_opcheck_backend=dumped"], ["--acc-opcheck-standard=open"], ["-oacc_device_id=1"]]
)
def test_without_a_backend_one_sentence_says_what_to_add(pytester: pytest.Pytester, words: list[str]) -> None:
    pytester.makeini("[pytest]")
    result = pytester.runpytest_inprocess(*QUICKER, "--acc-opcheck-fuzz=Repeat", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "*--acc-opcheck-fuzz: checks what a device computes against the reference; "
            "add -o acc_opcheck_backend=torch_atb or operation_torch"
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--acc-opcheck-fuzz=Splat"], "*--acc-opcheck-fuzz: SplatOperation: no strategy; did you mean*"),
        (["--acc-opcheck-fuzz=AllReduce"], "*AllReduceOperation: no strategy; it computes between ranks*"),
        (
            ["--acc-opcheck-fuzz=Split", "-oacc_fuzz_examples=0"],
            "*acc_fuzz_examples must be a whole number >= 1, got 0*",
        ),
        (
            ["--acc-opcheck-fuzz=Split", "-oacc_fuzz_examples=x"],
            "*acc_fuzz_examples must be a whole number >= 1, got x*",
        ),
        (["-oacc_fuzz_examples=5"], "*acc_fuzz_examples needs --acc-opcheck-fuzz OPERATOR"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    pytester: pytest.Pytester, arguments: list[str], message: str
) -> None:
    result = fuzz(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
