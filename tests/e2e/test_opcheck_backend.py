"""`acc_opcheck_backend` and `acc_device_id`, on a machine without NPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.opcheck.stand_alone import StandAlone, write_case

from .conftest import QUICKER


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
