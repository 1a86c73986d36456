from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute

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
