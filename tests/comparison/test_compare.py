"""One pair in, one row out: replicas, statistics, and everything that makes a pair incomparable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.comparison import compare_pair, compare_tensors
from acc_pytest.comparison.statistics import _as_mask, compare_statistics
from acc_pytest.dumps import open_dump
from acc_pytest.errors import NoPayload, SettingsError
from acc_pytest.judging.judges import Judge
from acc_pytest.lab.demo.torchair import TorchairPaths, TorchairSpec, make_torchair_demo
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.views import LastToken, Part, RankSum, View, Whole
from acc_pytest.reporting.row import Row
from acc_pytest.tensors.dtypes import DTYPES
from acc_pytest.tensors.ge_record import read_record
from acc_pytest.tensors.header import Statistics, TensorHeader
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.source import TensorSource
from acc_pytest.tensors.statistics import statistics_of

FLOAT32 = next(dtype for dtype in DTYPES if dtype.name == "float32")


def pair(golden: Operand, mine: Operand) -> Pair:
    return Pair("Linear_0", 0, None, "op", "model", 0, 0, "name", "same name", golden, mine)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Operand]:
    """Save tensors, one file per rank, as one operand."""

    def save(name: str, *tensors: torch.Tensor, view: View = Whole()) -> Operand:  # noqa: B008
        refs = []
        for rank, tensor in enumerate(tensors):
            path = tmp_path / f"{name}{rank}.pth"
            torch.save(tensor, path)
            refs.append(TensorRef(str(path)))
        return Operand(f"{name}.node", name, "Linear", "output[0]", tuple(refs), view)

    return save


GOLDEN = torch.arange(1.0, 9.0).reshape(2, 4)


def test_a_row_says_what_was_compared(saved: Callable[..., Operand]) -> None:
    row = compare_pair(pair(saved("g", GOLDEN), saved("m", GOLDEN)), Judge, "id", 7)
    assert (row.verdict, row.number, row.test_id, row.layer) == ("pass", 7, "id", "model")
    assert (row.golden.dtype, row.golden.shape) == ("torch.float32", "[2, 4]")
    assert (row.golden.max, row.golden.min, row.golden.mean) == (8.0, 1.0, 4.5)
    assert Path(row.mine.path).is_file()
    assert row.counts["elements"] == 8


def test_of_replicas_the_worst_decides(saved: Callable[..., Operand]) -> None:
    bad = GOLDEN.clone()
    bad[1, 2] += 1
    row = compare_pair(pair(saved("g", GOLDEN), saved("m", GOLDEN, bad)), Judge, "id", 0)
    assert row.verdict == "fail"
    assert row.worst.index == "[1, 2]"
    assert row.notes[-1] == "rank 1, the worst of 2 replicas"
    assert row.mine.path.count(";") == 1


def test_a_new_nan_is_said_in_the_old_tools_words_too(saved: Callable[..., Operand]) -> None:
    bad = GOLDEN.clone()
    bad[0, 0] = math.nan
    row = compare_pair(pair(saved("g", GOLDEN), saved("m", bad)), Judge, "id", 0)
    assert row.verdict == "fail"
    assert row.reasons[0] == "my_data includes NAN or inf."
    assert row.counts["my_nan"] == 1
    reverse = compare_pair(pair(saved("g", bad), saved("m", GOLDEN)), Judge, "id", 0)
    assert reverse.reasons[0] == "golden_data includes NAN or inf."


def test_shapes_that_do_not_agree_are_the_rows_reason(saved: Callable[..., Operand]) -> None:
    row = compare_pair(pair(saved("g", GOLDEN), saved("m", torch.ones(3))), Judge, "id", 0)
    assert (row.verdict, row.red) == ("incomparable", True)
    assert row.sentence == row.reason
    assert row.sentence.startswith("data shape doesn't match")
    assert (row.golden.shape, row.mine.shape) == ("[2, 4]", "[3]")


def test_a_missing_file_leaves_the_other_side_described(
    saved: Callable[..., Operand], tmp_path: Path
) -> None:
    gone = Operand("n", "n", "Linear", "output[0]", (TensorRef(str(tmp_path / "gone.pth")),))
    row = compare_pair(pair(saved("g", GOLDEN), gone), Judge, "id", 0)
    assert row.verdict == "incomparable"
    assert str(tmp_path / "gone.pth") in row.sentence
    assert (row.golden.shape, row.mine.shape) == ("[2, 4]", "")


def test_a_judge_that_cannot_be_made_is_the_rows_reason(saved: Callable[..., Operand]) -> None:
    def refuse() -> Judge:
        raise SettingsError("marker acc_threshold on x: atol must be >= 0, got -1")

    row = compare_pair(pair(saved("g", GOLDEN), saved("m", GOLDEN)), refuse, "id", 0)
    assert (row.verdict, row.sentence) == (
        "incomparable",
        "marker acc_threshold on x: atol must be >= 0, got -1",
    )


def test_any_two_tensors_need_one_shape() -> None:
    one, other = TensorSource(torch.ones(2)), TensorSource(torch.ones(3))
    assert compare_tensors(one, one, Judge, "id", "x").verdict == "pass"
    row = compare_tensors(one, other, Judge, "id", "x")
    assert row.sentence == "data shape doesn't match: golden [2], mine [3]"
    assert row.name == "x"


def statistics(*tensors: torch.Tensor, view: View = Whole()) -> Operand:  # noqa: B008
    """An operand whose files hold statistics only."""
    refs: Any = tuple(_Stated(tensor) for tensor in tensors)
    return Operand("n", "n", "Linear", "output[0]", refs, view)


class _Stated:
    """Stands for a file that states the statistics of a tensor."""

    path, member = "stated.bin", ""

    def __init__(self, tensor: torch.Tensor) -> None:
        t = tensor.double()
        stated = Statistics(t.max().item(), t.min().item(), t.mean().item(), t.norm().item())
        self._header = TensorHeader(FLOAT32, tuple(tensor.shape), "statistics", statistics=stated)

    def header(self) -> TensorHeader:
        return self._header

    def __str__(self) -> str:
        return "stated.bin"


def compared(golden: Operand, mine: Operand) -> Row:
    return compare_pair(pair(golden, mine), Judge, "id", 0)


def test_statistics_against_statistics() -> None:
    row = compared(statistics(GOLDEN), statistics(GOLDEN))
    assert row.verdict == "pass"
    assert row.metrics["max_stat_absolute_error"] == 0.0
    assert row.notes == ("only statistics were dumped: max, min, mean, l2norm",)
    assert compared(statistics(GOLDEN), statistics(GOLDEN * 2)).verdict == "fail"


def test_values_against_statistics(saved: Callable[..., Operand]) -> None:
    assert compared(saved("g", GOLDEN), statistics(GOLDEN)).verdict == "pass"
    assert compared(statistics(GOLDEN), saved("m", -GOLDEN)).verdict == "fail"


def test_shards_are_merged_before_they_are_judged() -> None:
    row = compared(statistics(GOLDEN), statistics(GOLDEN[:, :1], GOLDEN[:, 1:]))
    assert row.verdict == "pass"
    # Two shards instead of one tensor: the mean and the norm differ by a few roundings of 2^-53.
    errors: dict[str, Any] = dict(row.metrics)
    assert errors["mean_stat_absolute_error"] <= 8 * 2.0**-52
    assert errors["l2norm_stat_absolute_error"] <= 32 * 2.0**-52


def test_statistics_of_replicas_are_judged_one_by_one() -> None:
    assert compared(statistics(GOLDEN), statistics(GOLDEN, GOLDEN)).verdict == "pass"
    assert compared(statistics(GOLDEN), statistics(GOLDEN, GOLDEN * 2)).verdict == "fail"
    assert compared(statistics(GOLDEN, GOLDEN * 2), statistics(GOLDEN)).verdict == "fail"


@pytest.mark.parametrize(
    ("golden", "mine", "skipped"),
    [
        (statistics(GOLDEN), statistics(GOLDEN[:1]), False),
        (statistics(GOLDEN), statistics(GOLDEN[:1], view=LastToken()), True),
        (statistics(GOLDEN, view=Part(0, ())), statistics(GOLDEN[:1]), True),
        (statistics(GOLDEN), statistics(GOLDEN, GOLDEN, view=RankSum()), True),
    ],
)
def test_statistics_of_something_else_are_incomparable(golden: Operand, mine: Operand, skipped: bool) -> None:
    row = compared(golden, mine)
    assert (row.verdict, row.skipped) == ("incomparable", skipped)
    assert "golden holds 8 elements" in row.sentence


def test_a_statistic_that_one_shard_does_not_state_is_unknown_of_the_whole() -> None:
    half: Any
    half, other = statistics(GOLDEN[:1]).refs[0], statistics(GOLDEN[1:]).refs[0]
    known = half.header().statistics
    assert known is not None
    half._header = TensorHeader(
        FLOAT32, (1, 4), "statistics", statistics=Statistics(None, known.min, known.mean, known.l2norm)
    )
    mine = Operand("n", "n", "Linear", "output[0]", (half, other))
    row = compare_statistics(pair(statistics(GOLDEN), mine), compared(statistics(GOLDEN), mine), Judge())
    assert "max_stat_absolute_error" not in row.metrics
    assert "min_stat_absolute_error" in row.metrics


# Info files of the guide's own script (minimum and maximum alone) on one side, full tensors on the other.


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


# Masks of which only statistics were dumped are compared by how much they let be seen.


KEPT = ("max", "min", "mean", "l2norm")


def stated(least: float, hidden: int, dtype: torch.dtype = torch.float64) -> Statistics:
    mask = torch.zeros(64, dtype=dtype)
    mask[:hidden] = least
    return statistics_of(mask.double())


@pytest.mark.parametrize("least", [-1e4, -65504.0, torch.finfo(torch.float32).min])
def test_whatever_number_hides_it_is_the_share_that_counts(least: float) -> None:
    seen = _as_mask(stated(least, 16))
    assert [getattr(seen, name) for name in KEPT] == pytest.approx([0.0, -1.0, -0.25, 4.0])
    assert _as_mask(stated(least, 24)).mean == pytest.approx(-0.375)


def test_what_hides_nothing_or_has_no_least_number_stays_as_it_is() -> None:
    for untouched in (stated(-3.0, 5), Statistics(0.0, -math.inf, -math.inf, math.inf)):
        assert _as_mask(untouched) is untouched


def test_a_norm_that_overflowed_says_nothing() -> None:
    seen = _as_mask(Statistics(0.0, -65504.0, -100.0, math.inf))
    assert (seen.l2norm, seen.min) == (None, -1.0)
    assert {field.name for field in fields(seen)} >= set(KEPT)
