from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from acc_pytest.base.older_torch import rms_norm
from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute, operator_of
from acc_pytest.operators.layout import nd_to_nz, nz_to_nd
from acc_pytest.operators.linear import BLOCK

LINEAR = "LinearOperation"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8)])
def test_a_wide_weight_is_multiplied_by_blocks_of_columns(transposed: bool, shape: tuple[int, ...]) -> None:
    x, w = torch.randn(shape).half(), torch.randn(BLOCK * 2 + 5, 8).half()
    param = {"hasBias": False, "transposeB": transposed}
    (out,) = compute(
        LINEAR, param, [x, w if transposed else w.T], accumulate=torch.float64, round_outputs=False
    )
    torch.testing.assert_close(out, F.linear(x.double(), w.double()), rtol=1e-14, atol=1e-14)


def test_the_product_of_the_old_library() -> None:
    x, y = torch.randn(2, 3).half(), torch.randn(3, 4).half()
    (out,) = compute("MatmulOperation", {}, [x, y])
    assert torch.equal(out, (x.float() @ y.float()).half())
    (turned,) = compute("MatmulOperation", {"transposeA": True, "transposeB": True}, [x.T, y.T])
    assert torch.equal(turned, out)


def test_a_bias_is_added_to_the_rounded_product() -> None:
    x, w = torch.tensor([[1.0]]).half(), torch.tensor([[1.0]]).half()
    bias = torch.tensor([2.0**-11]).half()
    assert compute(LINEAR, {}, [x, w, bias])[0].item() == 1.0
    (exact,) = compute(LINEAR, {}, [x, w, bias], round_outputs=False)
    assert exact.item() == 1.0 + 2.0**-11


def test_operands_of_int8_may_come_before_they_are_rounded() -> None:
    """In float64, as what is computed from golden's inputs has them; other floats have no scale."""
    x, scale = torch.tensor([[1.25, -3.5]]), torch.tensor([0.5])
    w = torch.tensor([[2, 1]], dtype=torch.int8)
    param = {"hasBias": False, "outDataType": 27}
    (out,) = compute(LINEAR, param, [x.double(), w, scale], accumulate=torch.float64, round_outputs=False)
    assert out.tolist() == [[-0.5]]
    with pytest.raises(OperatorError, match="deqScale is given, but x is"):
        compute(LINEAR, param, [x.half(), w, scale])


@pytest.mark.parametrize(
    ("param", "inputs", "message"),
    [
        (
            {"hasBias": False},
            [torch.ones(2, 3), torch.ones(4, 5)],
            r"weight \[4, 5\] do not mul",
        ),
        ({}, [torch.ones(2, 3), torch.ones(4, 3), torch.ones(5)], "row of 5 values does not fit 4 columns"),
        (
            {"hasBias": False},
            [torch.ones(2, 3).char(), torch.ones(4, 3).char()],
            "operands need deqScale",
        ),
        ({"hasBias": False}, [torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)], "deqScale is given, but x"),
        ({"hasBias": False}, [torch.ones(2, 3), torch.ones(3)], "weight has 1 dimensions"),
    ],
)
def test_operands_that_do_not_fit(param: dict[str, object], inputs: list[torch.Tensor], message: str) -> None:
    with pytest.raises(OperatorError, match=f"LinearOperation: .*{message}"):
        compute(LINEAR, param, inputs)


ONE, SOME = "MmDeqSwigluQuantMmDeqOperation", "GmmDeqSwigluQuantGmmDeqOperation"


def interleaved(columns: torch.Tensor, tile: int) -> torch.Tensor:
    """Half a tile of the gate, half a tile of the value, and so on: column by column."""
    half, width = columns.shape[-1] // 2, tile // 2
    order = []
    for start in range(0, half, width):
        order += [*range(start, start + width), *range(half + start, half + start + width)]
    return columns[..., order].contiguous()


def mlp(x: torch.Tensor, up: torch.Tensor, scale_up: torch.Tensor, rows: torch.Tensor,
        down: torch.Tensor, scale_down: torch.Tensor) -> torch.Tensor:  # fmt: skip
    """Row by row in float64; the product before the activation is float16."""
    result = []
    for row, scale in zip(x.double(), rows.double()):
        hidden = ((row @ up.double()) * scale_up.double() * scale).float().half().double()
        gate, value = hidden.tensor_split(2)
        activated = gate / (1 + (-gate).exp()) * value
        step = activated.abs().max() / 127
        result.append((activated / step).round() @ down.double() * scale_down.double() * step)
    return torch.stack(result)


def operands(groups: int, m: int = 5, k: int = 32, n: int = 256) -> list[torch.Tensor]:
    up, down = torch.randint(-16, 16, (groups, k, n)), torch.randint(-16, 16, (groups, n // 2, k))
    scale_up, scale_down = torch.rand(groups, n) / 50 + 0.01, torch.rand(groups, k) / 50
    x, rows = torch.randint(-16, 16, (m, k)), torch.rand(m) / 10 + 0.05
    return [x.to(torch.int8), up.to(torch.int8), scale_up, rows, down.to(torch.int8), scale_down]


@pytest.mark.parametrize(("kind", "tile"), [(0, 256), (1, 128)])
@pytest.mark.parametrize("nz", [False, True])
def test_one_expert(kind: int, tile: int, nz: bool) -> None:
    x, up, scale_up, rows, down, scale_down = operands(1)
    weights = [interleaved(up[0], tile), down[0].T.contiguous()]
    if nz:
        weights = [nd_to_nz(weight[None], 32) for weight in weights]
    param = {"weightUpPermuteType": kind, "outputType": 1}
    inputs = [x, weights[0], interleaved(scale_up[0], tile), rows, weights[1], scale_down[0]]
    (out,) = compute(ONE, param, inputs)
    assert out.dtype == torch.bfloat16
    expected = mlp(x, up[0], scale_up[0], rows, down[0], scale_down[0])
    torch.testing.assert_close(out.double(), expected, rtol=2.0**-8, atol=0.02)


@pytest.mark.parametrize("counted", [False, True])
def test_experts_take_the_rows_of_their_groups(counted: bool) -> None:
    x, up, scale_up, rows, down, scale_down = operands(3)
    groups = torch.tensor([2, 0, 2] if counted else [2, 2, 4])
    inputs = [
        x,
        interleaved(up, 256).transpose(1, 2),
        interleaved(scale_up, 256),
        rows,
        groups,
        down,
        scale_down,
    ]
    param = {"groupListType": int(counted), "transposeWeightUp": True, "transposeWeightDown": False}
    (out,) = compute(SOME, param, inputs)
    first = mlp(x[:2], up[0], scale_up[0], rows[:2], down[0], scale_down[0])
    last = mlp(x[2:4], up[2], scale_up[2], rows[2:4], down[2], scale_down[2])
    expected = torch.cat((first, last, torch.zeros(1, 32)))
    torch.testing.assert_close(out.double(), expected, rtol=2.0**-10, atol=0.02)


def test_columns_that_are_no_whole_tiles_are_refused() -> None:
    x, up, scale_up, rows, down, scale_down = operands(1, n=64)
    with pytest.raises(OperatorError, match="64 columns of weightUp are not whole tiles of 256"):
        compute(ONE, {"transposeWeightDown": False}, [x, up[0], scale_up[0], rows, down[0], scale_down[0]])
    with pytest.raises(OperatorError, match=r"weightUp is torch.float32 and not int8"):
        compute(ONE, {}, [x, up[0].float(), scale_up[0], rows, down[0], scale_down[0]])


MLA = "MlaPreprocessOperation"
TOKENS, HIDDEN, LATENT, ROPE, RANK, HEADS, NOPE = 3, 64, 32, 16, 48, 2, 24


def packed(scale: torch.Tensor) -> torch.Tensor:
    """float32 in the low half of int64."""
    return scale.view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def preprocess_operands(mode: int = 0) -> dict[str, torch.Tensor]:
    def whole(low: int, high: int, *size: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
        return torch.randint(low, high, size).to(dtype)

    first, second = LATENT + ROPE + RANK, HEADS * (NOPE + ROPE)
    caches = {
        0: [torch.randn(4, 16, 1, LATENT + ROPE).half(), torch.empty(0).half()],
        1: [torch.randn(4, 16, 1, LATENT).half(), torch.randn(4, 16, 1, ROPE).half()],
        2: [whole(-9, 9, 4, LATENT // 32, 16, 32), torch.randn(4, ROPE // 16, 16, 16).half()],
        3: [torch.randn(4, LATENT // 16, 16, 16).half(), torch.randn(4, ROPE // 16, 16, 16).half()],
    }[mode]
    return {
        "input": torch.randn(TOKENS, HIDDEN).half(),
        "gamma0": torch.randn(HIDDEN).half(),
        "beta0": torch.randn(HIDDEN).half(),
        "quantScale0": torch.tensor([0.05]).half(),
        "quantOffset0": torch.tensor([3], dtype=torch.int8),
        "wdqkv": whole(-3, 4, first, HIDDEN),
        "deScale0": packed(torch.rand(first) / 1000),
        "bias0": whole(-10, 10, 1, first, dtype=torch.int32),
        "gamma1": torch.randn(RANK).half(),
        "beta1": torch.randn(RANK).half(),
        "quantScale1": torch.tensor([0.04]).half(),
        "quantOffset1": torch.tensor([-7], dtype=torch.int8),
        "wuq": whole(-3, 4, second, RANK),
        "deScale1": packed(torch.rand(second) / 1000),
        "bias1": whole(-10, 10, 1, second, dtype=torch.int32),
        "gamma2": torch.randn(LATENT).half(),
        "cos": torch.randn(TOKENS, ROPE).half(),
        "sin": torch.randn(TOKENS, ROPE).half(),
        "wuk": torch.randn(HEADS, NOPE, LATENT).half(),
        "kvCache": caches[0],
        "kvCacheRope": caches[1],
        "slotMapping": torch.tensor([33, -1, 5], dtype=torch.int32),
        "ctkvScale": torch.tensor([0.03]).half(),
        "qNopeScale": torch.rand(1, HEADS, 1).half() * 50,
    }


def rms(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, x.shape[-1:], gamma.double(), 1e-6)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = ROPE // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos.double() + swapped * sin.double()


def pieces(t: dict[str, torch.Tensor], by_token: bool = False) -> tuple[torch.Tensor, ...]:
    """Query in the latent space, its rotated part, the key and its rotated part, in float64."""

    def linear(x: torch.Tensor, number: int, weight: torch.Tensor) -> torch.Tensor:
        scale = (t[f"deScale{number}"].to(torch.int32)).view(torch.float32).double()
        value = rms(x, t[f"gamma{number}"]) + t[f"beta{number}"].double()
        if by_token:
            value = value.half().double()
            step = value.abs().amax(-1, keepdim=True) / 127
            return (value / step).round() @ weight.double().T * scale * step
        value = value / t[f"quantScale{number}"].double() + t[f"quantOffset{number}"].double()
        product = value.round().clamp(-128, 127) @ weight.double().T
        return (product + t[f"bias{number}"].double()) * scale

    down = linear(t["input"].double(), 0, t["wdqkv"]).half().double()
    key, rope, query = down.split([LATENT, ROPE, RANK], -1)
    up = linear(query, 1, t["wuq"]).half().double().reshape(TOKENS, HEADS, -1)
    inner = torch.stack([up[:, h, :NOPE] @ t["wuk"][h].double() for h in range(HEADS)], 1)
    outer = turned(up[..., NOPE:], t["cos"][:, None], t["sin"][:, None])
    return inner, outer, rms(key, t["gamma2"]).half().double(), turned(rope, t["cos"], t["sin"])


def close(mine: torch.Tensor, expected: torch.Tensor) -> None:
    """Within the steps of float16 that products of rounded values can be off."""
    torch.testing.assert_close(mine.double(), expected, rtol=2.0**-8, atol=2.0**-8)


def kept(cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    result = cache.double().clone()
    for row, (block, place) in ((0, (2, 1)), (2, (0, 5))):
        result[block, place, 0] = rows[row]
    return result


@pytest.mark.parametrize("by_token", [False, True])
def test_one_cache_holds_latent_and_rope_side_by_side(by_token: bool) -> None:
    t = preprocess_operands()
    names = [name for name in t if name not in ("ctkvScale", "qNopeScale")]
    query, cache = compute(MLA, {"quantMode": int(by_token)}, [t[name] for name in names])
    inner, outer, key, rope = pieces(t, by_token)
    close(query, torch.cat((inner, outer), -1))
    close(cache, kept(t["kvCache"], torch.cat((key, rope), -1)))
    # an earlier release has no operand for a second cache
    older = compute(MLA, {}, [t[name] for name in names if name != "kvCacheRope"])
    assert len(older) == 2


@pytest.mark.parametrize("nz", [False, True])
def test_caches_apart_plain_and_in_tiles(nz: bool) -> None:
    t = preprocess_operands(3 if nz else 1)
    inner, outer, key, rope = pieces(t)
    given = dict(t)
    if nz:
        given["wdqkv"], given["wuq"] = (nd_to_nz(t[n][None], 32) for n in ("wdqkv", "wuq"))
        given["wuk"] = nd_to_nz(t["wuk"], 16)
    param = {"cacheMode": 3 if nz else 1}
    results = compute(MLA, param, list(given.values()))
    caches = [results[1], results[3]]
    before = [t["kvCache"], t["kvCacheRope"]]
    if nz:
        caches, before = ([nz_to_nd(one)[:, :, None] for one in pair] for pair in (caches, before))
    close(results[0], inner)
    close(results[2], outer)
    close(caches[0], kept(before[0], key))
    close(caches[1], kept(before[1], rope))
    assert operator_of(MLA, param).aliases == ((1, 19), (3, 20))


def test_latent_parts_in_int8() -> None:
    t = preprocess_operands(2)
    inner, outer, key, rope = pieces(t)
    query, cache, query_rope, cache_rope = compute(MLA, {"cacheMode": 2}, list(t.values()))
    assert query.dtype == cache.dtype == torch.int8
    small = (inner.half().double() * t["qNopeScale"].double()).round().clamp(-128, 127)
    assert (query.double() - small).abs().max() <= 1
    stored = nz_to_nd(cache)[:, :, None].double()
    expected = kept(
        nz_to_nd(t["kvCache"])[:, :, None], (key / t["ctkvScale"].double()).round().clamp(-128, 127)
    )
    assert (stored - expected).abs().max() <= 1
    close(query_rope, outer)
    close(nz_to_nd(cache_rope)[:, :, None], kept(nz_to_nd(t["kvCacheRope"])[:, :, None], rope))


def test_what_the_kernel_has_not_is_refused() -> None:
    t = preprocess_operands()
    with pytest.raises(OperatorError, match="ATB itself refuses quantMode 2 and 3"):
        compute(MLA, {"quantMode": 3}, list(t.values()))
    with pytest.raises(OperatorError, match=r"wdqkv .3, 64. is not .96, 64. or its NZ"):
        compute(MLA, {}, [*list(t.values())[:5], t["wdqkv"][:3], *list(t.values())[6:]])
    with pytest.raises(OperatorError, match="cacheMode 1 needs kvCacheRope"):
        compute(MLA, {"cacheMode": 1}, list(t.values()))
