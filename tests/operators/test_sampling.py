from __future__ import annotations

import ctypes
import ctypes.util
import sys
from itertools import islice

import pytest
import torch

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
from acc_pytest.operators.routing import rand

TOPK = "TopkToppSamplingOperation"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="compares with glibc")
@pytest.mark.parametrize("seed", [0, 1, 42, 2**31 - 1, 2**31, 2**31 + 5, 2**32 - 1])
def test_numbers_are_those_of_glibc(seed: int) -> None:
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    libc.srand(ctypes.c_uint(seed))
    theirs = [libc.rand() / (2**31 - 1) for _ in range(600)]
    assert list(islice(rand(seed), 600)) == theirs


def test_multinomial_takes_the_first_place_above_the_number() -> None:
    probs = torch.tensor([[0.25, 0.25, 0.5], [0.0, 1.0, 0.0]]).half()
    (out,) = compute("MultinomialOperation", {"numSamples": 5, "randSeed": 3}, [probs])
    numbers = list(islice(rand(3), 5))
    assert out[0].tolist() == [0 if r < 0.25 else 1 if r < 0.5 else 2 for r in numbers]
    assert out[1].tolist() == [1] * 5


def test_topk_and_topp_leave_only_the_likely() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).half()
    for seed in range(20):
        param = {"topkToppSamplingType": 0, "topk": 4, "randSeed": seed}
        index, prob = compute(TOPK, param, [probs, torch.tensor([[0.75]]).half()])
        assert index.item() in (1, 3)
        assert prob.item() == probs[0, int(index)].item()


def test_each_row_has_its_own_seed() -> None:
    probs = torch.full((3, 8), 0.125).half()
    topk, topp = torch.full((3, 1), 7).int(), torch.ones(3, 1).half()
    param = {"topkToppSamplingType": 1, "randSeeds": [5, 6, 5]}
    index, _ = compute(TOPK, param, [probs, topk, topp])
    assert index[0] == index[2]
    with pytest.raises(OperatorError, match="randSeeds has 1 entries for 3 rows"):
        compute(TOPK, {**param, "randSeeds": [5]}, [probs, topk, topp])


def test_noise_decides_among_the_kept() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2]]).half()
    noise = torch.tensor([[1.0, 0.1, 0.001]]).half()
    inputs = [probs, torch.tensor([[2]]).int(), torch.tensor([[0.9]]).half(), noise]
    assert compute(TOPK, {"topkToppSamplingType": 2}, inputs)[0].item() == 1


def test_logarithms_are_relative_to_what_is_kept() -> None:
    probs = torch.tensor([[0.125, 0.5, 0.25, 0.125]])
    inputs = [probs, torch.tensor([[3]]).int(), torch.tensor([[0.9]]), torch.tensor([[0.0]])]
    index, _, logs = compute(TOPK, {"topkToppSamplingType": 3, "logProbsSize": 3}, inputs)
    assert index.item() == 1
    # 0.5 + 0.25 stays below 0.9, and 0.875 too; the last kept is the rank before the sum that reaches it
    assert logs.exp()[0, :3].tolist() == pytest.approx([0.5 / 0.875, 0.25 / 0.875, 0.125 / 0.875])
    _, _, logs = compute(TOPK, {"topkToppSamplingType": 3, "logProbsSize": 4}, inputs)
    assert logs[0, 3].item() == -9999.0


def test_the_kind_has_to_be_given() -> None:
    kind = {"topkToppSamplingType": -1}
    with pytest.raises(OperatorError, match="topkToppSamplingType is missing"):
        compute(TOPK, kind, [torch.ones(1, 2), torch.ones(1, 1).int(), torch.ones(1, 1)])
