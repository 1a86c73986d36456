from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute, compute_collective

EXACT: dict[str, Any] = {"accumulate": torch.float64, "round_outputs": False}


def run(name: str, inputs: list[torch.Tensor], **param: object) -> tuple[torch.Tensor, ...]:
    return compute(f"{name}Operation", param, inputs)


def test_sort_gives_the_largest() -> None:
    x = torch.randperm(40).reshape(4, 10).float()
    values, places = run("Sort", [x], num=[3])
    assert torch.equal(values, x.topk(3).values)
    assert torch.equal(x.gather(1, places.long()), values)
    assert places.dtype == torch.int32
    with pytest.raises(OperatorError, match=r"num is \[11\]; one number from 1 to 10"):
        run("Sort", [x], num=[11])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_onehot_has_its_new_dimension_at_axis(axis: int) -> None:
    x = torch.tensor([[0, 2, 1]])
    (out,) = run("Onehot", [x, torch.tensor([5]), torch.tensor([-1])], axis=axis, depth=3)
    assert torch.equal(out, (F.one_hot(x, 3) * 6 - 1).movedim(-1, axis))


def test_reductions() -> None:
    x = torch.randn(3, 4, 5).bfloat16()
    assert torch.equal(run("Reduce", [x], reduceType=1, axis=[0, 2])[0], x.amax((0, 2)))
    assert torch.equal(run("Reduce", [x], reduceType=2, axis=[-1])[0], x.amin(-1))
    assert torch.equal(run("Reduce", [x], reduceType=3, axis=[1])[0], x.float().sum(1).bfloat16())
    assert run("Reduce", [x.int()], reduceType=3, axis=[1])[0].dtype == torch.int32
    with pytest.raises(OperatorError, match=r"axis is \[3\], x has 3"):
        run("Reduce", [x], reduceType=1, axis=[3])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(exclusive: bool, reverse: bool) -> None:
    x = torch.tensor([[1.0, 2.0, 4.0]])
    (out,) = run("Cumsum", [x], axes=[1], exclusive=exclusive, reverse=reverse)
    expected = {(0, 0): [1, 3, 7], (1, 0): [0, 1, 3], (0, 1): [7, 6, 4], (1, 1): [6, 4, 0]}
    assert out.tolist() == [expected[exclusive, reverse]]


def test_a_large_element_left_out_takes_nothing_with_it() -> None:
    x = torch.tensor([[1.0, 1e30, torch.inf]])
    (out,) = run("Cumsum", [x], axes=[1], exclusive=True)
    assert torch.equal(out, torch.tensor([[0.0, 1.0, 1e30]]))
    (none,) = run("Cumsum", [x[:, :0]], axes=[1], exclusive=True)
    assert none.shape == (1, 0)


def test_where_and_nonzero() -> None:
    cond = torch.tensor([[1], [0]]).char()
    x, y = torch.ones(1, 3).half(), torch.zeros(1, 3).half()
    assert run("Where", [cond, x, y])[0].tolist() == [[1.0] * 3, [0.0] * 3]
    places, count = run("Nonzero", [torch.tensor([[0, 3], [7, 0]])])
    assert places.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert count.tolist() == [2]


def test_index_add_counts_every_duplicate() -> None:
    var, updates = torch.ones(3, 2).half(), torch.tensor([[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]]).half()
    index, alpha = torch.tensor([2, 0, 2]).int(), torch.tensor([0.5]).half()
    (out,) = run("IndexAdd", [var, index, updates, alpha], indexType=1)
    assert out.tolist() == [[3.0, 5.0], [1.0, 1.0], [9.5, 18.0]]
    (valid,) = run("IndexAdd", [var, index, updates, torch.tensor([2]).int()], indexType=2)
    assert valid.tolist() == [[5.0, 9.0], [1.0, 1.0], [2.0, 3.0]]
    with pytest.raises(OperatorError, match=r"indices reach outside 0..2"):
        run("IndexAdd", [var, index + 1, updates, alpha], indexType=1)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=24), st.sampled_from([1, 2]))
def test_gating_sorts_pairs_by_expert(experts: list[int], k: int) -> None:
    topk, places = torch.tensor(experts).int(), torch.arange(len(experts)).int()
    token, running, original = run("Gating", [topk, places], topkExpertNum=k, cumSumNum=4)
    by_hand = sorted(range(len(experts)), key=lambda i: experts[i])
    assert original.tolist() == by_hand
    assert token.tolist() == [i // k for i in by_hand]
    assert running.tolist() == [sum(e <= n for e in experts) for n in range(4)]
    param = {"topkExpertNum": k, "cumSumNum": 4, "deviceExpert": [1, 2], "cumSumInt64": True}
    token, running, original, valid = run("Gating", [topk, places], **param)
    kept = [i for i in by_hand if experts[i] in (1, 2)]
    assert original.tolist() == kept + [0] * (len(experts) - len(kept))
    assert token.tolist() == [i // k for i in kept] + [0] * (len(experts) - len(kept))
    assert running.tolist() == [experts.count(1), experts.count(1) + experts.count(2)]
    assert running.dtype == torch.int64
    assert valid.item() == len(kept)


def test_scatter_writes_or_adds() -> None:
    x = torch.arange(6.0).reshape(2, 3).half()
    index, updates = torch.tensor([[0, 0]]), torch.tensor([[10.0, 20.0]]).half()
    (added,) = run("ScatterElementsV2", [x, index, updates], axis=-1, reduction=1)
    assert added.tolist() == [[30.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    (written,) = run("ScatterElementsV2", [x.int(), index + torch.tensor([0, 2]), updates.int()], axis=1)
    assert written.tolist() == [[10, 1, 20], [3, 4, 5]]
    with pytest.raises(OperatorError, match="indices reach outside dimension 0"):
        run("ScatterElementsV2", [x, index + 2, updates], axis=0)


def test_group_topk_keeps_whole_groups() -> None:
    x = torch.tensor([[1.0, 5.0, 4.0, 4.0, 0.0, 3.0]]).half()
    index = torch.zeros(8).int()
    assert run("GroupTopk", [x, index], groupNum=3, k=1)[0].tolist() == [[1.0, 5.0, 0, 0, 0, 0]]
    (out,) = run("GroupTopk", [x, index], groupNum=3, k=1, groupMultiFlag=1, n=2)
    assert out.tolist() == [[0, 0, 4.0, 4.0, 0, 0]]
    with pytest.raises(OperatorError, match="6 experts, 4 groups"):
        run("GroupTopk", [x, index], groupNum=4, k=1)


def test_experts_are_chosen_by_shifted_and_weighted_by_plain_scores() -> None:
    x, shift = torch.tensor([[2.0, 0.0, -1.0, 1.0]]), torch.tensor([0.0, 1.0, 0.0, 0.0])
    param = {"groupNum": 2, "groupTopk": 1, "n": 1, "k": 2, "scale": 3.0}
    y, index = run("FusedAddTopkDiv", [x, shift], **param)
    weights = torch.sigmoid(x)[0, [1, 0]]
    assert index.tolist() == [[1, 0]]
    torch.testing.assert_close(y[0], weights / weights.sum() * 3)
    (plain, _) = run("FusedAddTopkDiv", [x, shift], **param, isNorm=False)
    torch.testing.assert_close(plain[0], weights)
    table, number = torch.arange(8).reshape(4, 2).int(), torch.tensor([2, 1, 2, 2]).int()
    two = [x.expand(2, 4), shift, number, table]
    _, mapped = run("FusedAddTopkDiv", two, **param, enableExpertMapping=True)
    assert mapped.tolist() == [[2, 0], [2, 1]]


def test_swiglu_quant_gives_rows_back() -> None:
    x = torch.randn(3, 16).half()
    y, scale = run("SwigluQuant", [x])
    exact = F.silu(x.double()[:, :8]) * x.double()[:, 8:]
    assert bool(((y.double() * scale.double()[:, None] - exact).abs() <= 0.5001 * scale[:, None]).all())


def test_groups_of_the_inner_dimension() -> None:
    x, w = torch.randn(2, 5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    accum = torch.randn(4, 3, dtype=torch.float64)
    expected = accum + torch.cat((x[:, :2] @ w[:2], x[:, 2:5] @ w[2:5]))
    for param, a, b in (({}, x, w), ({"transposeA": True, "transposeB": True}, x.T, w.T)):
        inputs = [a, b, torch.tensor([2, 5]), accum]
        (out,) = compute("GroupedMatmulInplaceAddOperation", param, inputs, **EXACT)
        torch.testing.assert_close(out, expected)


def test_rows_go_to_their_experts_and_come_back() -> None:
    x, up = torch.randn(3, 4, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    down = torch.randn(2, 5, 4, dtype=torch.float64)
    ends, rows = torch.tensor([4, 6]).int(), torch.tensor([0, 2, 1, 0, 2, 1]).int()
    name, param = "GroupedMatmulWithRoutingOperation", {"topK": 2}
    inputs = [x, up, ends, rows]
    (wide,) = compute(name, {**param, "transposeB": True}, inputs, **EXACT)
    expert = torch.tensor([0, 0, 0, 0, 1, 1])
    torch.testing.assert_close(wide, torch.stack([up[e] @ x[r] for e, r in zip(expert, rows)]))
    for key in ("moeType", "groupedMatmulType"):
        (back,) = compute(name, {**param, key: 1, "transposeB": False}, [wide, down, ends, rows], **EXACT)
        each = torch.stack([wide[i] @ down[e] for i, e in enumerate(expert)])
        torch.testing.assert_close(back, torch.zeros(3, 4).double().index_add(0, rows.long(), each))


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


def run_ranks(name: str, rows: list[list[torch.Tensor]], **param: object) -> list[torch.Tensor]:
    return [row[0] for row in compute_collective(f"{name}Operation", param, rows)]


@pytest.mark.parametrize(("kind", "value"), [("sum", 10.0), ("prod", 24.0), ("max", 4.0), ("min", 1.0)])
def test_reductions_reach_every_rank(kind: str, value: float) -> None:
    rows = [[torch.full((2,), float(i)).half()] for i in (1, 2, 3, 4)]
    outputs = run_ranks("AllReduce", rows, allReduceType=kind)
    assert [o.tolist() for o in outputs] == [[value] * 2] * 4
    parts = run_ranks("ReduceScatter", [[r[0].repeat(2)] for r in rows], reduceType=kind)
    assert [p.tolist() for p in parts] == [[value]] * 4


def test_the_sum_over_ranks_is_rounded_once() -> None:
    rows = [[torch.tensor([v]).half()] for v in (2048.0, 1.0, 1.0, 1.0, 1.0)]
    assert run_ranks("AllReduce", rows)[0].item() == 2052.0
    assert run_ranks("AllReduce", [[torch.tensor([100]).char()]] * 3)[0].item() == 300 - 256


def test_quantised_sums() -> None:
    rows = [[torch.tensor([[10, -3]]).char(), torch.tensor([0.5]).half(), torch.tensor([1.0]).half()]] * 2
    assert run_ranks("AllReduce", rows, quantType=1)[0].tolist() == [[11.0, -2.0]]


def test_gathering_stacks() -> None:
    a, b = torch.tensor([1, 2]), torch.tensor([3, 4])
    assert [o.tolist() for o in run_ranks("AllGather", [[a], [b]])] == [[[1, 2], [3, 4]]] * 2


def test_broadcast_writes_the_roots_over_all() -> None:
    a, b = torch.tensor([1, 2]), torch.tensor([3, 4])
    assert [o.tolist() for o in run_ranks("Broadcast", [[a], [b]], rankRoot=1)] == [[3, 4], [3, 4]]
    with pytest.raises(OperatorError, match="rankRoot is 2, there are 2 ranks"):
        run_ranks("Broadcast", [[a], [b]], rankRoot=2)


@given(st.integers(1, 4), st.integers(1, 3))
def test_all_to_all_twice_gives_everything_back(ranks: int, width: int) -> None:
    rows = [[torch.randint(0, 100, (ranks * width,))] for _ in range(ranks)]
    there = run_ranks("AllToAll", rows)
    back = run_ranks("AllToAll", [[t] for t in there])
    assert all(torch.equal(b, r[0]) for b, r in zip(back, rows))


def test_all_to_all_of_column_blocks() -> None:
    a, b = torch.arange(4).reshape(2, 2), torch.arange(4, 8).reshape(2, 2)
    first, second = run_ranks("AllToAll", [[a], [b]], transpose=True)
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
    first, second = run_ranks("AllToAllVV2", [[a, *counts], [b, *others]])
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
    assert run_ranks("AllGatherV", rows)[0].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    rows = [
        [x, torch.tensor([2, 4]), torch.tensor([0, 2]), torch.tensor([n]), torch.zeros(1)] for n in (2, 4)
    ]
    first, second = run_ranks("ReduceScatterV", rows)
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
