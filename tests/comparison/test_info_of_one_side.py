"""Info files of the guide's own script (minimum and maximum alone) on one side, full tensors on the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acc_pytest.comparison import compare_pair
from acc_pytest.dumps import open_dump
from acc_pytest.errors import NoPayload
from acc_pytest.judging.judges import Judge
from acc_pytest.lab.demo.torchair import TorchairPaths, TorchairSpec, make_torchair_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.reporting.row import Row
from acc_pytest.tensors.ge_record import read_record
from acc_pytest.tensors.ref import TensorRef


@pytest.fixture
def demo(tmp_path: Path) -> TorchairPaths:
    return make_torchair_demo(tmp_path, TorchairSpec(tokens=(3,), steps=1))


def convert_fx(home: Path) -> None:
    for file in home.rglob("*.npy"):
        values = np.load(file, allow_pickle=False)
        if values.size:
            np.save(file.with_name(f"{file.stem}_min_max.npy"), np.array([values.min(), values.max()]))
            file.unlink()


def convert_ge(home: Path) -> None:
    for file in home.rglob("*"):
        if file.is_file() and file.suffix not in (".txt", ".csv"):
            record = read_record(str(file))
            counts = {"inputs": len(record.inputs), "outputs": len(record.outputs)}
            rows: dict[str, Any] = {
                side: [limits(file, side, n) for n in range(count)] for side, count in counts.items()
            }
            np.savez(file.with_name(f"{file.name}_min_max.npz"), **rows)
            file.unlink()


def limits(file: Path, side: str, number: int) -> list[object]:
    """Numbers of the tensor's own type; numpy makes one type of all of a record."""
    try:
        values = TensorRef(str(file), f"{side}/{number}").open().numpy()
    except NoPayload:
        return [np.nan, np.nan]
    return [values.min(), values.max()]


def planned(paths: TorchairPaths) -> Plan:
    golden = open_dump(str(paths.golden))
    return plan(golden, open_dump(str(paths.mine), golden=golden))


def rows(made: Plan) -> list[Row]:
    return [compare_pair(pair, Judge, pair.id, number) for number, pair in enumerate(made.pairs)]


def test_minimum_and_maximum_of_golden_are_compared_with_those_of_mine(demo: TorchairPaths) -> None:
    whole = {pair.id for pair in planned(demo).pairs}
    convert_fx(demo.golden)
    made = planned(demo)
    assert {pair.id for pair in made.pairs} == whole
    found = rows(made)
    assert {row.verdict for row in found} == {"pass"}
    assert all("max_stat_absolute_error" in row.metrics for row in found if "Gelu" in row.test_id)


def test_numbers_of_half_precision_among_wider_ones_are_judged_as_such(demo: TorchairPaths) -> None:
    """Mine is float16; a record of float16 and float32 tensors becomes an array of float32."""
    convert_ge(demo.mine)
    assert [row.sentence for row in rows(planned(demo)) if row.verdict not in ("pass", "incomparable")] == []


def test_another_maximum_fails(demo: TorchairPaths) -> None:
    convert_fx(demo.golden)
    (file,) = demo.golden.rglob("gelu-*OUTPUT.0*_min_max.npy")
    np.save(file, np.load(file) * np.float32(1.1))
    failed = [row for row in rows(planned(demo)) if row.verdict == "fail"]
    assert "Gelu" in {row.test_id for row in failed}
    assert all("statistics only" in row.sentence for row in failed)
