from __future__ import annotations

import ctypes
import ctypes.util
import sys
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
from acc_pytest.operators.layout import nd_to_nz, nz_in_logical_dims, nz_to_nd
from acc_pytest.operators.routing import rand
from tests.newer import torch_dtype

X = torch.arange(24).reshape(2, 3, 4)


def run(name: str, inputs: list[torch.Tensor], **param: object) -> torch.Tensor:
    (out,) = compute(f"{name}Operation", param, inputs)
    return out


def test_gather_of_unsigned_integers() -> None:
    uint32 = torch_dtype("uint32")
    x = torch.tensor([[1, 2**32 - 1], [3, 4]]).to(uint32)
    index = torch.tensor([[1], [0]]).to(uint32)
    out = run("Gather", [x, index], axis=1, batchDims=1)
    assert out.dtype == uint32
    assert out.tolist() == [[2**32 - 1], [3]]
    assert run("Gather", [x, index[0]], axis=1).tolist() == [[2**32 - 1], [4]]


@pytest.mark.parametrize(
    ("index", "param", "message"),
    [
        ([3], {"axis": 1}, r"indices reach outside 0..2"),
        ([-1], {"axis": 0}, "indices reach outside 0..1"),
        ([0], {"axis": 3}, "parameter axis is 3, but the input has 3 dimensions"),
        ([0], {"axis": 1, "batchDims": 1}, "parameter batchDims is 1"),
    ],
)
def test_gather_refuses(index: list[int], param: dict[str, int], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        run("Gather", [X, torch.tensor(index)], **param)


def test_transpose() -> None:
    assert torch.equal(run("Transpose", [X], perm=[2, 0, 1]), X.permute(2, 0, 1))
    with pytest.raises(OperatorError, match=r"perm is \[0, 1\], no permutation of 3"):
        run("Transpose", [X], perm=[0, 1])


def test_a_strided_view_is_copied() -> None:
    out = run("AsStrided", [X.permute(2, 0, 1)], size=[2, 2], stride=[3, 0], offset=[1])
    flat = X.permute(2, 0, 1).flatten()
    assert out.tolist() == [[flat[1]] * 2, [flat[4]] * 2]
    with pytest.raises(OperatorError, match="reach outside x"):
        run("AsStrided", [X], size=[3, 3], stride=[12, 1], offset=[0])


def test_concat_and_split_refuse() -> None:
    with pytest.raises(OperatorError, match=r"do not join along dimension 0"):
        run("Concat", [X, X[:, :2]])
    with pytest.raises(OperatorError, match="do not join"):
        run("Concat", [X, X.int()])
    with pytest.raises(OperatorError, match="has size 3, which does not split into 2 equal parts"):
        compute("SplitOperation", {"splitDim": 1}, [X])
    with pytest.raises(OperatorError, match=r"splitSizes \[1, 1\] are not 2 parts of 3"):
        compute("SplitOperation", {"splitDim": 1, "splitSizes": [1, 1]}, [X])
    with pytest.raises(OperatorError, match=r"splitNum must be one of 2 .two., 3 .three., got 4"):
        compute("SplitOperation", {"splitNum": 4}, [X])


@given(st.data())
def test_a_slice_is_the_box(data: st.DataObject) -> None:
    offsets, size, box = [], [], []
    for n in X.shape:
        first = data.draw(st.integers(0, n - 1))
        count = data.draw(st.integers(1, n - first) | st.just(-1))
        offsets.append(first - n if data.draw(st.booleans()) else first)
        size.append(count)
        box.append(slice(first, None if count == -1 else first + count))
    assert torch.equal(run("Slice", [X], offsets=offsets, size=size), X[tuple(box)])


def test_slice_refuses() -> None:
    with pytest.raises(OperatorError, match="offset 2 and size 2 reach outside dimension 1"):
        run("Slice", [X], offsets=[0, 2, 0], size=[-1, 2, -1])
    with pytest.raises(OperatorError, match="need one entry for each of 3 dimensions"):
        run("Slice", [X], offsets=[0], size=[1])


def test_repeat_and_fill() -> None:
    assert torch.equal(run("Repeat", [X], multiples=[2, 1, 3, 1]), X.repeat(2, 1, 3, 1))
    with pytest.raises(OperatorError, match="too short for 3 dimensions"):
        run("Repeat", [X], multiples=[2])
    mask = torch.tensor([1, 0, 0, 1]).char()
    out = run("Fill", [X.half(), mask], value=[-5.5])
    assert torch.equal(out, X.half().masked_fill(mask.bool(), -5.5))
    empty = run("Fill", [], withMask=False, value=[3.0], outDim=[2, 2])
    assert empty.dtype == torch.float16
    assert empty.tolist() == [[3.0, 3.0]] * 2
    with pytest.raises(OperatorError, match=r"parameter value is \[\]; one number is needed"):
        run("Fill", [], withMask=False, outDim=[2])


def test_set_value_writes_a_box() -> None:
    out = run(
        "SetValue", [X, -torch.ones(1, 2, 2).long()], starts=[1, 0, 2], ends=[2, 2, 4], strides=[1, 1, 1]
    )
    expected = X.clone()
    expected[1:2, 0:2, 2:4] = -1
    assert torch.equal(out, expected)
    with pytest.raises(OperatorError, match=r"src \[1, 2, 2\] is not the box"):
        run("SetValue", [X, torch.ones(1, 2, 2).long()], starts=[1, 0, 2], ends=[2, 2, 5], strides=[1, 1, 1])


@given(st.integers(1, 40), st.integers(1, 70), st.sampled_from([torch.float16, torch.int8]))
def test_nz_and_back(rows: int, columns: int, dtype: torch.dtype) -> None:
    x = torch.randint(-100, 100, (2, rows, columns)).to(dtype)
    group = 32 if dtype == torch.int8 else 16
    nz = run("Transdata", [x], transdataType=2)
    assert nz.shape == (2, -(-columns // group), -(-rows // 16) * 16, group)
    assert torch.equal(run("Transdata", [nz], transdataType=1, outCrops=[rows, columns]), x)
    assert torch.equal(nz_to_nd(nd_to_nz(x, group), rows, columns), x)


def test_nz_under_logical_dims() -> None:
    x = torch.arange(32 * 48).reshape(32, 48).half()
    assert torch.equal(nz_in_logical_dims(nd_to_nz(x).reshape(32, 48)), x)


def test_padding_and_its_removal() -> None:
    ids = torch.tensor([[7, 8, 0], [9, 0, 0]])
    lengths = torch.tensor([[2], [1]], dtype=torch.int32)
    offsets = torch.tensor([[1], [3]], dtype=torch.int32)
    packed, now, padding = compute("UnpadOperation", {}, [ids, offsets, torch.tensor([[3]]), lengths])
    assert packed.tolist() == [[7, 8, 9, 0, 0, 0]]
    assert now.tolist() == [[0], [1]]
    assert padding.tolist() == [[0, 0, 1, 0, 0, 0]]
    hidden = torch.randn(3, 2).half()
    assert torch.equal(run("Pad", [hidden, padding[:, :3], lengths, ids]), hidden[[1, 2]])
    padded = run("PadWithHiddenState", [hidden], qSeqLen=[2, 1], maxSeqLen=3)
    assert padded.shape == (2, 3, 2)
    assert padded[1, 1:].abs().sum() == 0
    assert torch.equal(run("UnpadWithHiddenState", [padded], qSeqLen=[2, 1]), hidden)
    with pytest.raises(OperatorError, match=r"qSeqLen \[2, 2\] does not cut"):
        run("PadWithHiddenState", [hidden], qSeqLen=[2, 2], maxSeqLen=3)


RESHAPE = "ReshapeAndCacheOperation"


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_kv_cache_in_nz() -> None:
    cache, rows = torch.zeros(1, 1, 2, 4, 16), torch.randn(2, 32)
    (out,) = compute("KvCacheOperation", {}, [rows, ints(0), cache, ints(3), ints(2)])
    assert torch.equal(nz_to_nd(out[0, 0])[1:3], rows)


def test_new_rows_in_nz() -> None:
    cache, rows = torch.zeros(1, 1, 2, 4, 16), torch.randn(3, 32)
    operands = [ints(0), cache, ints(3), ints(3)]
    (want,) = compute("KvCacheOperation", {}, [rows, *operands])
    for tiled in (nd_to_nz(rows), nd_to_nz(rows[None])):
        (out,) = compute("KvCacheOperation", {}, [tiled, *operands])
        assert torch.equal(out, want)
    (out,) = compute("KvCacheOperation", {}, [rows[None], *operands])
    assert torch.equal(out, want)


def test_rows_beyond_the_cache_are_refused() -> None:
    cache, rows = torch.zeros(1, 1, 4, 3), torch.ones(2, 3)
    with pytest.raises(OperatorError, match="tokens up to 5 do not fit a cache of 4 positions"):
        compute("KvCacheOperation", {}, [rows, ints(0), cache, ints(5), ints(2)])
    with pytest.raises(OperatorError, match=r"seqLen \[1\] do not fit 2 tokens"):
        compute("KvCacheOperation", {}, [rows, ints(0), cache, ints(2), ints(1)])


@given(st.lists(st.integers(-1, 11), min_size=1, max_size=12, unique=True))
def test_tokens_lie_in_their_slots_and_nothing_else_changes(slots: list[int]) -> None:
    keys, values = torch.rand(2, len(slots), 2, 4) + 1
    caches = [torch.zeros(3, 4, 2, 4), torch.full((3, 4, 2, 4), -1.0)]
    outputs = compute(RESHAPE, {}, [keys, values, *caches, ints(*slots)])
    for new, old, out in zip((keys, values), caches, outputs):
        flat = out.reshape(12, 2, 4)
        for token, slot in zip(new, slots):
            assert slot < 0 or torch.equal(flat[slot], token)
        untouched = [i for i in range(12) if i not in slots]
        assert torch.equal(flat[untouched], old.reshape(12, 2, 4)[untouched])


def test_strided_keys_are_stored() -> None:
    # keys and values side by side in one projection of which both tensors see their part
    both = torch.arange(24.0).reshape(3, 2, 4)
    cache = torch.zeros(1, 4, 2, 2)
    steps, slots = torch.tensor([4, 2, 1]), ints(2, 0)
    key = both.flatten()[:8].reshape(2, 2, 2)
    inputs = [key, key, cache, cache, slots, steps, steps, ints(0), ints(0)]
    k, v = compute("ReshapeAndCacheWithStrideOperation", {}, inputs)
    assert torch.equal(k, v)
    assert torch.equal(k[0, [2, 0]], key)
    wide = torch.tensor([3, 2, 1])
    k, _ = compute("ReshapeAndCacheWithStrideOperation", {}, [*inputs[:5], wide, steps, ints(1), ints(0)])
    assert k[0, 2].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert k[0, 0].tolist() == [[4.0, 5.0], [6.0, 7.0]]
    with pytest.raises(OperatorError, match="reach outside key"):
        compute("ReshapeAndCacheWithStrideOperation", {}, [*inputs[:5], 2 * steps, steps, ints(0), ints(0)])


def test_compressed_heads_keep_their_last_tokens() -> None:
    key = torch.arange(5.0).reshape(5, 1, 1).expand(5, 2, 1) + torch.tensor([0.0, 10.0])[:, None]
    cache = torch.full((4, 4, 1, 1), -1.0)
    inputs = [key, key, cache, cache, ints(0, 4, 8, 12), ints(2, 1, 1, 2), ints(3, 2)]
    out, _ = compute(RESHAPE, {"compressType": 1}, inputs)
    rows = out.flatten().tolist()
    assert rows[:2] == [1.0, 2.0]
    assert rows[4] == 12.0
    assert rows[8] == 4.0
    assert rows[12:14] == [13.0, 14.0]
    assert rows.count(-1.0) == 10


def test_a_head_with_a_negative_slot_is_skipped() -> None:
    key, cache = torch.ones(2, 2, 1), torch.zeros(2, 4, 1, 1)
    inputs = [key, key, cache, cache, ints(-1, 4), ints(2, 2), ints(2)]
    out, _ = compute(RESHAPE, {"compressType": 1}, inputs)
    assert out.flatten().tolist() == [0, 0, 0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("name", [RESHAPE, "ReshapeAndCacheOmniOperation"])
def test_compressed_heads_drop_a_window(name: str) -> None:
    key = torch.arange(5.0).reshape(5, 1, 1).expand(5, 2, 1)
    cache = torch.full((2, 8, 1, 1), -1.0)
    param = {"compressType": 2} if name == RESHAPE else {}
    inputs = [key, key, cache, cache, ints(0, 8), ints(2, 0), ints(5), ints(1, -1)]
    out, _ = compute(name, param, inputs)
    assert out[0].flatten().tolist()[:4] == [0.0, 3.0, 4.0, -1.0]
    assert out[1].flatten().tolist()[:6] == [0.0, 1.0, 2.0, 3.0, 4.0, -1.0]


def test_slots_and_shapes_that_do_not_fit() -> None:
    key, cache = torch.ones(2, 2, 4), torch.zeros(1, 4, 2, 4)
    with pytest.raises(OperatorError, match="slot 4 is outside 1 blocks of 4"):
        compute(RESHAPE, {}, [key, key, cache, cache, ints(0, 4)])
    with pytest.raises(OperatorError, match=r"with 3 slots does not fit cache"):
        compute(RESHAPE, {}, [key, key, cache, cache, ints(0, 1, 2)])
    with pytest.raises(OperatorError, match=r"torch.float16 \[2, 2, 4\] with 2 slots does not fit"):
        compute(RESHAPE, {}, [key.half(), key.half(), cache, cache, ints(0, 1)])


def test_blocks_are_copied_in_order() -> None:
    key = torch.arange(4.0).reshape(4, 1, 1, 1)
    k, v = compute("BlockCopyOperation", {}, [key, -key, ints(0, 3), ints(1, 2, 0), ints(2, 3)])
    assert k.flatten().tolist() == [3.0, 0.0, 0.0, 3.0]
    assert torch.equal(v, -k)
    with pytest.raises(OperatorError, match=r"cumSum \[4\] does not cut 3 target blocks for 2"):
        compute("BlockCopyOperation", {}, [key, key, ints(0, 3), ints(1, 2, 0), ints(4)])


@pytest.mark.parametrize("cumulative", [False, True])
def test_loading_is_the_inverse_of_storing(cumulative: bool) -> None:
    key = torch.randn(5, 1, 32)
    cache = torch.zeros(4, 2, 1, 32)
    slots = ints(4, 5, 2, 0, 1)  # blocks 2, 1 of the first request, 0 of the second
    stored = compute(RESHAPE, {}, [key, -key, cache, cache, slots])
    tables, empty = torch.tensor([[2, 1], [0, 3]], dtype=torch.int32), torch.zeros(5, 32)
    counts = ints(0, 3, 5) if cumulative else ints(3, 2)
    param = {"kvCacheCfg": 1, "isSeqLensCumsumMode": cumulative}
    k, v = compute("PagedCacheLoadOperation", param, [*stored, tables, counts, empty, empty])
    assert torch.equal(k, key[:, 0])
    assert torch.equal(v, -key[:, 0])


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
