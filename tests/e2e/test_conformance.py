"""Dumps of the real probe: clean ones pass, each fault is red and the summary names its operator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acc_pytest.lab.demo import DemoPaths, DemoSpec, make_demo
from tests.slow import slow

from .conftest import Run, read_rows

PROBE = Path(__file__).resolve().parents[2].parent / "shared" / "conformance" / "probe"
pytestmark = [
    pytest.mark.skipif(not PROBE.is_dir(), reason=f"real dumps are not at {PROBE}"),
    pytest.mark.usefixtures("replayed"),
]

FAULTS = json.loads((PROBE / "E" / "faults.json").read_text())["faults"] if PROBE.is_dir() else {}


@pytest.mark.parametrize(
    ("golden", "mine"),
    [
        slow("A/golden", "A/atb"),
        ("B_e2/golden", "B_e2/atb"),
        slow("A/golden", "C/atb"),
        slow("A/golden", "D_e4/atb"),
        ("D_stats/golden", "D_stats/atb"),
        slow("A/golden", "A/golden"),
    ],
)
def test_clean_dumps_are_green(acc: Run, golden: str, mine: str) -> None:
    result = acc(DemoPaths(PROBE / golden, PROBE / mine), "--tb=no", "-q")
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] > 100


@pytest.mark.parametrize("fault", ["norm_eps", *map(slow, ("residual", "rope_sign"))])
def test_a_fault_is_red_and_named(acc: Run, fault: str) -> None:
    result = acc(DemoPaths(PROBE / "A/golden", PROBE / "E" / fault), "--tb=no", "-q", "-rN")
    assert result.ret == 1
    found = FAULTS[fault]
    result.stdout.fnmatch_lines(
        [f"root cause: {found['ops'][0]} ({found['op_type']}) step 0 layers.{found['layer']}*: *"]
    )


def test_of_two_different_models_only_position_tables_pass(acc: Run, tmp_path: Path) -> None:
    golden = make_demo(tmp_path / "one", DemoSpec(layers=1, decode_steps=0, seed=1)).golden
    mine = make_demo(tmp_path / "two", DemoSpec(layers=1, decode_steps=0, seed=2)).mine
    result = acc(DemoPaths(golden, mine), "--tb=no", "-q", "-rN")
    assert result.ret == 1
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] + outcomes["xfailed"] > 40
    assert {row["policy"] for row in read_rows() if row["verdict"] == "pass"} == {"rope"}
