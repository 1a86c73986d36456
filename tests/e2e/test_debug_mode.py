"""Two logs of DebugMode: the same run is green, a fault red with its module as the one root."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths

from .conftest import Run, read_rows

LOGS = Path(__file__).resolve().parents[2].parent / "shared" / "conformance" / "other_dumps" / "debugmode"
pytestmark = [
    pytest.mark.skipif(not LOGS.is_dir(), reason=f"real logs are not at {LOGS}"),
    pytest.mark.usefixtures("replayed"),
]
GOLDEN = LOGS / "llama_golden_fp32.txt"


def compared(acc: Run, mine: str) -> tuple[pytest.RunResult, list[dict[str, str]]]:
    return acc(DemoPaths(GOLDEN, LOGS / mine)), read_rows()


def test_the_same_run_is_green_in_every_operator(acc: Run) -> None:
    _, rows = compared(acc, "llama_mine_same.txt")
    assert {row["verdict"] for row in rows} == {"pass"}
    assert len(rows) > 240


def test_another_dtype_is_green_and_only_its_casts_have_no_partner(acc: Run) -> None:
    _, rows = compared(acc, "llama_mine_bf16.txt")
    assert {row["verdict"] for row in rows} == {"pass", "unmapped"}
    lone = [row["my_node"] for row in rows if row["verdict"] == "unmapped"]
    assert lone
    assert all("._to_copy" in node for node in lone)


def test_a_wrong_weight_is_the_one_root(acc: Run) -> None:
    result, rows = compared(acc, "llama_fault_linear_scaled.txt")
    result.stdout.fnmatch_lines(["root cause: root.model.layers.1.self_attn.o_proj step 0 *"])
    assert [row["my_node"] for row in rows if row["verdict"] == "fail"] == [
        "root.model.layers.1.self_attn.o_proj.t"
    ]
    assert {row["my_slot"] for row in rows if row["verdict"] == "fail"} == {"input[0]"}
