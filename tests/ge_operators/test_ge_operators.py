"""References of GE's operators: each against a formula of its own, or torch's operator, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

from acc_pytest.errors import OperatorError
from acc_pytest.ge_operators import Unrounded, compute, known
from acc_pytest.ge_operators.registry import _OPERATORS
from tests.bounded import bounded
from tests.each_case import check_each

Tensors = Sequence["torch.Tensor | None"]


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def first(op_type: str, inputs: Tensors, attrs: Mapping[str, object] | None = None) -> torch.Tensor:
    return compute(op_type, attrs or {}, inputs)[0].value


X, Y, SQUARE = some(3, 4), some(3, 4, seed=1), some(4, 4, seed=2)
POSITIVE = X.abs() + 0.5
ROW = some(4, seed=3)
WEIGHT = some(5, 4, seed=4)
CUBE = some(2, 3, 4, seed=5)
MASK = Y > 0
BYTES = torch.randint(-128, 128, (3, 4), generator=torch.Generator().manual_seed(6), dtype=torch.int8)
OTHER_BYTES = torch.randint(-128, 128, (4, 5), generator=torch.Generator().manual_seed(7), dtype=torch.int8)
COS, SIN = some(1, 4, seed=8), some(1, 4, seed=9)


def one_by_one(function: Callable[[float], float], x: torch.Tensor) -> torch.Tensor:
    values = [function(value) for value in x.reshape(-1).tolist()]
    return torch.tensor(values, dtype=torch.float64).reshape(x.shape)


def product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one.unsqueeze(-1) * other.unsqueeze(-3)).sum(-2)


CASES: list[tuple[str, Mapping[str, object], Tensors, torch.Tensor]] = [
    ("MatMul", {}, (X, WEIGHT.T), product(X, WEIGHT.T)),
    ("MatMul", {"transpose_x2": True}, (X, WEIGHT, None), product(X, WEIGHT.T)),
    ("MatMulV2", {"transpose_x1": True, "offset_x": 0}, (X.T, WEIGHT.T), product(X, WEIGHT.T)),
    (
        "MatMulV2",
        {},
        (X, WEIGHT.T, ROW.new_tensor([1, 2, 3, 4, 5])),
        product(X, WEIGHT.T) + torch.arange(1.0, 6),
    ),
    ("MatMulV3", {"transpose_x2": True}, (X, WEIGHT, None, None), product(X, WEIGHT.T)),
    ("BatchMatMul", {"adj_x2": True}, (CUBE, CUBE), product(CUBE, CUBE.mT)),
    ("BatchMatMulV2", {"adj_x1": True}, (CUBE, CUBE, None, None), product(CUBE.mT, CUBE)),
    ("BiasAdd", {}, (X, ROW), X + ROW[None]),
    ("Add", {}, (X, ROW), X - -ROW),
    ("Sub", {}, (X, Y), X + -Y),
    ("Mul", {}, (X, Y), torch.exp(torch.log(X.abs()) + torch.log(Y.abs())) * X.sign() * Y.sign()),
    ("RealDiv", {}, (X, Y), X * Y.reciprocal()),
    ("Div", {}, (whole(7, -7), whole(2, 2)), whole(3, -3)),
    ("FloorDiv", {}, (whole(7, -7), whole(2, 2)), whole(3, -4)),
    ("FloorMod", {}, (whole(7, -7), whole(3, 3)), whole(1, 2)),
    ("Mod", {}, (whole(7, -7), whole(3, 3)), whole(1, -1)),
    ("Maximum", {}, (X, Y), (X + Y + (X - Y).abs()) / 2),
    ("Minimum", {}, (X, Y), (X + Y - (X - Y).abs()) / 2),
    ("SquaredDifference", {}, (X, Y), X * X - 2 * X * Y + Y * Y),
    ("Equal", {}, (whole(1, 2), whole(1, 3)), torch.tensor([True, False])),
    ("LessEqual", {}, (whole(1, 4), whole(1, 3)), torch.tensor([True, False])),
    ("LogicalAnd", {}, (MASK, ~MASK), torch.zeros(3, 4, dtype=torch.bool)),
    ("LogicalNot", {}, (MASK,), ~MASK),
    ("Neg", {}, (X,), 0 - X),
    ("Exp", {}, (X,), one_by_one(math.exp, X)),
    ("Exp", {"base": 2.0, "scale": 3.0, "shift": 1.0}, (X,), one_by_one(lambda x: 2 ** (3 * x + 1), X)),
    ("Log", {}, (POSITIVE,), one_by_one(math.log, POSITIVE)),
    ("Log", {"base": 2.0}, (POSITIVE,), one_by_one(math.log2, POSITIVE)),
    ("Rsqrt", {}, (POSITIVE,), POSITIVE**-0.5),
    ("Pow", {}, (POSITIVE, Y), torch.exp(Y * POSITIVE.log())),
    ("Sin", {}, (X,), one_by_one(math.sin, X)),
    ("Muls", {"value": 0.25}, (X,), X / 4),
    ("Adds", {"value": 0.25}, (X,), X + 0.25),
    ("Axpy", {"alpha": 0.5}, (X, Y), X + Y / 2),
    ("AddN", {"N": 3}, (X, X, X), 3 * X),
    ("Addcmul", {}, (X, X, Y, torch.tensor(2.0)), X + 2 * X * Y),
    ("Lerp", {}, (X, Y, torch.tensor(0.25)), 0.75 * X + 0.25 * Y),
    ("ClipByValue", {}, (X, torch.tensor(-0.5), torch.tensor(0.5)), X.clamp(-0.5, 0.5)),
    ("Sigmoid", {}, (X,), 1 / (1 + torch.exp(-X))),
    ("Swish", {"scale": 1.0}, (X,), X / (1 + torch.exp(-X))),
    ("Swish", {"scale": 2.0}, (X,), X / (1 + torch.exp(-2 * X))),
    ("Silu", {}, (X,), X / (1 + torch.exp(-X))),
    ("Gelu", {}, (X,), functional.gelu(X)),
    ("GeluV2", {"approximate": "tanh"}, (X,), functional.gelu(X, approximate="tanh")),
    ("FastGelu", {}, (X,), X / (1 + torch.exp(-1.702 * X))),
    ("LeakyRelu", {"negative_slope": 0.1}, (X,), functional.leaky_relu(X, 0.1)),
    ("Elu", {"alpha": 2.0}, (X,), functional.elu(X, 2.0)),
    ("SoftplusV2", {}, (X,), torch.log1p(torch.exp(X))),
    ("Softplus", {}, (X,), torch.log1p(torch.exp(X))),
    ("SwiGlu", {}, (X,), functional.silu(X[:, :2]) * X[:, 2:]),
    ("SwiGlu", {"dim": 0}, (SQUARE,), functional.silu(SQUARE[:2]) * SQUARE[2:]),
    ("GeGluV2", {"approximate": 0}, (X,), X[:, :2] * functional.gelu(X[:, 2:])),
    ("SoftmaxV2", {"axes": (0,)}, (X,), X.exp() / X.exp().sum(0)),
    ("LogSoftmaxV2", {}, (X,), X - X.exp().sum(-1, keepdim=True).log()),
    (
        "LayerNormV4",
        {"epsilon": 0.1},
        (X, whole(4), ROW, None),
        functional.layer_norm(X, [4], ROW, None, 0.1),
    ),
    (
        "LayerNormV3",
        {"begin_norm_axis": -1, "epsilon": 0.1},
        (X, ROW, ROW),
        functional.layer_norm(X, [4], ROW, ROW, 0.1),
    ),
    ("RmsNorm", {"epsilon": 0.1}, (X, ROW), X / (X.pow(2).mean(-1, True) + 0.1).sqrt() * ROW),
    ("AddRmsNorm", {}, (X, Y, ROW), (X + Y) / ((X + Y).pow(2).mean(-1, True) + 1e-6).sqrt() * ROW),
    ("ReduceSum", {"keep_dims": True}, (X, whole(-1)), X @ torch.ones(4, 1, dtype=torch.float64)),
    (
        "ReduceSum",
        {},
        (X, torch.tensor([], dtype=torch.int64)),
        X.flatten() @ torch.ones(12, dtype=torch.float64),
    ),
    ("ReduceMean", {}, (X, whole(0)), (X[0] + X[1] + X[2]) / 3),
    ("ReduceMean", {"noop_with_empty_axes": True}, (X, torch.tensor([], dtype=torch.int64)), X),
    ("ReduceMax", {}, (CUBE, whole(0, 2)), CUBE.max(2).values.max(0).values),
    ("ReduceMinD", {"axes": (1,)}, (X,), -(-X).max(1).values),
    ("ReduceProd", {}, (POSITIVE, whole(1)), POSITIVE.log().sum(1).exp()),
    ("ReduceAny", {}, (MASK, whole(1)), MASK.sum(1) > 0),
    ("Cumsum", {}, (X, torch.tensor(1)), X @ torch.ones(4, 4, dtype=torch.float64).triu()),
    (
        "Cumsum",
        {"exclusive": True, "reverse": True},
        (X, torch.tensor(1)),
        X @ torch.ones(4, 4, dtype=torch.float64).tril(-1),
    ),
    ("TopKV2", {}, (ROW, torch.tensor(2)), ROW.sort(descending=True).values[:2]),
    ("TopKV2", {"largest": False, "dim": 0}, (X, torch.tensor(1)), X.min(0, keepdim=True).values),
    ("Sort", {"axis": 0}, (X,), X.sort(0).values),
    ("SelectV2", {}, (MASK, X, Y), X * MASK + Y * ~MASK),
    ("MaskedFill", {}, (X, MASK, torch.tensor(7.0)), X * ~MASK + 7 * MASK),
    ("Tril", {"diagonal": -1}, (SQUARE,), SQUARE * torch.ones(4, 4, dtype=torch.float64).tril(-1)),
    ("Identity", {}, (X,), X),
    ("Assign", {}, (None, X), X),
    ("Transpose", {}, (CUBE, whole(2, 0, 1)), torch.einsum("abc->cab", CUBE)),
    ("TransposeD", {"perm": (1, 0)}, (X,), X.T),
    ("Permute", {"order": (1, 0)}, (X,), X.T),
    ("LogSigmoid", {}, (X,), (1 / (1 + torch.exp(-X))).log()),
    ("Mish", {}, (X,), X * torch.tanh(torch.log1p(torch.exp(X)))),
    ("Reshape", {"axis": 0, "num_axes": -1}, (X, whole(2, -1)), X.reshape(2, 6)),
    ("Reshape", {"axis": 1, "num_axes": 1}, (CUBE, whole(3, 1)), CUBE.unsqueeze(2)),
    ("ExpandDims", {}, (X, torch.tensor(-1)), X[..., None]),
    ("Unsqueeze", {"axes": (0, 2)}, (X,), X[None, :, None]),
    ("Squeeze", {"axis": (0,)}, (X[None],), X),
    ("FlattenV2", {"axis": 0, "end_axis": 1}, (CUBE,), CUBE.reshape(6, 4)),
    ("Flatten", {"axis": 1}, (CUBE,), CUBE.reshape(2, 12)),
    ("ConcatV2", {"N": 2}, (X, Y, torch.tensor(-1)), torch.hstack([X, Y])),
    ("ConcatD", {"concat_dim": 0, "N": 2}, (X, Y), torch.vstack([X, Y])),
    ("Pack", {"axis": 1, "N": 2}, (X, Y), torch.dstack([X, Y]).mT),
    ("Slice", {}, (X, whole(1, 0), whole(-1, 2)), X[1:, :2]),
    ("StridedSliceV2", {}, (X, whole(-3), whole(9), whole(1), whole(2)), X[:, 1::2]),
    ("StridedSliceV2", {}, (X, torch.tensor(1), torch.tensor(3), torch.tensor(0), torch.tensor(1)), X[1:3]),
    (
        "StridedSlice",
        {"end_mask": 1, "shrink_axis_mask": 2},
        (X, whole(1, -1), whole(0, 0), whole(1, 1)),
        X[1:, -1],
    ),
    ("ReverseV2", {}, (X, whole(1)), X[:, [3, 2, 1, 0]]),
    ("BroadcastTo", {}, (ROW, whole(2, 4)), torch.stack([ROW, ROW])),
    ("Expand", {}, (X[:, None], whole(1, 2, -1)), torch.stack([X, X], 1)),
    ("Tile", {}, (X, whole(1, 2)), torch.hstack([X, X])),
    ("Fill", {}, (whole(2, 2), torch.tensor(3.5)), torch.tensor([[3.5, 3.5], [3.5, 3.5]])),
    ("FillV2", {"value": 2.0}, (whole(3),), torch.tensor([2.0, 2.0, 2.0]).double()),
    ("ZerosLike", {}, (X,), X - X),
    ("Range", {}, (torch.tensor(1), torch.tensor(8), torch.tensor(3)), whole(1, 4, 7)),
    (
        "OneHot",
        {},
        (whole(2, 0, 9), torch.tensor(3), torch.tensor(1.0), torch.tensor(0.0)),
        torch.tensor([[0, 0, 1.0], [1, 0, 0], [0, 0, 0]]).double(),
    ),
    (
        "OneHot",
        {"axis": 0},
        (whole(2, 0), torch.tensor(3), torch.tensor(1.0), torch.tensor(0.0)),
        torch.tensor([[0, 1.0], [0, 0], [1, 0]]).double(),
    ),
    ("PadV3", {}, (X, whole(0, 1, 2, 0), torch.tensor(9.0)), functional.pad(X, (2, 0, 0, 1), value=9.0)),
    ("GatherV2", {}, (X, whole(2, 0), torch.tensor(0)), X[[2, 0]]),
    ("GatherV2", {}, (X, whole(2, 0).reshape(1, 2), torch.tensor(1)), X[:, [2, 0]].unsqueeze(1)),
    ("GatherElements", {"dim": 1}, (X, whole(1, 0, 3)[:, None]), X[[0, 1, 2], [1, 0, 3]][:, None]),
    ("GatherNd", {}, (X, torch.tensor([[2, 1], [0, 3]])), X[[2, 0], [1, 3]]),
    (
        "ScatterElements",
        {"axis": 0},
        (X, whole(2, 1, 0, 2)[None], Y[:1]),
        torch.stack([torch.where(whole(2, 1, 0, 2) == row, Y[0], X[row]) for row in range(3)]),
    ),
    (
        "ScatterElements",
        {"axis": 1, "reduction": "add"},
        (X, torch.tensor([[1, 1]]), whole(2, 3)[None].double()),
        X + torch.tensor([[0, 5.0, 0, 0], [0] * 4, [0] * 4]).double(),
    ),
    ("ScatterUpdate", {}, (X, whole(1), Y[:1]), torch.stack([X[0], Y[0], X[2]])),
    ("TensorScatterUpdate", {}, (X, torch.tensor([[1]]), Y[:1]), torch.stack([X[0], Y[0], X[2]])),
    ("IndexPutV2", {}, (X, Y[:, :1], whole(0, 1), whole(0), whole(3)), torch.hstack([X[:, :3], Y[:, :1]])),
    (
        "IndexPutV2",
        {"accumulate": True},
        (X, Y[:, :1], whole(0, 1), whole(0), whole(3, 3)),
        torch.hstack([X[:, :3], X[:, 3:] + 2 * Y[:, :1]]),
    ),
    ("IndexByTensor", {"indices_mask": (0, 1)}, (X, whole(3, 3)), X[:, [3, 3]]),
    ("RotaryMul", {}, (X, COS, SIN), X * COS + torch.hstack([-X[:, 2:], X[:, :2]]) * SIN),
    (
        "RotaryPositionEmbedding",
        {"mode": 1},
        (X, COS, SIN),
        X * COS + torch.stack([-X[:, 1], X[:, 0], -X[:, 3], X[:, 2]], 1) * SIN,
    ),
    ("AscendQuant", {"scale": 4.0, "offset": 1.0}, (X,), 4 * X + 1),
    (
        "AscendQuant",
        {"scale": 2.0, "offset": 0.0, "round_mode": "Floor", "sqrt_mode": True},
        (X,),
        (4 * X).floor(),
    ),
    ("AscendQuantV2", {}, (X, ROW, ROW), X * ROW + ROW),
    ("AscendDequant", {}, (BYTES.int(), torch.tensor([0.5])), BYTES.double() / 2),
    ("AscendAntiQuant", {"scale": 0.5, "offset": 2.0}, (BYTES,), (BYTES.double() + 2) / 2),
    ("DynamicQuant", {}, (X,), 127 * X / X.abs().max(1, keepdim=True).values),
    (
        "QuantBatchMatmulV3",
        {"dtype": 1},
        (BYTES, OTHER_BYTES, torch.tensor([0.5]), None, None, torch.tensor([1.0, 2, 3])),
        (BYTES.long() @ OTHER_BYTES.long()).double() / 2 * torch.tensor([[1.0], [2], [3]]),
    ),
    (
        "QuantBatchMatmulV3",
        {"dtype": 1, "transpose_x2": True},
        (BYTES, OTHER_BYTES.T, torch.tensor([0.5]), None, whole(1, 2, 3, 4, 5)),
        ((BYTES.long() @ OTHER_BYTES.long()) + whole(1, 2, 3, 4, 5)).double() / 2,
    ),
    (
        "WeightQuantBatchMatmulV2",
        {},
        (X, OTHER_BYTES, torch.arange(1.0, 6), torch.ones(5)),
        X @ ((OTHER_BYTES.double() + 1) * torch.arange(1.0, 6)),
    ),
    ("Cast", {"dst_type": 3}, (whole(5, 6),), whole(5, 6).int()),
    ("Cast", {"dst_type": 12}, (whole(0, 6),), torch.tensor([False, True])),
]


def computes_its_formula(case: tuple[str, Mapping[str, object], Tensors, torch.Tensor]) -> None:
    op_type, attrs, inputs, wanted = case
    found = first(op_type, inputs, attrs)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-11, atol=1e-12)


def test_every_operator_computes_its_formula() -> None:
    check_each([(f"{number}-{case[0]}", case) for number, case in enumerate(CASES)], computes_its_formula)


def test_floats_are_computed_in_float64_whatever_they_come_in() -> None:
    half, other = X.half(), Y.half()
    assert torch.equal(first("Mul", (half, other)), half.double() * other.double())


@pytest.mark.parametrize(("version", "third"), [("LayerNorm", "variance"), ("LayerNormV3", "rstd")])
def test_versions_of_the_layer_norm_differ_in_their_third_output(version: str, third: str) -> None:
    found = compute(version, {"begin_norm_axis": 1, "epsilon": 0.1}, (X, ROW, ROW))
    variance = ((X - X.mean(1, True)) ** 2).mean(1, True)
    torch.testing.assert_close(found[1].value, X.mean(1, True))
    wanted = variance if third == "variance" else (variance + 0.1) ** -0.5
    torch.testing.assert_close(found[2].value, wanted)


def test_outputs_of_a_split_are_in_order_and_an_open_size_takes_the_rest() -> None:
    found = compute("SplitV", {"num_split": 2}, (X, whole(1, -1), torch.tensor(1)), outputs=2)
    assert [one.value.shape for one in found] == [(3, 1), (3, 3)]
    assert torch.equal(torch.cat([one.value for one in found], 1), X)
    assert len(compute("SplitD", {"split_dim": 1, "num_split": 4}, (X,), outputs=4)) == 4


def test_a_packed_scale_is_the_float_in_its_lower_half() -> None:
    bits = torch.tensor([0.5, 4.0]).view(torch.int32).long() | (5 << 37)
    found = first("AscendDequant", (torch.tensor([[2, 2]], dtype=torch.int32), bits))
    assert found.tolist() == [[1.0, 8.0]]


def test_places_among_equal_values_stand_for_the_same() -> None:
    values, places = compute("TopKV2", {}, (torch.tensor([1.0, 3, 3, 3]), torch.tensor(2)))
    assert values.value.tolist() == [3, 3]
    assert places.image is not None
    wanted = places.image(places.value)
    assert torch.equal(places.image(whole(3, 1)), wanted)
    for wrong in (whole(3, 3), whole(0, 1), whole(9, 1), whole(-1, 1)):
        assert not torch.equal(places.image(wrong), wanted)


@pytest.mark.parametrize(
    ("op_type", "attrs", "inputs", "reason"),
    [
        ("NoSuch", {}, (X,), "has no reference"),
        ("Gelu", {"approximation": "tanh"}, (X,), "attribute approximation"),
        ("MatMulV2", {"_op_impl_mode_enum": 64}, (X, WEIGHT.T), "another precision"),
        ("MatMulV2", {"offset_x": 3}, (X, WEIGHT.T), "offsets"),
        ("MatMul", {}, (X, None), "input x2 is missing"),
        ("MatMul", {}, (X, WEIGHT), "do not fit"),
        ("MatMul", {}, (X, WEIGHT.T, None, X), "has 4 inputs"),
        ("Add", {}, (X, some(2)), r"shapes \[3, 4\], \[2\] do not fit together"),
        ("Cast", {}, (X,), "attribute dst_type is missing"),
        ("Transpose", {}, (X, whole(0, 0)), "do not fit"),
        ("Transpose", {}, (X, X), "no list of numbers"),
        ("SoftmaxV2", {"axes": (7,)}, (X,), "no dimension 7"),
        ("GatherV2", {}, (X, whole(5), torch.tensor(0)), "place 5"),
        ("GatherV2", {}, (X, whole(-1), torch.tensor(0)), "place -1"),
        ("ScatterElements", {}, (X, whole(0, 0)[:, None], Y[:2, :1]), "written twice"),
        ("ScatterUpdate", {}, (X, whole(1, 1), Y[:2]), "written twice"),
        ("IndexByTensor", {"indices_mask": (1,)}, (X, torch.tensor([True, False, True])), "torch.bool"),
        ("StridedSliceV2", {"new_axis_mask": 1}, (X, whole(0), whole(1)), "masks for new dimensions"),
        ("StridedSliceV2", {}, (X, whole(2), whole(0), whole(0), whole(-1)), "stride -1"),
        ("RmsNorm", {}, (X, some(3)), "not the end"),
        ("QuantBatchMatmulV3", {"dtype": 1}, (X, WEIGHT.T, ROW), "not int8"),
        ("ApplyRotaryPosEmb", {"layout": 4}, (X, X, COS, SIN), "layout 1"),
    ],
)  # fmt: skip
def test_what_is_not_known_for_certain_is_refused(
    op_type: str, attrs: Mapping[str, object], inputs: Tensors, reason: str
) -> None:
    with pytest.raises(OperatorError, match=reason):
        compute(op_type, attrs, inputs)


@pytest.mark.parametrize(
    ("op_type", "attrs", "inputs"),
    [
        ("BroadcastTo", {}, (ROW, whole(1 << 40, 4))),
        ("Tile", {}, (X, whole(1 << 30, 1 << 30))),
        ("Fill", {}, (whole(1 << 20, 1 << 20), torch.tensor(1.0))),
        ("Range", {}, (torch.tensor(0), torch.tensor(1 << 50), torch.tensor(1))),
        ("OneHot", {}, (whole(1), torch.tensor(1 << 40), torch.tensor(1.0), torch.tensor(0.0))),
        ("Add", {}, (some(1000, 1), some(1, 1000))),
        ("MatMul", {}, (some(1000, 1), some(1, 1000))),
        ("Pad", {}, (X, whole(0, 1 << 40, 0, 0))),
        ("GatherV2", {}, (some(1, 1000), torch.zeros(1000, dtype=torch.int64), torch.tensor(0))),
    ],
)  # fmt: skip
def test_numbers_of_a_file_make_nothing_larger_than_what_was_dumped(
    op_type: str, attrs: Mapping[str, object], inputs: Tensors
) -> None:
    with pytest.raises(OperatorError, match=r"elements|steps"):
        compute(op_type, attrs, inputs, max_elements=2000)


def test_notes_of_the_compiler_are_no_attributes() -> None:
    assert torch.equal(first("Neg", (X,), {"_fx_name": "neg", "op_impl_mode": "high_precision"}), -X)


def test_every_operator_takes_a_known_number_of_tensors() -> None:
    assert len(known()) > 150
    for op_type in known():
        with pytest.raises(OperatorError):
            compute(op_type, {}, [None] * 40)


def test_a_gelu_may_be_computed_by_tanh() -> None:
    (found,) = compute("Gelu", {}, (X,))
    assert isinstance(found, Unrounded)
    torch.testing.assert_close(found.others[0], functional.gelu(X, approximate="tanh"))


# Any number in the attributes or inputs of an operator of GE: an answer or one sentence, at once.


NUMBERS: tuple[Any, ...] = (
    2**63 - 1,
    2**31,
    100_000,
    -1,
    10**400,
    1e308,
    math.inf,
    math.nan,
    True,
    "7",
    None,
    {},
)
LISTS = tuple([value] * length for value in (2**63 - 1, 2**31, 100_000, -1) for length in (1, 2, 3))
IN_TENSORS = (2**63 - 1, 2**31, 100_000, -1)
INPUT = torch.arange(12, dtype=torch.float64).reshape(3, 4)


def seeds(op_type: str) -> list[tuple[Mapping[str, object], Tensors]]:
    """Attributes and inputs that the operator takes; of one without a case those of its kin, or a guess."""
    body = _OPERATORS[op_type].body
    found = [(attrs, inputs) for name, attrs, inputs, _ in CASES if _OPERATORS[name].body is body]
    return found or [({}, [INPUT] * len(_OPERATORS[op_type].inputs))]


def with_number(inputs: Tensors) -> Iterator[Tensors]:
    """The inputs with one number, or all of one tensor, replaced."""
    for place, tensor in enumerate(inputs):
        if tensor is None or not tensor.numel() or tensor.dtype is torch.bool:
            continue
        wide = tensor.double() if tensor.is_floating_point() else tensor.long()
        for value in (math.inf, math.nan, 1e308) if tensor.is_floating_point() else IN_TENSORS:
            one = wide.contiguous().clone()
            one.view(-1)[0] = value
            for other in (one, torch.full_like(wide, value)):
                yield [*inputs[:place], other, *inputs[place + 1 :]]


def asks_for_no_more_than_was_dumped(op_type: str) -> None:
    with bounded():
        for attrs, inputs in seeds(op_type):
            names = {*_OPERATORS[op_type].defaults, *attrs}
            given = [({**attrs, name: value}, inputs) for name in names for value in (*NUMBERS, *LISTS)]
            for attributes, tensors in (*given, *((attrs, one) for one in with_number(inputs))):
                try:
                    made = compute(op_type, attributes, tensors, max_elements=64)
                except OperatorError as error:
                    assert "alloc" not in str(error), f"{attributes}: {error}"  # noqa: PT017
                else:
                    assert all(one.value.numel() <= 4096 for one in made)


def test_no_number_asks_for_more_than_was_dumped() -> None:
    check_each(((name, name) for name in known()), asks_for_no_more_than_was_dumped)
