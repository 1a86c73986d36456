"""The published programs of the real TorchAir: clean runs are green, each fault is one root."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from acc_pytest.lab.demo.torchair import TorchairPaths
from tests.slow import slow

from .conftest import Run

DATA = Path(__file__).resolve().parents[3] / "shared" / "conformance" / "torchair" / "real_programs"
FAULTS = {
    "mlp/faults/other_weight": "weight arg3_1 differs",
    "mlp/faults/transpose_1_spoiled": "Transpose_1 (Transpose)",
    "mlp/faults/matmul_spoiled": "MatMul (MatMul)",
    "attn/faults/other_weight": "weight arg1_1 differs",
    "attn/faults/other_prompt": "input arg0_1 differs",
    "attn/faults/add_spoiled": "Add (Add)",
    "attn/faults/transpose_3_spoiled": "Transpose_3 (Transpose)",
}
CLEAN = [f"{program}/{run}" for program in ("mlp", "attn") for run in ("ge32", "ge16", "ge16_nz")]

pytestmark = [
    pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/conformance/torchair/real_programs here"),
    pytest.mark.usefixtures("replayed"),
]


def said(acc: Run, run: str) -> tuple[int, str]:
    golden, mine = DATA / run.partition("/")[0] / "fx", DATA / run
    result = acc(TorchairPaths(golden, mine, mine))
    return int(result.ret), str(result.stdout)


@pytest.mark.parametrize("run", [*CLEAN[:3], *map(slow, CLEAN[3:])])
def test_a_clean_run_is_green(acc: Run, run: str) -> None:
    code, text = said(acc, run)
    assert code == 0, text


@pytest.mark.parametrize("run", [*list(FAULTS)[:2], *map(slow, list(FAULTS)[2:])])
def test_a_fault_is_one_root_and_names_what_is_wrong(acc: Run, run: str) -> None:
    code, text = said(acc, run)
    assert code == 1
    (root,) = re.findall("^root cause: (.*)$", text, re.MULTILINE)
    assert root.startswith(FAULTS[run])
