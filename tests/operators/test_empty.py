"""Operands without elements: no rows, no tokens, a sequence of no tokens, no keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acc_pytest.operators import compute

HALF, BYTE, INT, LONG = torch.float16, torch.int8, torch.int32, torch.int64

Shapes = list[tuple[torch.dtype, list[int]]]


def none(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def lengths(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=INT)


CASES: list[tuple[str, dict[str, Any], list[torch.Tensor], Shapes]] = [
    ("Linear", {"hasBias": False}, [none(0, 4), none(5, 4)], [(HALF, [0, 5])]),
    ("Linear", {"hasBias": True}, [none(0, 4), none(5, 4), none(5)], [(HALF, [0, 5])]),
    (
        "Linear",
        {"hasBias": True, "outDataType": 1},
        [none(0, 4, dtype=BYTE), none(5, 4, dtype=BYTE), none(5, dtype=INT), none(5, dtype=LONG)],
        [(HALF, [0, 5])],
    ),
    (
        "Linear",
        {"hasBias": False, "matmulType": 1, "transposeB": False},
        [none(0, 2, 4), none(2, 4, 3)],
        [(HALF, [0, 2, 3])],
    ),
    ("Elewise", {"elewiseType": 8}, [none(0, 4), none(1, 4)], [(HALF, [0, 4])]),
    ("Elewise", {"elewiseType": 19}, [none(0, 4)], [(BYTE, [0, 4]), (torch.float32, [0])]),
    ("Activation", {"activationType": 6}, [none(0, 4)], [(HALF, [0, 2])]),
    ("Softmax", {"axes": [-1]}, [none(0, 4)], [(HALF, [0, 4])]),
    ("RmsNorm", {"layerType": 1}, [none(0, 4), none(4)], [(HALF, [0, 4])]),
    (
        "LayerNorm",
        {"layerType": 1, "normParam": {"beginNormAxis": 1}},
        [none(0, 4), none(4), none(4)],
        [(HALF, [0, 4])],
    ),
    ("Gather", {"axis": 0}, [none(3, 4), none(0, dtype=LONG)], [(HALF, [0, 4])]),
    ("Gather", {"axis": 1, "batchDims": 1}, [none(0, 3, 4), none(0, 2, dtype=LONG)], [(HALF, [0, 2, 4])]),
    ("Concat", {"concatDim": 0}, [none(0, 4), none(2, 4)], [(HALF, [2, 4])]),
    ("Split", {"splitDim": 0, "splitNum": 2}, [none(0, 4)], [(HALF, [0, 4])] * 2),
    ("Slice", {"offsets": [0, 0], "size": [0, -1]}, [none(3, 4)], [(HALF, [0, 4])]),
    ("Transpose", {"perm": [1, 0]}, [none(0, 4)], [(HALF, [4, 0])]),
    ("AsStrided", {"size": [0, 2], "stride": [1, 1], "offset": [0]}, [none(4)], [(HALF, [0, 2])]),
    ("Reduce", {"reduceType": 3, "axis": [0]}, [none(0, 4, dtype=torch.bfloat16)], [(torch.bfloat16, [4])]),
    ("Sort", {"num": [2]}, [none(0, 4)], [(HALF, [0, 2]), (INT, [0, 2])]),
    ("Cumsum", {"axes": [0]}, [none(0, 4)], [(HALF, [0, 4])]),
    (
        "Rope",
        {"rotaryCoeff": 2},
        [none(0, 8), none(0, 8), none(0, 4), none(0, 4), lengths(0)],
        [(HALF, [0, 8])] * 2,
    ),
    (
        "SelfAttention",
        {"headNum": 2, "calcType": 3},
        [none(0, 8), none(0, 8), none(0, 8), lengths(0)],
        [(HALF, [0, 8])],
    ),
    (
        "PagedAttention",
        {"headNum": 2, "kvHeadNum": 2},
        [none(0, 2, 4), none(2, 4, 2, 4), none(2, 4, 2, 4), none(0, 1, dtype=INT), none(0, dtype=INT)],
        [(HALF, [0, 2, 4])],
    ),
    (
        "ReshapeAndCache",
        {},
        [none(0, 2, 4), none(0, 2, 4), none(2, 4, 2, 4), none(2, 4, 2, 4), none(0, dtype=INT)],
        [(HALF, [2, 4, 2, 4])] * 2,
    ),
    (
        "PagedCacheLoad",
        {"kvCacheCfg": 1},
        [
            none(2, 4, 1, 1),
            none(2, 4, 1, 1),
            none(0, 1, dtype=INT),
            none(0, dtype=INT),
            none(0, 1, 1),
            none(0, 1, 1),
        ],
        [(HALF, [0, 1, 1])] * 2,
    ),
    ("Nonzero", {}, [none(0, dtype=LONG)], [(LONG, [1, 0]), (LONG, [1])]),
    ("GroupTopk", {"groupNum": 2, "k": 1}, [none(0, 4), none(4, dtype=INT)], [(HALF, [0, 4])]),
    (
        "FusedAddTopkDiv",
        {"groupNum": 2, "groupTopk": 1, "k": 1},
        [none(0, 4, dtype=torch.float32), none(4, dtype=torch.float32)],
        [(torch.float32, [0, 1]), (INT, [0, 1])],
    ),
    (
        "TopkToppSampling",
        {"topkToppSamplingType": 0, "topk": 2},
        [none(0, 4), none(0, 1)],
        [(INT, [0, 1]), (HALF, [0, 1])],
    ),
    ("Multinomial", {"numSamples": 2}, [none(0, 4)], [(INT, [0, 2])]),
]


@pytest.mark.parametrize(
    ("name", "param", "inputs", "shapes"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_nothing_in(name: str, param: dict[str, Any], inputs: list[torch.Tensor], shapes: Shapes) -> None:
    outputs = compute(f"{name}Operation", param, inputs)
    assert [(out.dtype, list(out.shape)) for out in outputs] == shapes


def test_products_over_nothing_are_zero() -> None:
    (out,) = compute(
        "LinearOperation", {"hasBias": True}, [none(3, 0), none(5, 0), torch.ones(5, dtype=HALF)]
    )
    assert torch.equal(out, torch.ones(3, 5, dtype=HALF))


def test_a_sequence_without_tokens_is_skipped() -> None:
    q, k, v = (torch.randn(5, 8, generator=torch.manual_seed(n)).half() for n in range(3))
    param = {"headNum": 2, "calcType": 3, "qkScale": 0.5}
    (out,) = compute("SelfAttentionOperation", param, [q, k, v, lengths(2, 0, 3)])
    (want,) = compute("SelfAttentionOperation", param, [q, k, v, lengths(2, 3)])
    assert torch.equal(out, want)


def test_attention_over_no_keys_is_zero() -> None:
    cache = torch.ones(2, 4, 2, 4, dtype=HALF)
    query = torch.ones(2, 2, 4, dtype=HALF)
    inputs = [query, cache, cache, none(2, 1, dtype=INT), lengths(0, 3)]
    (out,) = compute("PagedAttentionOperation", {"headNum": 2, "kvHeadNum": 2}, inputs)
    assert torch.equal(out, torch.stack([query[0] * 0, query[1]]))
