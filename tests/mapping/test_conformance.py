"""Every pair that the conformance data expects is found without a mapping file, and none is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acc_pytest.dumps import open_dump
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair

from .trees import relative_error

PROBE = Path(__file__).parents[2].parent / "shared" / "conformance" / "probe"
pytestmark = pytest.mark.skipif(
    not PROBE.is_dir(), reason="no conformance data at ../shared/conformance/probe"
)

SETS = {
    "A": ("A/golden", "A/atb"),
    "A_bf16": ("A_bf16/golden", "A_bf16/atb"),
    "B_e2": ("B_e2/golden", "B_e2/atb"),
    "C": ("A/golden", "C/atb"),
}
NOISE = {"A": 16 * 2**-11, "A_bf16": 16 * 2**-8, "B_e2": 16 * 2**-11, "C": 16 * 2**-11}
"""Relative L2 error that rounding after every operation can make: 16 roundings of at most one unit."""


@pytest.fixture(scope="module", params=list(SETS))
def mapped(request: pytest.FixtureRequest) -> tuple[str, Plan]:
    golden_path, mine_path = SETS[request.param]
    golden = open_dump(str(PROBE / golden_path))
    return request.param, plan(golden, open_dump(str(PROBE / mine_path), golden=golden))


def below(path: str, marker: str) -> str:
    """A tensor's path below the process directory."""
    return path.rpartition(f"/{marker}/")[2].partition("/")[2]


def test_every_expected_pair_is_found(mapped: tuple[str, Plan]) -> None:
    name, mapped_plan = mapped
    found = {
        (pair.step, below(golden.path, "torch_tensors"), below(mine.path, "tensors"))
        for pair in mapped_plan.pairs
        for golden in pair.golden.refs
        for mine in pair.mine.refs
    }
    expected = json.loads((PROBE / name / "expected_pairs.json").read_text())["pairs"]
    missing = [
        (e["token"], t, e["atb"])
        for e in expected
        for t in e["torch"]
        if (e["token"], t, e["atb"]) not in found
    ]
    assert expected
    assert not missing


def test_no_pair_of_a_clean_dump_holds_other_numbers(mapped: tuple[str, Plan]) -> None:
    name, mapped_plan = mapped
    for pair in mapped_plan.pairs:
        for comparison in open_pair(pair).comparisons:
            error = relative_error(comparison)
            assert error <= NOISE[name], f"{pair.layer} {pair.id}: {error}"


@pytest.mark.parametrize("fault", ["residual", "rope_sign", "norm_eps"])
def test_the_first_pair_that_differs_is_the_faulty_operator(fault: str) -> None:
    ops = json.loads((PROBE / "E" / "faults.json").read_text())["faults"][fault]["ops"]
    golden = open_dump(str(PROBE / "A/golden"))
    mapped_plan = plan(golden, open_dump(str(PROBE / "E" / fault), golden=golden))
    for pair in mapped_plan.pairs:
        if relative_error(open_pair(pair).comparisons[0]) > 0.02:
            assert pair.mine.name in ops
            return
    pytest.fail("no pair differs")
