"""Real programs of TorchAir in which one operator writes something else: one root, that operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan
from tests.slow import slow

PROGRAMS = Path(__file__).parents[3] / "shared" / "conformance" / "torchair" / "real_programs"
pytestmark = pytest.mark.skipif(not PROGRAMS.exists(), reason="../shared/conformance is not there")


@pytest.mark.parametrize(
    ("program", "fault", "operator"),
    [
        ("mlp", "matmul_spoiled", "MatMul"),
        slow("attn", "add_spoiled", "Add"),
        slow("attn", "transpose_3_spoiled", "Transpose_3"),
    ],
)
def test_a_spoiled_operator_is_the_only_root(program: str, fault: str, operator: str) -> None:
    golden, mine = PROGRAMS / program / "fx", PROGRAMS / program / "faults" / fault
    rows, _ = run(plan(open_dump(str(golden)), open_dump(str(mine))))
    causes = [row.cause for row in rows if row.cause is not None]
    roots = [cause for cause in causes if cause.kind == "root"]
    assert {cause.root_name for cause in roots} == {operator}
    assert {cause.local for cause in roots} == {"wrong"}
    assert len(causes) > len(roots)
