"""`Judge`: two tensors in, what was measured and judged of them out."""

from __future__ import annotations

import pytest
import torch

from acc_pytest.judging.judges import Judge
from acc_pytest.judging.rules import rule_from_table
from acc_pytest.judging.standards import STANDARDS
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.metrics.custom import CustomMetric
from acc_pytest.tensors.source import TensorSource

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
