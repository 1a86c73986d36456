from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute_collective

EXACT: dict[str, Any] = {"accumulate": torch.float64, "round_outputs": False}


def run(name: str, rows: list[list[torch.Tensor]], **param: object) -> list[torch.Tensor]:
    return [row[0] for row in compute_collective(f"{name}Operation", param, rows)]


@pytest.mark.parametrize(("kind", "value"), [("sum", 10.0), ("prod", 24.0), ("max", 4.0), ("min", 1.0)])
def test_reductions_reach_every_rank(kind: str, value: float) -> None:
    rows = [[torch.full((2,), float(i)).half()] for i in (1, 2, 3, 4)]
    outputs = run("AllReduce", rows, allReduceType=kind)
    assert [o.tolist() for o in outputs] == [[value] * 2] * 4
    parts = run("ReduceScatter", [[r[0].repeat(2)] for r in rows], reduceType=kind)
    assert [p.tolist() for p in parts] == [[value]] * 4


def test_the_sum_over_ranks_is_rounded_once() -> None:
    rows = [[torch.tensor([v]).half()] for v in (2048.0, 1.0, 1.0, 1.0, 1.0)]
    assert run("AllReduce", rows)[0].item() == 2052.0
    assert run("AllReduce", [[torch.tensor([100]).char()]] * 3)[0].item() == 300 - 256


def test_quantised_sums() -> None:
    rows = [[torch.tensor([[10, -3]]).char(), torch.tensor([0.5]).half(), torch.tensor([1.0]).half()]] * 2
    assert run("AllReduce", rows, quantType=1)[0].tolist() == [[11.0, -2.0]]


def test_gathering_stacks() -> None:
    a, b = torch.tensor([1, 2]), torch.tensor([3, 4])
    assert [o.tolist() for o in run("AllGather", [[a], [b]])] == [[[1, 2], [3, 4]]] * 2


def test_broadcast_writes_the_roots_over_all() -> None:
    a, b = torch.tensor([1, 2]), torch.tensor([3, 4])
    assert [o.tolist() for o in run("Broadcast", [[a], [b]], rankRoot=1)] == [[3, 4], [3, 4]]
    with pytest.raises(OperatorError, match="rankRoot is 2, there are 2 ranks"):
        run("Broadcast", [[a], [b]], rankRoot=2)


@given(st.integers(1, 4), st.integers(1, 3))
def test_all_to_all_twice_gives_everything_back(ranks: int, width: int) -> None:
    rows = [[torch.randint(0, 100, (ranks * width,))] for _ in range(ranks)]
    there = run("AllToAll", rows)
    back = run("AllToAll", [[t] for t in there])
    assert all(torch.equal(b, r[0]) for b, r in zip(back, rows))


def test_all_to_all_of_column_blocks() -> None:
    a, b = torch.arange(4).reshape(2, 2), torch.arange(4, 8).reshape(2, 2)
    first, second = run("AllToAll", [[a], [b]], transpose=True)
    assert first.tolist() == [[0], [2], [4], [6]]
    assert second.tolist() == [[1], [3], [5], [7]]


def test_uneven_parts_take_the_senders_counts() -> None:
    rows = [[torch.arange(3)], [torch.arange(10, 13)]]
    params = [
        {"sendCounts": [1, 2], "sdispls": [0, 1], "recvCounts": [1, 1], "rdispls": [1, 0]},
        {"sendCounts": [1, 2], "sdispls": [2, 0], "recvCounts": [2, 2], "rdispls": [0, 2]},
    ]
    first, second = (row[0] for row in compute_collective("AllToAllVOperation", params, rows))
    assert first.tolist() == [[12, 0]]
    assert second.tolist() == [[1, 2, 10, 11]]
    params[0]["recvCounts"] = [1, 2]
    with pytest.raises(OperatorError, match="rank 1 sends 1 elements to rank 0, which expects 2"):
        compute_collective("AllToAllVOperation", params, rows)


def test_counts_may_be_operands() -> None:
    a, b = torch.arange(3), torch.arange(10, 13)
    counts = [torch.tensor(v) for v in ([1, 2], [0, 1], [1, 1], [1, 0])]
    others = [torch.tensor(v) for v in ([1, 2], [2, 0], [2, 2], [0, 2])]
    first, second = run("AllToAllVV2", [[a, *counts], [b, *others]])
    assert first.tolist() == [[12, 0]]
    assert second.tolist() == [[1, 2, 10, 11]]


def test_a_rank_receives_what_another_sends() -> None:
    rows = [[torch.tensor([1, 2])], [torch.tensor([3])]]
    params = [{"srcRank": 1}, {"srcRank": 0}]
    outputs = compute_collective("RecvOperation", params, rows)
    assert [row[0].tolist() for row in outputs] == [[3], [1, 2]]
    assert compute_collective("SendOperation", {"destRank": 1}, rows) == [(), ()]
    with pytest.raises(OperatorError, match="rank 0 receives from rank 1, whose sent tensor is not given"):
        compute_collective("RecvOperation", params, [rows[0], [None]])


def test_uneven_gathers_and_scatters() -> None:
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])
    counts, places = torch.tensor([2, 2]), torch.tensor([2, 0])
    rows = [[x, torch.tensor([2]), counts, places, torch.zeros(2)] for x in (a, b)]
    assert run("AllGatherV", rows)[0].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    rows = [
        [x, torch.tensor([2, 4]), torch.tensor([0, 2]), torch.tensor([n]), torch.zeros(1)] for n in (2, 4)
    ]
    first, second = run("ReduceScatterV", rows)
    assert first.tolist() == [[2.0, 4.0]]
    assert second.tolist() == [[6.0, 8.0], [10.0, 12.0]]


@pytest.mark.parametrize("transposed", [True, False])
def test_parallel_linears(transposed: bool) -> None:
    ranks = [
        [torch.randn(4, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)] for _ in range(2)
    ]
    products = [F.linear(x, w) for x, w in ranks]
    rows = [[x, w if transposed else w.T] for x, w in ranks]

    def parallel(kind: int, **more: object) -> list[tuple[torch.Tensor, ...]]:
        param = {"transWeight": transposed, "type": kind, **more}
        return compute_collective("LinearParallelOperation", param, rows, **EXACT)

    total = products[0] + products[1]
    for rank in (0, 1):
        torch.testing.assert_close(parallel(0)[rank][0], total)
        torch.testing.assert_close(parallel(1)[rank][0], total[2 * rank : 2 * rank + 2])
        gathered = torch.cat([x for x, _ in ranks])
        out, kept = parallel(2, keepIntermediate=True)[rank]
        torch.testing.assert_close(out, F.linear(gathered, ranks[rank][1]))
        assert torch.equal(kept, gathered)
        torch.testing.assert_close(parallel(3)[rank][0], products[rank])
    with pytest.raises(OperatorError, match="parameter type is -1, undefined"):
        parallel(-1)


def test_a_residual_is_added_once() -> None:
    x, w, r = torch.ones(2, 3), torch.ones(4, 3), torch.full((4,), 0.5)
    (out,), _ = compute_collective("LinearParallelOperation", {"hasResidual": True}, [[x, w, r]] * 2)
    assert torch.equal(out, torch.full((2, 4), 6.5))


@pytest.mark.parametrize("inner", [0, 1])
def test_two_dimensions_gather_rows_and_scatter_sums(inner: int) -> None:
    rows = [
        [torch.randn(2, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)] for _ in range(4)
    ]
    info = {"agDim": 2, "rsDim": 2, "innerDimIsAg": inner}
    outputs = compute_collective("LinearParallelOperation", {"type": 4, "twoDimTPInfo": info}, rows, **EXACT)
    gather = [[0, 1], [2, 3]] if inner else [[0, 2], [1, 3]]
    scatter = [[0, 2], [1, 3]] if inner else [[0, 1], [2, 3]]
    for rank, (out,) in enumerate(outputs):
        mates = next(g for g in scatter if rank in g)
        parts = [
            F.linear(torch.cat([rows[j][0] for j in next(g for g in gather if m in g)]), rows[m][1])
            for m in mates
        ]
        total = torch.stack(parts).sum(0)
        place = mates.index(rank)
        torch.testing.assert_close(out, total[2 * place : 2 * place + 2])


def test_a_bias_and_scales_of_rows() -> None:
    x, w, bias = torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0.0, 1.0, 2.0, 3.0])
    ((out,),) = compute_collective("LinearParallelOperation", {"type": 3}, [[x, w, bias]])
    assert out.tolist() == [[3.0, 4.0, 5.0, 6.0]] * 2
    operands = [x.char(), w.char(), None, torch.ones(4), torch.tensor([1.0, 2.0])]
    param = {"type": 3, "quantType": 3, "outDataType": 1}
    ((out,),) = compute_collective("LinearParallelOperation", param, [operands])
    assert out.tolist() == [[3.0] * 4, [6.0] * 4]


def test_scales_of_groups_may_lie_as_the_transposed_weight() -> None:
    x, w = torch.ones(1, 4).half(), torch.ones(3, 4).char()
    scale = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]).half()
    param = {"type": 3, "quantType": 2, "quantGroupSize": 2}
    for operand in (scale, scale.T.contiguous()):
        ((out,),) = compute_collective("LinearParallelOperation", param, [[x, w, None, operand]])
        assert out.tolist() == [[22.0, 44.0, 66.0]]


def test_int8_operands_are_scaled() -> None:
    x, w = torch.ones(2, 4).char(), torch.full((3, 4), 2).char()
    bias, scale = torch.ones(3).int(), torch.tensor([1.0, 2.0, 4.0])
    param = {"quantType": 1, "outDataType": 1}
    (out,), _ = compute_collective("LinearParallelOperation", param, [[x, w, bias, scale]] * 2)
    assert out.tolist() == [[18.0, 36.0, 72.0]] * 2
    narrow = {"quantType": 2, "quantGroupSize": 2, "transWeight": False, "type": 3}
    groups = torch.tensor([[1.0, 2.0, 1.0], [3.0, 4.0, 1.0]]).half()
    rows = [[torch.ones(2, 4).half(), w.T, None, groups]]
    ((out,),) = compute_collective("LinearParallelOperation", narrow, rows)
    assert out.tolist() == [[16.0, 24.0, 8.0]] * 2
