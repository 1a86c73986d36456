"""`--acc-opcheck-fuzz` on a device: it is checked against our operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from opcheck.stand_in import install

# pytester forgets modules that an inner session imported first; torch cannot be imported twice.
import acc_pytest.strategies.fuzz  # noqa: F401
from acc_pytest.operators import compute

from .conftest import QUICKER

DEVICE = "--acc-opcheck-backend=operation_torch"


def fuzz(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makeini("[pytest]")
    return pytester.runpytest_inprocess(*QUICKER, "--acc-fuzz-examples=20", DEVICE, *arguments)


def test_a_device_that_computes_as_we_do_is_green(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, compute)
    names = ("Split", "KvCache", "Softmax")  # copies, writes in place, rounds
    result = fuzz(pytester, *(f"--acc-opcheck-fuzz={name}" for name in names), "--acc-device-id=1")
    result.assert_outcomes(passed=3)
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


def test_without_a_device_one_sentence_says_so(pytester: pytest.Pytester) -> None:
    result = fuzz(pytester, "--acc-opcheck-fuzz=Repeat")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*backend operation_torch: needs an NPU and torch_npu*"])


@pytest.mark.parametrize("words", [["--acc-opcheck-standard=open"], ["--acc-device-id=1"]])
def test_options_of_a_device_need_one(pytester: pytest.Pytester, words: list[str]) -> None:
    result = pytester.runpytest_inprocess(*QUICKER, "--acc-opcheck-fuzz=Repeat", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*needs --acc-opcheck*"])
