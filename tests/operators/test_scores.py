"""Long sequences are computed head by head, with the same result."""

from __future__ import annotations

import pytest
import torch

from acc_pytest.operators import compute, scores


@pytest.mark.parametrize("mask", ["none", "plane", "alibi"])
@pytest.mark.parametrize("groups", [2, 4])
def test_head_by_head_is_the_same_as_all_heads_together(
    mask: str, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    heads, size, n = 4, 8, 6
    query, key, value = (torch.randn(n, count * size).half() for count in (heads, groups, groups))
    plane = torch.full((n, n), -10000.0).triu(1).half()
    planes = plane + torch.arange(heads).half()[:, None, None] * torch.arange(n).half()
    param = {"headNum": heads, "kvHeadNum": groups, "qkScale": 0.5, "calcType": 3}
    param["maskType"] = {"none": 0, "plane": 1, "alibi": 2}[mask]
    given = {"none": [], "plane": [plane], "alibi": [planes]}[mask]
    inputs = [query, key, value, *given, torch.tensor([n], dtype=torch.int32)]
    (together,) = compute("SelfAttentionOperation", param, inputs)
    monkeypatch.setattr(scores, "_SCORES_AT_ONCE", 0)
    (apart,) = compute("SelfAttentionOperation", param, inputs)
    # float32 sums may be taken in another order; half a spacing of float16 hides all but ties
    torch.testing.assert_close(apart, together, rtol=2**-10, atol=2**-24)
    (exact,) = compute("SelfAttentionOperation", param, inputs, accumulate=torch.float64, round_outputs=False)
    torch.testing.assert_close(apart.double(), exact, rtol=2**-10, atol=2**-20)
