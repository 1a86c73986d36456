"""`Judge`: two tensors in, what was measured and judged of them out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acc_pytest.judging import judges
from acc_pytest.judging.judges import Judge
from acc_pytest.judging.rules import rule_from_table
from acc_pytest.judging.standards import STANDARDS
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.metrics.kernel import CustomMetric, measure
from acc_pytest.metrics.measurement import Measurement
from acc_pytest.tensors.source import Source, TensorSource

GOLDEN = TensorSource(torch.ones(8))
MINE = TensorSource(torch.ones(8) + 3e-5)


def test_elements_are_counted_as_the_standard_wants_them_under_the_rules() -> None:
    rule = rule_from_table({"factor": 4, "match": {"mine_dtype": "float32"}}, "x.toml")
    for rules, factor, verdict in (((), 1, "fail"), ((rule,), 4, "pass")):
        measurement, judgement = Judge(rules, standard=STANDARDS["torch"]).tensors(
            JudgeContext(), GOLDEN, MINE
        )
        assert (measurement.rtol, measurement.atol) == pytest.approx((factor * 1.3e-6, factor * 1e-5))
        assert judgement.verdict == verdict


def test_custom_metrics_are_measured_and_judged() -> None:
    metric = CustomMetric("count", "x.py:count", lambda golden, mine: (golden.numel(), "elements"))
    rule = rule_from_table({"count": {"max": 7}}, "x.toml", ("count",))
    measurement, judgement = Judge((rule,), (metric,)).tensors(JudgeContext(), GOLDEN, GOLDEN)
    assert measurement.custom == {"count": (8.0, "elements")}
    assert judgement.sentence == "count 8 is 1.1 times the allowed 7"


def test_an_output_is_measured_as_the_type_that_its_operator_writes() -> None:
    context = JudgeContext(mine_op_type="SoftmaxOperation", written="float16", op_class="COMPUTE_FLOAT")
    golden, mine = TensorSource(torch.ones(4)), TensorSource(torch.ones(4) + 2.0**-9)
    measurement, judgement = Judge(standard=STANDARDS["ascend"]).tensors(context, golden, mine)
    assert measurement.elements is not None
    assert measurement.elements.max_ulp_error == 2.0  # of float16, whose steps at 1 are 2^-10
    assert {check.metric: check.allowed for check in judgement.checks}["max_scaled_error"] == 2.0**-8
    assert judgement.verdict == "pass"


def test_numbers_that_take_more_than_two_tensors_are_judged_too() -> None:
    context = JudgeContext(written="float16", op_class="COMPUTE_FLOAT")
    judge = Judge(standard=STANDARDS["distribution"])
    for p, verdict in ((0.01, "fail"), (0.5, "pass")):
        measurement, judgement = judge.tensors(context, GOLDEN, MINE, {"ks_p_value": p})
        assert measurement.further == {"ks_p_value": p}
        assert judgement.verdict == verdict


@pytest.mark.parametrize(("off", "times"), [(0.9999, 1), (1 - 1e-7, 2), (1.0, 2), (1 + 1e-7, 2), (1.0001, 1)])
def test_what_lies_within_rounding_of_a_bound_is_decided_in_float64(
    off: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    golden = torch.randn(64, 64)
    mine = golden + 1e-3 * torch.randn(64, 64)
    sides = TensorSource(golden), TensorSource(mine)
    exact = measure(*sides, double=True).mean_absolute_error
    assert exact is not None
    asked: list[bool] = []

    def watched(*sides: Source, double: bool = False, **options: Any) -> Measurement:
        asked.append(double)
        return measure(*sides, double=double, **options)

    monkeypatch.setattr(judges, "measure", watched)
    rule = rule_from_table({"mean_absolute_error": off * exact}, "x.toml")
    measurement, judgement = Judge((rule,)).tensors(JudgeContext(), *sides)
    assert asked == [False, True][:times]
    assert {check.metric: check.passed for check in judgement.checks}["mean_absolute_error"] == (off >= 1)
    assert times == 1 or measurement.mean_absolute_error == exact


def test_counts_of_whole_numbers_and_equal_tensors_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(*sides: Source, double: bool = False, **options: Any) -> Measurement:
        assert not double
        return measure(*sides, **options)

    monkeypatch.setattr(judges, "measure", once)
    rule = rule_from_table({"max_absolute_error": 0}, "x.toml")
    for golden in (torch.arange(8), torch.arange(8.0)):
        source = TensorSource(golden)
        assert Judge((rule,)).tensors(JudgeContext(), source, source)[1].verdict == "pass"


def test_elements_beside_nan_are_counted_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels differ in which elements they then compare with the tolerance in float32."""
    golden = torch.ones(64)
    golden[3] = torch.nan
    source = TensorSource(golden)
    asked: list[bool] = []

    def watched(*sides: Source, double: bool = False, **options: Any) -> Measurement:
        asked.append(double)
        return measure(*sides, double=double, **options)

    monkeypatch.setattr(judges, "measure", watched)
    Judge(standard=STANDARDS["torch"]).tensors(JudgeContext(), source, TensorSource(golden + 1e-6))
    assert asked == [False, True]
