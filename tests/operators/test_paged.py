from __future__ import annotations

import pytest
import torch

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
from acc_pytest.operators.layout import nd_to_nz

from .test_attention import EXACT, SCALE, lengths, sdpa

PAGED = "PagedAttentionOperation"
TABLE = torch.tensor([[2, 0, 3], [1, 4, 0]], dtype=torch.int32)
CONTEXT = lengths(9, 3)
HEADS = {"headNum": 4, "kvHeadNum": 2, "qkScale": SCALE}


@pytest.fixture
def caches() -> list[torch.Tensor]:
    return [torch.randn(5, 4, 2, 16, dtype=torch.float64) for _ in range(2)]


@pytest.fixture
def query() -> torch.Tensor:
    return torch.randn(2, 4, 16, dtype=torch.float64)


def rows(cache: torch.Tensor, b: int) -> torch.Tensor:
    return cache[TABLE[b].long()].flatten(0, 1)[: int(CONTEXT[b])]


def expected(
    query: torch.Tensor, caches: list[torch.Tensor], bias: list[torch.Tensor] | None = None
) -> torch.Tensor:
    keys, values = caches
    parts = [
        sdpa(query[b : b + 1], rows(keys, b), rows(values, b), bias[b] if bias else None) for b in (0, 1)
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("merged", [False, True])
def test_each_token_attends_to_its_blocks(
    query: torch.Tensor, caches: list[torch.Tensor], merged: bool
) -> None:
    q = query.flatten(1) if merged else query
    (out,) = compute(PAGED, HEADS, [q, *caches, TABLE, CONTEXT], **EXACT)
    assert out.shape == q.shape
    torch.testing.assert_close(out.reshape(query.shape), expected(query, caches))


def test_layouts_of_the_cache(query: torch.Tensor, caches: list[torch.Tensor]) -> None:
    target = expected(query, caches)
    by_head = [c.transpose(1, 2) for c in caches]
    (out,) = compute(PAGED, {**HEADS, "inputLayout": 1}, [query, *by_head, TABLE, CONTEXT], **EXACT)
    torch.testing.assert_close(out, target)
    merged = [c.flatten(2) for c in caches]
    (out,) = compute(PAGED, HEADS, [query, *merged, TABLE, CONTEXT], **EXACT)
    torch.testing.assert_close(out, target)
    wide = [torch.cat((c, c.new_zeros(5, 12, 2, 16)), 1) for c in caches]
    nz = [nd_to_nz(c.flatten(2)) for c in wide]
    context, table = lengths(4, 3), TABLE[:, :1]
    one = [query, *(w.reshape(5, 16, 2, 16) for w in wide), table, context]
    (plain,) = compute(PAGED, HEADS, one, **EXACT)
    (packed,) = compute(PAGED, HEADS, [query, *nz, table, context], soc="Ascend310P3", **EXACT)
    assert torch.equal(plain, packed)


@pytest.mark.parametrize("kind", [1, 2])
def test_masks_of_sequences_and_heads(query: torch.Tensor, caches: list[torch.Tensor], kind: int) -> None:
    mask = torch.randn(2, 1 if kind == 1 else 4, 1, 12, dtype=torch.float64)
    bias = [mask[b, ..., : int(CONTEXT[b])] for b in (0, 1)]
    operand = mask[:, 0] if kind == 1 else mask
    (out,) = compute(PAGED, {**HEADS, "maskType": kind}, [query, *caches, TABLE, CONTEXT, operand], **EXACT)
    torch.testing.assert_close(out, expected(query, caches, bias))


def test_several_tokens_a_sequence(caches: list[torch.Tensor]) -> None:
    q = torch.randn(3, 4, 16, dtype=torch.float64)
    counts = lengths(2, 1)
    free = torch.full((2, 9), -60000.0, dtype=torch.float64).triu(8)
    first = sdpa(q[:2], rows(caches[0], 0), rows(caches[1], 0), free)
    target = torch.cat((first, sdpa(q[2:], *(rows(c, 1) for c in caches))))
    spec = torch.zeros(3, 12, dtype=torch.float64)
    spec[:2, :9] = free
    square = torch.full((12, 12), -60000.0, dtype=torch.float64).triu(1)
    for kind, mask in ((3, spec), (1, square), (4, torch.zeros(1, 1))):
        param = {**HEADS, "calcType": 1, "maskType": kind}
        (out,) = compute(PAGED, param, [q, *caches, TABLE, CONTEXT, mask, counts], **EXACT)
        torch.testing.assert_close(out, target)


def test_int8_caches_are_scaled_back_by_channel(query: torch.Tensor) -> None:
    stored = [torch.randint(-128, 128, (5, 4, 2, 16)).char() for _ in range(2)]
    scales = [torch.rand(32, dtype=torch.float64) / 50 for _ in range(2)]
    offsets = [torch.randint(-5, 5, (32,)) for _ in range(2)]
    caches = [(c.double() + o.reshape(2, 16)) * s.reshape(2, 16) for c, s, o in zip(stored, scales, offsets)]
    param = {**HEADS, "quantType": 1, "hasQuantOffset": True}
    extra = [scales[0], offsets[0], scales[1], offsets[1]]
    (out,) = compute(PAGED, param, [query, *stored, TABLE, CONTEXT, *extra], **EXACT)
    torch.testing.assert_close(out, expected(query, caches))
    packed = [scale.float().view(torch.int32).long() for scale in scales]
    caches = [c.double() * s.float().double().reshape(2, 16) for c, s in zip(stored, scales)]
    plain = {**HEADS, "quantType": 1}
    (out,) = compute(PAGED, plain, [query, *stored, TABLE, CONTEXT, *packed], **EXACT)
    torch.testing.assert_close(out, expected(query, caches))


def test_the_query_may_be_scaled_before(query: torch.Tensor, caches: list[torch.Tensor]) -> None:
    for factor in (0.0, 1.0, 0.5):
        (out,) = compute(PAGED, {**HEADS, "qScale": factor}, [query, *caches, TABLE, CONTEXT], **EXACT)
        torch.testing.assert_close(out, expected(query * (factor or 1.0), caches))


@pytest.mark.parametrize("offline", [False, True])
def test_int8_everywhere_is_near_the_attention_of_its_values(offline: bool) -> None:
    query = torch.randint(-100, 100, (2, 4, 16)).char()
    caches = [torch.randint(-100, 100, (5, 4, 2, 16)).char() for _ in range(2)]
    scale, value = torch.full((4,), 0.002), torch.full((4,), 0.01)
    param = {**HEADS, "quantType": 2 if offline else 3, "outDataType": 27}
    extra = [scale, value / 127 if offline else value, *([torch.full((4,), 127.0)] if offline else [])]
    (out,) = compute(PAGED, param, [query, *caches, TABLE, CONTEXT, *extra])
    assert out.dtype == torch.bfloat16
    exact = expected(query.double() * 0.002, [caches[0].double(), caches[1].double() * 0.01])
    assert float((out.double() - exact).abs().max()) < 9 * 0.5 / 127


def test_compressed_heads_have_tables_of_their_own(query: torch.Tensor) -> None:
    caches = [torch.randn(6, 4, 1, 16, dtype=torch.float64) for _ in range(2)]
    table = torch.tensor([[0, 1], [2, 3], [4, 0], [5, 1]], dtype=torch.int32)
    context = lengths(5, 2, 8, 4)
    razor = torch.randn(6, 4, dtype=torch.float64)
    param = {**HEADS, "compressType": 2}
    (out,) = compute(PAGED, param, [query, *caches, table, context, razor], **EXACT)
    for i in range(4):
        k, v, r = (c[table[i].long()].flatten(0, 1)[: int(context[i])] for c in (*caches, razor))
        part = slice(2 * (i % 2), 2 * (i % 2) + 2)
        target = sdpa(query[i // 2 : i // 2 + 1, part], k, v, r[None] * SCALE)
        torch.testing.assert_close(out[i // 2 : i // 2 + 1, part], target)


def test_values_inside_the_keys(query: torch.Tensor, caches: list[torch.Tensor]) -> None:
    (out,) = compute(PAGED, {**HEADS, "mlaVHeadSize": 5}, [query, caches[0], TABLE, CONTEXT], **EXACT)
    torch.testing.assert_close(out, expected(query, [caches[0], caches[0][..., :5]]))


def test_sequences_without_context_give_zeros_and_those_that_do_not_run_no_row(
    query: torch.Tensor, caches: list[torch.Tensor]
) -> None:
    (out,) = compute(PAGED, HEADS, [query, *caches, TABLE, lengths(0, 3)], **EXACT)
    assert out[0].abs().sum() == 0
    param = {**HEADS, "batchRunStatusEnable": True}
    (out,) = compute(PAGED, param, [query, *caches, TABLE, CONTEXT, lengths(0, 1)], **EXACT)
    torch.testing.assert_close(out[0], sdpa(query[:1], *(rows(c, 1) for c in caches))[0])
    assert out[1].abs().sum() == 0


def test_logn_scales_each_sequence(query: torch.Tensor, caches: list[torch.Tensor]) -> None:
    factor = torch.tensor([1.5, 2.0], dtype=torch.float64)
    (out,) = compute(PAGED, {**HEADS, "scaleType": 1}, [query, *caches, TABLE, CONTEXT, factor], **EXACT)
    torch.testing.assert_close(out, expected(query * factor[:, None, None], caches))


def test_operands_that_do_not_fit(query: torch.Tensor, caches: list[torch.Tensor]) -> None:
    with pytest.raises(OperatorError, match=r"blockTables \[2, 0, 3\] do not name 4 of 5 blocks"):
        compute(PAGED, HEADS, [query, *caches, TABLE, lengths(13, 3)])
    with pytest.raises(OperatorError, match="2 sequences of queries, 3 contextLens, 2 blockTables"):
        compute(PAGED, HEADS, [query, *caches, TABLE, lengths(1, 2, 3)])
    with pytest.raises(OperatorError, match=r"mask \[2, 1, 4\] is shorter than 9 keys"):
        compute(PAGED, {**HEADS, "maskType": 1}, [query, *caches, TABLE, CONTEXT, torch.zeros(2, 1, 4)])
    with pytest.raises(OperatorError, match="heads do not divide or sizes differ"):
        compute(PAGED, {**HEADS, "kvHeadNum": 2}, [query[..., :8], *caches, TABLE, CONTEXT])
