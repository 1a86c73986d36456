from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute

RAZOR = "RazorFusionAttentionOperation"


def hidden(p: dict[str, int]) -> torch.Tensor:
    """Pair by pair: text sees all and is seen, pictures a band of blocks around the token's own place."""
    length = p["razorLen"]
    rows, columns = length * p["tileQ"] + p["textQLen"], length * p["tileKv"] + p["textKvLen"]
    mask = torch.zeros(rows, columns, dtype=torch.float64)
    for i in range(length * p["tileQ"]):
        for j in range(length * p["tileKv"]):
            own, other = i % length // 128, j % length // 128
            if not own - p["preTokens"] // 128 < other < own + p["nextTokens"] // 128:
                mask[i, j] = -10000
    return mask


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize(
    "lengths",
    [
        {
            "razorLen": 300,
            "tileQ": 1,
            "tileKv": 2,
            "textQLen": 3,
            "textKvLen": 7,
            "preTokens": 128,
            "nextTokens": 256,
        },
        {
            "razorLen": 257,
            "tileQ": 2,
            "tileKv": 1,
            "textQLen": 0,
            "textKvLen": 5,
            "preTokens": 256,
            "nextTokens": 128,
        },
        {
            "razorLen": 0,
            "tileQ": 0,
            "tileKv": 0,
            "textQLen": 4,
            "textKvLen": 6,
            "preTokens": 0,
            "nextTokens": 0,
        },
        {
            "razorLen": 130,
            "tileQ": 1,
            "tileKv": 1,
            "textQLen": 2,
            "textKvLen": 2,
            "preTokens": 0,
            "nextTokens": 0,
        },
    ],
)
def test_pictures_see_a_band_and_text_sees_all(lengths: dict[str, int], spread: bool) -> None:
    mask = hidden(lengths)
    rows, columns = mask.shape
    query, key, value = (torch.randn(2, n, 8, dtype=torch.float64) for n in (rows, columns, columns))
    param = {"qkScale": 0.25, **lengths}
    inputs = [one.flatten(0, 1) for one in (query, key, value)]
    inputs = [one[:, None] for one in inputs] if spread else inputs
    (out,) = compute(RAZOR, param, inputs, accumulate=torch.float64, round_outputs=False)
    assert out.shape == inputs[0].shape
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.25)
    torch.testing.assert_close(out.reshape(2, rows, 8), expected)


def test_lengths_that_do_not_fit_are_named() -> None:
    x = torch.ones(5, 8)
    with pytest.raises(OperatorError, match="are not sequences of 4 queries and 4 keys"):
        compute(RAZOR, {"textQLen": 4, "textKvLen": 4}, [x, x, x])
    with pytest.raises(OperatorError, match="preTokens 5 and nextTokens 0 are not multiples of 128"):
        compute(RAZOR, {"textQLen": 5, "textKvLen": 5, "preTokens": 5}, [x, x, x])
