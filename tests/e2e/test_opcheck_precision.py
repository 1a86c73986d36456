"""`acc_precision_mode` reaches the checks, and refuses what is no mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from acc_pytest.opcheck.stand_alone import StandAlone, write_case

from .conftest import QUICKER

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
