"""`--acc-opcheck-backend` and `--acc-device-id`, on a machine without NPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.opcheck.stand_alone import StandAlone, write_case

from .conftest import QUICKER


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--acc-opcheck-backend=torch_atb"], "*backend torch_atb: needs an NPU and torch_npu*"),
        (["--acc-opcheck-backend=operation_torch"], "*backend operation_torch: needs an NPU*"),
        (["--acc-opcheck-backend=cuda"], "*--acc-opcheck-backend: invalid choice: 'cuda'*"),
        (["--acc-device-id=first"], "*--acc-device-id must be the number of an NPU, >= 0, got first*"),
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
    words = ["--acc-opcheck-backend=dumped", "--acc-output=out", f"--acc-opcheck={csv}"]
    pytester.runpytest_inprocess(*QUICKER, *words).assert_outcomes(passed=1)
