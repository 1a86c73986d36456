"""GE graphs run operator by operator in float32: what a device would do, apart from the package's references.

Each operator takes its inputs as they lie on the device, computes in float32 and rounds once to the type of
the program. Only the types of the programs of this benchmark are here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from acc_pytest.ge_operators import constant_tensor
from acc_pytest.topology.ge_graph import GeConstant, GeNode

Inputs = Sequence[Any]
Kernel = Callable[[GeNode, Inputs], "list[torch.Tensor]"]
_TYPES = {0: None, 3: torch.int32, 9: torch.int64, 27: torch.bfloat16, 1: None}
"""What a Cast writes, by its code; `None` stands for the float type of the program."""


def run_kernel(node: GeNode, inputs: Inputs, dtype: torch.dtype) -> list[torch.Tensor]:
    """The outputs of an operator. Floats are of the type of the program, but for what is cast to bfloat16."""
    given = [one.float() if _is_float(one) else one for one in inputs]
    out_of = torch.bfloat16 if any(_narrow(one) for one in inputs) else dtype
    if node.op_type == "Cast" and node.attrs["dst_type"] == 27:
        out_of = torch.bfloat16
    return [_stored(one, out_of) for one in KERNELS[node.op_type](node, given)]


def _stored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    kept = tensor.to(dtype) if tensor.is_floating_point() else tensor
    return kept.contiguous().clone()


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16


def _numbers(tensor: torch.Tensor) -> list[int]:
    return [int(value) for value in tensor.reshape(-1)]


def _const(node: GeNode, _given: Inputs) -> list[torch.Tensor]:
    value = node.attrs["value"]
    assert isinstance(value, GeConstant)
    return [constant_tensor(value)]


def _matmul(node: GeNode, given: Inputs) -> list[torch.Tensor]:
    left = given[0].mT if node.attrs.get("transpose_x1") or node.attrs.get("adj_x1") else given[0]
    right = given[1].mT if node.attrs.get("transpose_x2") or node.attrs.get("adj_x2") else given[1]
    return [torch.matmul(left, right)]


def _strided_slice(_node: GeNode, given: Inputs) -> list[torch.Tensor]:
    x, begin, end, axes, strides = given
    for first, last, axis, step in zip(*map(_numbers, (begin, end, axes, strides))):
        stop = min(max(last + x.shape[axis] if last < 0 else last, 0), x.shape[axis])
        places = torch.arange(first + x.shape[axis] if first < 0 else min(first, stop), stop, step)
        x = x.index_select(axis, places)
    return [x]


def _layer_norm(node: GeNode, given: Inputs) -> list[torch.Tensor]:
    x, shape, weight, bias = given
    epsilon: Any = node.attrs.get("epsilon", 1e-5)
    return list(torch.native_layer_norm(x, _numbers(shape), weight, bias, epsilon))


def _cast(node: GeNode, given: Inputs) -> list[torch.Tensor]:
    wanted = _TYPES[node.attrs["dst_type"]]  # type: ignore[index]
    return [given[0] if wanted is None else given[0].to(wanted)]


def _topk(_node: GeNode, given: Inputs) -> list[torch.Tensor]:
    order = given[0].argsort(dim=-1, descending=True, stable=True)[..., : int(given[1])]
    return [given[0].gather(-1, order), order.int()]


def _softmax(node: GeNode, given: Inputs) -> list[torch.Tensor]:
    axes: Any = node.attrs.get("axes", (-1,))
    (axis,) = axes
    powers = (given[0] - given[0].amax(axis, True)).exp()
    return [powers / powers.sum(axis, True)]


def _gelu(_node: GeNode, given: Inputs) -> list[torch.Tensor]:
    return [0.5 * given[0] * torch.erfc(-given[0] / math.sqrt(2))]


def _split(_node: GeNode, given: Inputs) -> list[torch.Tensor]:
    x, sizes, axis = given
    parts, along = _numbers(sizes), int(axis)
    rest = x.shape[along] - sum(size for size in parts if size > 0)
    return list(torch.split(x, [rest if size < 0 else size for size in parts], along))


def _sum(node: GeNode, given: Inputs) -> list[torch.Tensor]:
    return [given[0].sum(_numbers(given[1]), bool(node.attrs.get("keep_dims")))]


KERNELS: dict[str, Kernel] = {
    "Const": _const,
    "Transpose": lambda _, given: [given[0].permute(_numbers(given[1]))],
    "Reshape": lambda _, given: [given[0].reshape(_numbers(given[1]))],
    "Identity": lambda _, given: [given[0]],
    "Assign": lambda _, given: [given[1]],
    "MatMul": _matmul,
    "MatMulV2": _matmul,
    "BatchMatMul": _matmul,
    "Mul": lambda _, given: [given[0] * given[1]],
    "Add": lambda _, given: [given[0] + given[1]],
    "RealDiv": lambda _, given: [given[0] / given[1]],
    "Swish": lambda _, given: [functional.silu(given[0])],
    "Gelu": _gelu,
    "LayerNormV4": _layer_norm,
    "SoftmaxV2": _softmax,
    "Cast": _cast,
    "StridedSliceV2": _strided_slice,
    "ConcatV2": lambda _, given: [torch.cat(list(given[:-1]), int(given[-1]))],
    "SplitV": _split,
    "Pack": lambda _, given: [torch.stack(list(given)).int()],
    "TopKV2": _topk,
    "BroadcastTo": lambda _, given: [given[0].expand(_numbers(given[1]))],
    "ScatterElements": lambda node, given: [given[0].scatter(node.attrs["axis"], given[1], given[2])],
    "ReduceSum": _sum,
}
