from __future__ import annotations

from typing import Any

import pytest
import torch

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute_collective

from .test_attention import EXACT

PARALLEL = "LinearParallelOperation"
LOCAL, K, N, ROOM = 2, 6, 5, 12
TABLE = torch.tensor([[2, 0, 1, 3], [1, 2, 0, 1], [0, 0, 0, 0]], dtype=torch.int32)
TABLE = torch.cat((TABLE, torch.tensor([[1, 0], [2, 2], [0, 0]], dtype=torch.int32)), 1)
RANKS = len(TABLE)
PARAM = {"rankSize": RANKS, "local_expert_nums": LOCAL, "epSize": RANKS, "transWeight": False, "type": 5}


def weights() -> list[torch.Tensor]:
    return [torch.randn(LOCAL, K, N, dtype=torch.float64) for _ in range(RANKS)]


def tokens() -> list[list[tuple[int, int]]]:
    """For each rank the (source rank, row there) of every row that it computes, in order."""
    result = []
    for rank in range(RANKS):
        rows = []
        for expert in range(rank * LOCAL, (rank + 1) * LOCAL):
            for source in range(RANKS):
                first = int(TABLE[source, :expert].sum())
                rows += [(source, first + i) for i in range(int(TABLE[source, expert]))]
        result.append(rows)
    return result


def expert_of(source: int, row: int) -> int:
    return next(e for e in range(TABLE.shape[1]) if row < int(TABLE[source, : e + 1].sum()))


def test_rows_go_to_their_experts_ranks_and_back() -> None:
    x = [torch.randn(int(TABLE[r].sum()), K, dtype=torch.float64) for r in range(RANKS)]
    w = weights()
    room = torch.zeros(ROOM, dtype=torch.int32)
    out = compute_collective(PARALLEL, PARAM, [[x[r], w[r], TABLE, room] for r in range(RANKS)], **EXACT)
    for rank, places in enumerate(tokens()):
        expected = torch.zeros(ROOM, N, dtype=torch.float64)
        for i, (source, row) in enumerate(places):
            expected[i] = x[source][row] @ w[rank][expert_of(source, row) - rank * LOCAL]
        torch.testing.assert_close(out[rank][0], expected)
    # back: what every rank holds, times another matrix, lands where it came from
    nested: dict[str, Any] = {k: v for k, v in PARAM.items() if k not in ("local_expert_nums", "epSize")}
    nested |= {
        "type": 6,
        "transWeight": True,
        "moeInfo": {"localExpertNums": LOCAL, "epSize": RANKS, "tpSize": 1},
    }
    down = [torch.randn(LOCAL, K, N, dtype=torch.float64) for _ in range(RANKS)]
    inputs = [[out[r][0], down[r], TABLE, room] for r in range(RANKS)]
    back = compute_collective(PARALLEL, nested, inputs, **EXACT)
    for source in range(RANKS):
        expected = torch.zeros(ROOM, K, dtype=torch.float64)
        for row in range(len(x[source])):
            expert = expert_of(source, row)
            matrix = w[expert // LOCAL][expert % LOCAL] @ down[expert // LOCAL][expert % LOCAL].T
            expected[row] = x[source][row] @ matrix
        torch.testing.assert_close(back[source][0], expected)


@pytest.mark.parametrize("by_token", [False, True])
def test_int8_rows_take_their_scales_with_them(by_token: bool) -> None:
    x = [torch.randint(-9, 10, (int(TABLE[r].sum()), K)).to(torch.int8) for r in range(RANKS)]
    w = [torch.randint(-9, 10, (LOCAL, K, N)).to(torch.int8) for _ in range(RANKS)]
    scale = [torch.rand(LOCAL * N) / 8 for _ in range(RANKS)]
    rows = [torch.rand(len(one)) for one in x]
    packed = [one.view(torch.int32).long() for one in scale]
    room = torch.zeros(ROOM, dtype=torch.int32)
    param = {**PARAM, "quantType": 3 if by_token else 1, "outDataType": 1}
    inputs = [[x[r], w[r], packed[r], *([rows[r]] if by_token else []), TABLE, room] for r in range(RANKS)]
    out = compute_collective(PARALLEL, param, inputs)
    for rank, places in enumerate(tokens()):
        assert out[rank][0].dtype == torch.float16
        for i, (source, row) in enumerate(places):
            local = expert_of(source, row) - rank * LOCAL
            value = (x[source][row].double() @ w[rank][local].double()) * scale[rank].double().reshape(
                LOCAL, N
            )[local]
            value = value * rows[source][row].double() if by_token else value
            torch.testing.assert_close(out[rank][0][i].double(), value, rtol=2.0**-11, atol=1e-6)
        assert out[rank][0][len(places) :].abs().sum() == 0


def test_a_table_that_does_not_fit_is_named() -> None:
    x, w, room = torch.ones(2, K), torch.ones(LOCAL, K, N), torch.zeros(1)
    with pytest.raises(OperatorError, match=r"globalTokensPerExpert is not \[1, 1 \* 2\]"):
        compute_collective(PARALLEL, {**PARAM, "rankSize": 1, "epSize": 1}, [[x, w, TABLE[:1], room]])
    with pytest.raises(OperatorError, match="2 rows do not fit maxOutputSize 1"):
        compute_collective(PARALLEL, {**PARAM, "rankSize": 1, "epSize": 1}, [[x, w, TABLE[:1, :2], room]])
    with pytest.raises(OperatorError, match="tpSize 2 has no reference computation"):
        compute_collective(PARALLEL, {**PARAM, "rankSize": 1, "tpSize": 2}, [[x, w, TABLE[:1, :2], room]])
