"""The TorchAir table of the detection benchmark on a few runs of the demo's graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The modules of the table, and a device that runs the demo's program in float32 with fusion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from detecting import torchair_programs, torchair_report, torchair_runs

        patch.setattr(torchair_programs, "REAL", {})
        home = tmp_path_factory.mktemp("programs")
        program = torchair_programs.programs(home, seed=3)["demo"]
        device = torchair_runs.Device(program, torchair_runs.DTYPES["float32"], True)
        yield SimpleNamespace(runs=torchair_runs, report=torchair_report, device=device)
        for name in [name for name in sys.modules if name.partition(".")[0] == "detecting"]:
            del sys.modules[name]


def examined(table: SimpleNamespace, directory: Path, *fault: str) -> Any:
    case = table.runs.Case("demo", "float32", True, *fault)
    return table.runs.examine(case, table.device, directory)


def test_a_clean_run_of_other_kernels_is_green(table: SimpleNamespace, tmp_path: Path) -> None:
    found = examined(table, tmp_path)
    assert (found.red, found.roots, found.void) == (False, (), False)
    assert found.pairs > 100


@pytest.mark.parametrize(
    ("kind", "place", "root"),
    [
        ("row_sign", "Transpose", "Transpose"),
        ("spoiled", "Mul_1", "Mul_1Add_1"),
        ("scale", "SoftmaxV2", "SoftmaxV2"),
    ],
)
def test_a_fault_has_one_root_at_its_operator(
    table: SimpleNamespace, tmp_path: Path, kind: str, place: str, root: str
) -> None:
    found = examined(table, tmp_path, kind, "graph_2", place)
    assert (found.roots, found.hit, found.others) == ((root,), True, 0)


def test_another_weight_is_the_root_wherever_it_is_read(table: SimpleNamespace, tmp_path: Path) -> None:
    found = examined(table, tmp_path, "other_weight", "graph_1", "arg0_1")
    assert found.hit
    assert found.others == 0
    assert "weight" in found.first


def test_the_grid_has_every_fault_and_a_sample_one_of_each_at_each_type(table: SimpleNamespace) -> None:
    grid = list(table.runs.spots(table.device, "float32"))
    of_types = {(one.kind, one.op_type) for one in grid}
    assert {"MatMulV2", "LayerNormV4", "TopKV2", "ConcatV2", "Data"} <= {one.op_type for one in grid}
    drawn = table.report.sample(grid, 10, seed=1)
    assert {(one.kind, one.op_type) for one in drawn} == of_types
    assert drawn == table.report.sample(grid, 10, seed=1) != table.report.sample(grid, 10, seed=2)
