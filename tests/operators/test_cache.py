from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
from acc_pytest.operators.layout import nd_to_nz, nz_to_nd

RESHAPE = "ReshapeAndCacheOperation"


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_kv_cache_appends_packed_rows() -> None:
    cache, rows = torch.zeros(2, 2, 4, 3).half(), torch.randn(3, 3).half()
    (out,) = compute("KvCacheOperation", {}, [rows, ints(1), cache, ints(2, 4), ints(2, 1)])
    assert torch.equal(out[1, 0, :2], rows[:2])
    assert torch.equal(out[1, 1, 3], rows[2])
    assert out.count_nonzero() == rows.count_nonzero()
    assert cache.count_nonzero() == 0


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


@pytest.mark.parametrize("how", [{"kvCacheCfg": 2}, {}])
def test_slots_in_nz_blocks(how: dict[str, int]) -> None:
    key, cache = torch.randn(2, 2, 16).half(), torch.zeros(2, 2, 4, 16).half()
    soc = "Ascend910B" if how else "Ascend310P3"
    out, _ = compute(RESHAPE, how, [key, key, cache, cache, ints(5, 0)], soc=soc)
    rows = nz_to_nd(out)
    assert torch.equal(rows[1, 1], key[0].flatten())
    assert torch.equal(rows[0, 0], key[1].flatten())


def test_keys_alone() -> None:
    key, cache = torch.ones(1, 2, 4), torch.zeros(1, 2, 2, 4)
    (out,) = compute(RESHAPE, {"kvCacheCfg": 1}, [key, cache, ints(1)])
    assert out[0, 1].sum() == 8
    assert out[0, 0].sum() == 0


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
