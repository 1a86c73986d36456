"""Thresholds from noise runs: green on what they were made of, and honest about what is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest.judging.calibration import Calibration, Sample, calibrated, needed
from acc_pytest.judging.rules import rule_from_table
from acc_pytest.judging.threshold import JudgeContext
from acc_pytest.judging.thresholds import thresholds_for
from acc_pytest.judging.verdict import judge
from acc_pytest.metrics.kernel import measure
from acc_pytest.tensors.source import TensorSource


def sample(
    golden: torch.Tensor, mine: torch.Tensor, op_type: str = "Linear", path: str = "root.x", depth: int = 0
) -> Sample:
    context = JudgeContext(golden_op_type=op_type, golden_path=path, depth=depth, length=64)
    return Sample(context, measure(TensorSource(golden), TensorSource(mine)))


def samples(count: int, size: float, spread: float = 0.2, **more: Any) -> list[Sample]:
    """`count` tensors of 4096 elements, each with noise of its own size around `size`."""
    generator = torch.Generator().manual_seed(count)
    found = []
    for _ in range(count):
        golden = torch.randn(4096, generator=generator)
        own = size * math.exp(spread * float(torch.randn(1, generator=generator)))
        noise = own * torch.randn(4096, generator=generator)
        found.append(sample(golden, (golden + noise).half(), **more))
    return found


def fails(one: Sample, calibration: Calibration) -> bool:
    rules = [rule_from_table(table, "t.toml") for table in calibration.tables]
    return judge(one.measurement, thresholds_for(one.context, one.measurement, rules)).verdict == "fail"


def verdict_with_factor(one: Sample, factor: float) -> str:
    rules = [rule_from_table({"factor": factor}, "t.toml")]
    return judge(one.measurement, thresholds_for(one.context, one.measurement, rules)).verdict


@pytest.mark.parametrize("depth", [0, 31])
@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.05])
def test_needed_is_the_factor_at_which_the_verdict_turns(size: float, depth: int) -> None:
    (one,) = samples(1, size, depth=depth)
    factor = needed(one)
    assert factor is not None
    assert verdict_with_factor(one, factor * 1.0001) == "pass"
    assert verdict_with_factor(one, factor * 0.9999) == "fail"


def test_an_element_that_leaves_the_rest_decides_the_need() -> None:
    golden = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    mine = golden.clone()
    mine[7] += 0.2
    one = sample(golden, mine.half())
    factor = needed(one)
    assert factor is not None
    assert verdict_with_factor(one, factor * 1.0001) == "pass"
    assert verdict_with_factor(one, factor * 0.9999) == "fail"


@pytest.mark.parametrize(("count", "enough"), [(98, False), (99, True), (300, True)])
def test_the_factor_is_the_margin_times_the_quantile(count: int, enough: bool) -> None:
    made = samples(count, 2e-3)
    (group,) = calibrated(made, quantile=0.99, margin=2.0).groups
    needs = [need for one in made if (need := needed(one)) is not None]
    fit = statistics.NormalDist.from_samples(np.log(needs).tolist())
    wanted = max(needs) if enough else max(max(needs), math.exp(fit.inv_cdf(0.99)))
    assert group.enough is enough
    assert group.samples == count
    assert 2 * wanted <= group.factor <= 2 * wanted * 1.01
    assert group.largest == max(needs)
    assert group.quantile == (pytest.approx(count / (count + 1)) if enough else 0.99)
    assert group.alarms == pytest.approx(count * (1 - fit.cdf(math.log(group.factor))))
    assert calibrated(made).groups == (group,)
    assert ("extrapolated" in group.reason) is not enough


def test_the_calibration_runs_are_green_by_construction() -> None:
    """Whatever they hold: sizes beyond the cap, zeros, integers, NaN and infinities, single elements."""
    zero, golden = torch.zeros(64), torch.randn(64, generator=torch.Generator().manual_seed(2))
    broken = golden.half()
    broken[3] = math.inf
    lost = golden.clone()
    lost[5] = math.nan
    made: Sequence[Sample] = [
        *samples(20, 1e-3),
        *samples(9, 0.6, op_type="Gate"),
        *samples(3, 1e-3, op_type="Few"),
        sample(zero, torch.full((64,), 1e-3).half(), path="root.mask"),
        sample(golden, golden.half(), path="root.mask"),
        sample(golden, broken, path="root.overflow"),
        sample(lost, golden.half(), path="root.lost"),
        sample(torch.arange(9), torch.arange(9) + (torch.arange(9) == 4), path="root.topk"),
        sample(torch.arange(9), torch.arange(9), path="root.ids"),
        sample(torch.ones(1), torch.full((1,), 1.5).half(), path="root.one"),
        sample(golden, golden, op_type="Same"),
        sample(golden, golden.half(), op_type=""),
    ]
    assert any(
        judge(one.measurement, thresholds_for(one.context, one.measurement)).verdict == "fail" for one in made
    )
    calibration = calibrated(made)
    assert not any(fails(one, calibration) for one in made)
    assert {table["match"].get("name") for table in calibration.exceptions} >= {
        "root.mask",
        "root.overflow",
        "root.lost",
        "root.topk",
    }


def test_calibrated_thresholds_still_fail_what_is_ten_times_the_noise() -> None:
    calibration = calibrated(samples(200, 1e-3, spread=0.05))
    assert all(fails(one, calibration) for one in samples(20, 1e-2, spread=0.05))


def test_expected_false_alarms_are_those_of_further_runs() -> None:
    """Two thousand further tensors of the same kind, without a margin: the count is near what was said."""
    made = samples(120, 2e-3)
    calibration = calibrated(made, runs=1, quantile=0.9, margin=1.0)
    further = samples(2000, 2e-3)
    seen = sum(fails(one, calibration) for one in further) / 2000
    assert calibration.size == 120
    said = calibration.alarms / calibration.size
    # at most the largest of 120 is exceeded: 1/121 on average; a count of 2000 * 1/121 scatters by 4
    assert abs(seen - said) < 0.015
    assert calibration.ceiling / calibration.size == pytest.approx(1 / 121)


def test_a_run_of_several_is_as_large_as_one() -> None:
    made = samples(40, 1e-3)
    assert calibrated(made, runs=4).size == 10
    assert calibrated(made, runs=4).ceiling == pytest.approx(10 / 41)


def test_few_samples_keep_t_and_say_so() -> None:
    (group,) = calibrated(samples(5, 1e-4)).groups
    assert group.factor == 1.0
    assert group.reason == "calibrated: 5 samples are too few for a quantile"
    assert group.alarms == 0.0
    (group,) = calibrated(samples(5, 0.02), runs=5).groups
    assert group.factor > 2
    assert (group.enough, group.quantile) == (False, 0.0)
    assert group.alarms == pytest.approx(1 / 6)  # one of six tensors is the largest, and a run has one


def test_samples_that_are_all_alike_have_no_deviation_to_extrapolate() -> None:
    (made,) = samples(1, 0.02)
    (group,) = calibrated([made] * 20).groups
    assert group.factor == pytest.approx(2 * group.largest, rel=0.01)
    assert group.alarms == 0.0


def test_counts_are_taken_as_they_are_and_errors_with_the_margin() -> None:
    golden = torch.randn(64, generator=torch.Generator().manual_seed(2))
    broken = golden.half()
    broken[3:7] = math.inf
    zero = torch.zeros(64)
    made = [
        sample(golden, broken, path="root.overflow"),
        sample(zero, torch.full((64,), 1e-3), path="root.zero"),
        sample(torch.arange(9), torch.arange(9) + 1, path="root.ids"),
    ]
    tables = {table["match"]["name"]: table for table in calibrated(made, margin=3.0).exceptions}
    assert tables["root.overflow"]["new_nonfinite"] == 4
    assert tables["root.ids"]["mismatches"] == 9
    assert tables["root.zero"]["max_absolute_error"] == pytest.approx(3e-3, rel=0.01)


def test_an_element_beyond_the_cap_gets_the_t_that_it_needs() -> None:
    """T bounds an element by 8 rms, so an error of 3 rms needs T = 3/8, though the distance is 3/64."""
    golden = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    golden /= golden.norm() / 64
    mine = golden.clone()
    mine[7] += 3
    far = sample(golden, mine, path="root.far")
    calibration = calibrated([far], margin=1.0)
    (table,) = calibration.exceptions
    assert table["match"]["name"] == "root.far"
    assert table["relative_euclidean_distance"] == pytest.approx(3 / 8, rel=0.01)
    assert not fails(far, calibration)


def test_a_factor_is_never_below_one_rounding_and_one_sum() -> None:
    (group,) = calibrated(samples(20, 1e-9, spread=0.0)).groups
    golden = torch.randn(64)
    (exact,) = calibrated([sample(golden, golden)] * 20).groups
    assert exact.factor == 1 / 8
    assert group.factor >= 1 / 8


def test_a_type_of_mine_is_told_from_golden_s() -> None:
    """A noise run in float32 must not tighten what holds for float16 against the same golden."""
    fine = [sample(g, g + 1e-7 * g.abs().max()) for g in (torch.randn(64) for _ in range(20))]
    calibration = calibrated(fine)
    golden = torch.randn(64)
    assert not fails(sample(golden, golden.half()), calibration)
