"""Mistakes for graphs of GE: what an operator writes instead, or what a run is fed instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from acc_pytest.topology.ge_graph import GeNode

Values = list[torch.Tensor]
Spoil = Callable[[GeNode, Sequence[torch.Tensor], Values], Values]
LEAST = 4
"""Elements below which a tensor is no result of a model, but a size or an axis."""


@dataclass(frozen=True)
class Spoiling:
    """`what` in words; `types` of operators that can have it, none for all; `dtypes` of programs likewise."""

    what: str
    spoil: Spoil
    types: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


def _first(change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    return lambda _node, _given, made: [change(made[0]), *made[1:]]


def _rows(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    rows = tensor.reshape(-1, tensor.shape[-1]).clone()
    rows[len(rows) // 2] *= factor
    return rows.reshape(tensor.shape)


def _one_nan(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1).clone()
    flat[len(flat) // 2] = torch.nan
    return flat.reshape(tensor.shape)


def _off_by_one(_node: GeNode, given: Sequence[torch.Tensor], made: Values) -> Values:
    return [made[0], (made[1] + 1) % given[0].shape[-1]]


def _transposed(_node: GeNode, given: Sequence[torch.Tensor], made: Values) -> Values:
    return [given[0].reshape(made[0].shape)]


def _short(_node: GeNode, given: Sequence[torch.Tensor], made: Values) -> Values:
    half = given[0].shape[-1] // 2
    return [(given[0][..., :half].float() @ given[1][..., :half, :].float()).to(made[0].dtype)]


def _left(_node: GeNode, given: Sequence[torch.Tensor], made: Values) -> Values:
    """The first operand as it is, where it has the result's shape."""
    return [given[0].to(made[0].dtype)] if given[0].shape == made[0].shape else made


def _norm(epsilon: float, weighted: bool) -> Spoil:
    def spoil(_node: GeNode, given: Sequence[torch.Tensor], made: Values) -> Values:
        x, shape, weight, bias = (one.float() if one.is_floating_point() else one for one in given)
        found = torch.native_layer_norm(x, shape.tolist(), weight if weighted else None, bias, epsilon)
        return [one.to(own.dtype) for one, own in zip(found, made)]

    return spoil


def _stale(_node: GeNode, given: Sequence[torch.Tensor], made: Values) -> Values:
    return [given[0].to(made[0].dtype).clone()]


def _swapped(_node: GeNode, _given: Sequence[torch.Tensor], made: Values) -> Values:
    return [made[1], made[0], *made[2:]] if made[0].shape == made[1].shape else made


def _joined(node: GeNode, given: Sequence[torch.Tensor], made: Values) -> Values:
    *parts, axis = given
    return [torch.cat([parts[-1], *parts[1:-1], parts[0]], int(axis)).to(made[0].dtype)]


def _smallest(_node: GeNode, given: Sequence[torch.Tensor], made: Values) -> Values:
    found = given[0].topk(int(given[1]), -1, largest=False)
    return [found.values.to(made[0].dtype), found.indices.int()]


def _sum(_node: GeNode, given: Sequence[torch.Tensor], made: Values) -> Values:
    return [given[0][..., :-1].float().sum(-1).to(made[0].dtype)]


def _applied(function: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    return lambda _node, given, made: [function(given[0].float()).to(made[0].dtype)]


PRODUCTS = ("MatMul", "MatMulV2", "BatchMatMul")
SPOILINGS = {
    "spoiled": Spoiling(
        "a tenth of the mean size is added", _first(lambda x: x + (0.1 * x.float().abs().mean()).to(x.dtype))
    ),
    "row_sign": Spoiling("one row has the wrong sign", _first(lambda x: _rows(x, -1))),
    "row_zeroed": Spoiling("one row is zero", _first(lambda x: _rows(x, 0))),
    "bfloat16": Spoiling(
        "it is computed in bfloat16", _first(lambda x: x.bfloat16().to(x.dtype)), dtypes=("float32",)
    ),
    "nan": Spoiling("one element is NaN", _first(_one_nan)),
    "places": Spoiling("places of the largest are off by one", _off_by_one, ("TopKV2",)),
    "rolled": Spoiling(
        "elements are off by one place",
        _first(lambda x: x.reshape(-1).roll(1).reshape(x.shape)),
        ("Reshape", "Identity", "Transpose", "StridedSliceV2"),
    ),
    "transposed": Spoiling("a weight is read transposed", _transposed, ("Transpose",)),
    "short": Spoiling("half of the terms are left out", _short, PRODUCTS),
    "dropped": Spoiling(
        "the second operand is not applied (bias, mask, residual, scale)", _left, ("Add", "Mul", "RealDiv")
    ),
    "epsilon": Spoiling("the epsilon of a norm is 0.1", _norm(0.1, True), ("LayerNormV4",)),
    "norm_weight": Spoiling("the weight of a norm is not applied", _norm(1e-5, False), ("LayerNormV4",)),
    "axis": Spoiling("softmax runs along another axis", _applied(lambda x: x.softmax(-2)), ("SoftmaxV2",)),
    "scale": Spoiling(
        "softmax of scores half as large", _applied(lambda x: (x / 2).softmax(-1)), ("SoftmaxV2",)
    ),
    "activation": Spoiling("another activation", _applied(torch.relu), ("Swish", "Gelu")),
    "order": Spoiling("two parts are swapped", _joined, ("ConcatV2",)),
    "parts": Spoiling("two results are swapped", _swapped, ("SplitV",)),
    "stale": Spoiling("a cache is not written", _stale, ("ScatterElements", "Assign")),
    "smallest": Spoiling("the smallest instead of the largest", _smallest, ("TopKV2",)),
    "sum": Spoiling("the last term is left out", _sum, ("ReduceSum",)),
}
"""Mistakes of an operator, by name."""
FED = {
    "other_weight": "a weight of other values",
    "other_prompt": "an input of other values",
}
"""Mistakes in what a run is fed."""


def applicable(kind: str, node: GeNode, given: Sequence[torch.Tensor], made: Values, dtype: str) -> bool:
    """Whether an operator of a program in `dtype` can have a mistake, and it changes what it writes."""
    one = SPOILINGS[kind]
    if (one.types and node.op_type not in one.types) or (one.dtypes and dtype not in one.dtypes):
        return False
    if not made or made[0].numel() < LEAST or not made[0].is_floating_point():
        return False
    if kind == "transposed" and (made[0].ndim != 2 or made[0].shape[0] != made[0].shape[1]):
        return False
    if kind == "bfloat16" and made[0].dtype == torch.bfloat16:
        return False
    wrong = one.spoil(node, given, list(made))
    return any(
        own.shape == other.shape and not torch.equal(own, other) for own, other in zip(made, wrong)
    ) and all(own.shape == other.shape for own, other in zip(made, wrong))


def other_values(tensor: torch.Tensor) -> torch.Tensor:
    """Values of the same size in another order."""
    places = torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(tensor.numel()))
    return tensor.reshape(-1)[places].reshape(tensor.shape)


def kinds() -> Iterator[str]:
    """All mistakes."""
    yield from SPOILINGS
    yield from FED


def meaning(kind: str) -> str:
    """A mistake in words."""
    return SPOILINGS[kind].what if kind in SPOILINGS else FED[kind]
