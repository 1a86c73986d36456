"""The detection benchmark on three runs: a mistake that is found, one too small to be, and none at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from acc_pytest.lab.atb import Fault

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def detecting() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from detecting import grid, networks, runs, tables

        yield SimpleNamespace(grid=grid, networks=networks, runs=runs, tables=tables)
        for name in [name for name in sys.modules if name.partition(".")[0] == "detecting"]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def outcomes(detecting: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    setting = detecting.networks.Setting("chatglm", "float16", layers=1, prompt=5)
    faults = (Fault("row", step=1), Fault("scale", size=1.0004), Fault("scale", size=1.00001), None)
    cases = [detecting.grid.Case("chatglm2", setting, fault=fault) for fault in faults]
    return list(detecting.runs.examine_all(cases, tmp_path_factory.mktemp("detection"), 1))


def test_a_fault_is_red_and_the_first_root_is_its_operator(outcomes: list[Any]) -> None:
    found = outcomes[0]
    assert found.red
    assert found.hit
    assert found.own.share > 1
    assert found.first.startswith(f"root cause: {found.roots[0]}")
    assert found.steps[0] == 1


def test_a_fault_below_the_rounding_is_a_miss_that_is_explained_with_numbers(
    outcomes: list[Any], detecting: SimpleNamespace
) -> None:
    missed = outcomes[1]
    assert not missed.red
    assert not missed.hit
    assert not missed.void
    assert 0 < missed.own.error < missed.own.allowed
    assert "too small" in detecting.tables.explained(missed)


def test_a_fault_that_changes_no_bit_is_no_miss(outcomes: list[Any], detecting: SimpleNamespace) -> None:
    found, _, void, clean = outcomes
    assert void.void
    assert "bit by bit" in detecting.tables.explained(void)
    figures = detecting.tables.Figures.of([found, void], [clean])
    assert (figures.faulty, figures.void) == (1, 1)


def test_the_goal_needs_every_clean_run_green(outcomes: list[Any], detecting: SimpleNamespace) -> None:
    found, missed, _, clean = outcomes
    assert not clean.red
    figures = detecting.tables.Figures.of
    assert figures([found], [clean]).good
    assert not figures([found], [found]).good
    assert not figures([found, missed], [clean]).good
    assert "detection 50.0% (1 of 2)" in str(figures([found, missed], [clean]))


def test_the_sample_has_every_fault_and_network_and_is_the_same_for_the_same_seed(
    detecting: SimpleNamespace,
) -> None:
    grid, networks = (
        detecting.grid,
        [one for one in detecting.networks.NETWORKS.values() if one.golden != "mixtral"],
    )
    spots = [grid.Spot(one.name, 1, kind, 0, "") for one in networks for kind in ("scale", "row", "nan")]
    cases = grid.sample(spots, 30, 1)
    assert {case.fault.kind for case in cases} == {"scale", "row", "nan"}
    assert {case.network for case in cases} == {one.name for one in networks}
    assert cases == grid.sample(spots, 30, 1)
    assert cases != grid.sample(spots, 30, 2)
