from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.errors import OperatorError
from acc_pytest.operators import compute
from acc_pytest.operators.layout import nd_to_nz, nz_in_logical_dims, nz_to_nd
from tests.newer import torch_dtype

X = torch.arange(24).reshape(2, 3, 4)


def run(name: str, inputs: list[torch.Tensor], **param: object) -> torch.Tensor:
    (out,) = compute(f"{name}Operation", param, inputs)
    return out


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_takes_rows(axis: int) -> None:
    index = torch.tensor([[1, 0], [0, 1]], dtype=torch.int32)
    out = run("Gather", [X, index], axis=axis)
    place = axis % 3
    assert out.shape == (*X.shape[:place], 2, 2, *X.shape[place + 1 :])
    assert torch.equal(out, torch.stack([X.index_select(axis, row) for row in index.long()], place))


def test_gather_in_batches() -> None:
    index = torch.tensor([[2, 0], [1, 1]])
    out = run("Gather", [X, index], axis=1, batchDims=1)
    assert torch.equal(out, torch.stack((X[0, [2, 0]], X[1, [1, 1]])))


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


def test_concat_and_split_are_inverse() -> None:
    for dim in (0, 1, -1):
        parts = compute("SplitOperation", {"splitDim": dim, "splitNum": 3, "splitSizes": [1, 2, 1]}, [
            X.expand(1, 2, 3, 4).reshape(2, 3, 4).transpose(dim, -1).contiguous()
        ])  # fmt: skip
        joined = run("Concat", [run("Concat", list(parts[:2]), concatDim=dim), parts[2]], concatDim=dim)
        assert torch.equal(joined, X.transpose(dim, -1))
    equal = compute("SplitOperation", {"splitDim": -1}, [X])
    assert [tuple(p.shape) for p in equal] == [(2, 3, 2), (2, 3, 2)]


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
