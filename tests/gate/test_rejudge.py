"""Rows judged again: every kind of pair, replicas among them, and statistics that are not whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.comparison import compare_pair
from acc_pytest.diagnosis.evidence import as_accumulated, may_accumulate
from acc_pytest.errors import AccError
from acc_pytest.gate.rejudge import rejudge, ungated
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.rules import rule_from_table
from acc_pytest.judging.verdict import Check
from acc_pytest.mapping.pair import Operand, Pair
from acc_pytest.reporting.row import Row
from acc_pytest.tensors.dtypes import by_name
from acc_pytest.tensors.header import Statistics, TensorHeader
from acc_pytest.tensors.ref import TensorRef

GOLDEN = torch.linspace(1.0, 2.0, 4096).reshape(64, 64)
Compare = Callable[..., Row]


def judge(**bounds: float) -> Callable[[], Judge]:
    return lambda: Judge((rule_from_table(bounds, "x.toml"),) if bounds else ())


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Compare golden with mine, of which there is one tensor for each rank."""

    def run(*mine: torch.Tensor, **bounds: float) -> Row:
        operands = []
        for name, tensors in (("g", (GOLDEN,)), ("m", mine)):
            refs = []
            for rank, tensor in enumerate(tensors):
                torch.save(tensor, tmp_path / f"{name}{rank}.pth")
                refs.append(TensorRef(str(tmp_path / f"{name}{rank}.pth")))
            operands.append(Operand(name, name, "Linear", "output[0]", tuple(refs)))
        return compare_pair(_pair(*operands), judge(**bounds), "id", 0)

    return run


def _pair(golden: Operand, mine: Operand) -> Pair:
    return Pair("Linear_0", 0, None, "op", "model", 0, 0, "name", "same name", golden, mine)


@pytest.mark.parametrize("mine", [GOLDEN, GOLDEN * 1.5, GOLDEN.half(), torch.full_like(GOLDEN, torch.nan)])
def test_under_the_same_rules_a_row_is_what_it_was(compare: Compare, mine: torch.Tensor) -> None:
    row = compare(mine)
    assert repr(rejudge(row, judge())) == repr(row)  # repr, for NaN


def test_other_rules_judge_as_they_would_have_with_data(compare: Compare) -> None:
    bounds = {"relative_euclidean_distance": 1e-5}
    again = rejudge(compare(GOLDEN.half()), judge(**bounds))
    assert again.verdict == "fail"
    assert again == compare(GOLDEN.half(), **bounds)


def test_of_replicas_each_is_judged_again(compare: Compare) -> None:
    signs = torch.tensor((1.0, -1.0)).repeat(32)
    better, worse = GOLDEN, GOLDEN * (1 + 2e-6 * signs)
    row = compare(better, better, worse)
    assert row.verdict == "pass"
    bounds = {"relative_euclidean_distance": 1e-6}
    assert compare(better, better, worse, **bounds).verdict == "fail"
    again = rejudge(row, judge(**bounds))
    assert (again.verdict, again.notes[-1]) == ("fail", "another of its replicas")
    assert again.metrics["relative_euclidean_distance"] == pytest.approx(2e-6, rel=0.1)
    assert rejudge(row, judge()).verdict == "pass"
    assert not [name for name in compare(better, better).statistics if name.startswith("replica")]


def test_pairs_of_statistics_are_judged_again(compare: Compare) -> None:
    def stated(tensor: torch.Tensor) -> Operand:
        t = tensor.double()
        found = Statistics(t.max().item(), t.min().item(), t.mean().item(), t.norm().item())
        header = TensorHeader(by_name("float32"), tuple(tensor.shape), "statistics", statistics=found)
        ref: Any = _Header(header)
        return Operand("n", "n", "Linear", "output[0]", (ref,))

    row = compare_pair(_pair(stated(GOLDEN), stated(GOLDEN * (1 + 1e-6))), judge(), "id", 0)
    assert row.verdict == "pass"
    assert rejudge(row, judge()) == row
    strict = rejudge(row, judge(max_stat_absolute_error=1e-9))
    assert strict.verdict == "fail"
    assert "statistics only" in strict.sentence


class _Header:
    """Stands for a file of which the header is all there is."""

    def __init__(self, header: TensorHeader) -> None:
        self._header = header

    def header(self) -> TensorHeader:
        return self._header

    def __str__(self) -> str:
        return "stated"


def test_what_was_incomparable_stays_so_and_causes_are_found_anew(compare: Compare) -> None:
    row = compare(torch.ones(3))
    assert rejudge(replace(row, strict=True), judge()) == row


@pytest.mark.parametrize(
    "change",
    [{"numel": "many"}, {"golden_dtype": 3}, {"golden_rms": "x"}, {"shape": "axb"}, {"compared": None}],
)
def test_statistics_that_are_not_whole_are_no_pass(compare: Compare, change: dict[str, Any]) -> None:
    row = compare(GOLDEN.half())
    again = rejudge(replace(row, statistics={**row.statistics, **change}), judge())
    assert (again.verdict, again.red) == ("incomparable", True)
    without = {name: value for name, value in row.statistics.items() if name not in change}
    assert rejudge(replace(row, statistics=without), judge()).sentence.startswith(
        "cannot be judged without data"
    )


def test_what_differs_in_shape_is_incomparable_again_but_what_the_run_was_fed_is_judged() -> None:
    said = ("golden has 2 tokens", "mine 3")
    given = Row("id", "inherited", "follows", shapes_differ=True, skipped=True, reasons=said)
    again = rejudge(given, judge())
    assert (again.verdict, again.sentence, again.skipped) == ("incomparable", "; ".join(said), True)
    fed = replace(given, fed="mask", verdict="fail")
    assert rejudge(fed, judge()).verdict == "fail"


def test_other_shapes_that_rounding_explained_are_looked_at_again() -> None:
    passed = as_accumulated(
        Row("id", "incomparable", "13 rows and 14", shapes_differ=True, reasons=("13 rows and 14",)),
        0.0,
    )
    assert (passed.verdict, passed.red) == ("tie", False)
    again = rejudge(passed, judge())
    assert (again.verdict, again.sentence) == ("incomparable", "13 rows and 14")
    assert may_accumulate(again)


def test_an_error_of_the_rules_is_the_reason_why_a_row_cannot_be_judged(compare: Compare) -> None:
    def broken() -> Judge:
        raise AccError("no such rule")

    again = rejudge(compare(GOLDEN), broken)
    assert (again.verdict, again.sentence) == ("incomparable", "no such rule")


def test_a_metric_that_was_not_measured_then_cannot_be_judged_now(compare: Compare) -> None:
    row = compare(GOLDEN.half())
    rule = rule_from_table({"snr": {"max": 3}}, "x.toml", custom=["snr"])
    again = rejudge(row, lambda: Judge((rule,)))
    assert again.sentence == (
        "cannot be judged without data: the metric snr was not measured when the rows were written"
    )
    measured = replace(row, custom={"snr": 7.0})
    assert rejudge(measured, lambda: Judge((rule,))).verdict == "fail"
    off = rule_from_table({"snr": False}, "x.toml", custom=["snr"])
    assert rejudge(row, lambda: Judge((off,))).verdict == "pass"


def check(metric: str, passed: bool) -> Check:
    return Check(metric, 0.5 if passed else 2.0, 1.0, False, "", passed)


@pytest.mark.parametrize(
    ("verdict", "checks", "expected", "sentence"),
    [
        ("fail", (check("a", True), check("baseline.a", False)), "pass", "all 1 bounds hold"),
        ("known", (check("a", False), check("baseline.a", False)), "fail", "a 2 is not <= 1"),
        ("known", (check("a", True), check("baseline.a", False)), "pass", "all 1 bounds hold"),
        ("fail", (check("a", False),), "fail", "said"),
        ("pass", (check("a", True), check("baseline.a", True)), "pass", "said"),
        ("fail", (), "fail", "said"),
    ],
)
def test_what_gates_made_of_a_row_is_taken_back(
    verdict: str, checks: tuple[Check, ...], expected: str, sentence: str
) -> None:
    found = ungated(Row("id", verdict, "said", checks=checks, notes=("baseline: x", "kept")))
    assert (found.verdict, found.sentence, found.notes) == (expected, sentence, ("kept",))
    assert not [one for one in found.checks if one.metric.startswith("baseline.")]
