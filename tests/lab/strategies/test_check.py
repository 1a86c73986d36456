"""`strategies.check`: outputs of a drawn case against the reference computation, by a standard of opcheck."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from acc_pytest.errors import SettingsError
from acc_pytest.lab import strategies
from acc_pytest.lab.strategies.device import DrawnCase
from acc_pytest.operators import compute

TRANSPOSE = DrawnCase("TransposeOperation", {"perm": [1, 0]}, (torch.ones(2, 3),))


@pytest.mark.parametrize("operator", ["LinearOperation", "KvCacheOperation", "TopkToppSamplingOperation"])
def test_what_our_operator_computes_passes(operator: str) -> None:
    @settings(max_examples=5, deadline=None, database=None, derandomize=True)
    @given(strategies.cases(operator))
    def passes(case: DrawnCase) -> None:
        assert strategies.check(case, compute(case.operator, case.param, case.inputs)) == []

    passes()


def test_the_number_the_shape_the_dtype_and_the_values_of_outputs_are_checked() -> None:
    right = torch.ones(3, 2)
    assert strategies.check(TRANSPOSE, []) == ["0 outputs, not 1"]
    for wrong in (torch.ones(2, 3), right.half(), right * 2, right * torch.nan):
        (sentence,) = strategies.check(TRANSPOSE, [wrong])
        assert sentence.startswith("output[0]: ")


def test_another_standard_judges_when_it_is_named() -> None:
    case = DrawnCase("SoftmaxOperation", {"axes": [0]}, (torch.ones(2, dtype=torch.float16),))
    nearly = torch.tensor([0.5, 0.5015], dtype=torch.float16)
    assert strategies.check(case, [nearly], "msit")[0].startswith("output[0]: rel_precision_rate")
    assert strategies.check(case, [nearly]) == []
    with pytest.raises(SettingsError, match="no such standard"):
        strategies.check(case, [nearly], "strict")
