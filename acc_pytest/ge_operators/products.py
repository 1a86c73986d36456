"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .registry import REQUIRED, GeCall, Unrounded, ge_operator


def product(
    call: GeCall, x1: torch.Tensor, x2: torch.Tensor, bias: torch.Tensor | None, turned: tuple[bool, bool]
) -> Unrounded:
    """`x1 @ x2 + bias`, with operands turned as asked; float or whole numbers. Raises `OperatorError`."""
    call.need(x1.ndim >= 2 and x2.ndim >= 2, "a product needs matrices")
    left, right = (matrix.mT if turn else matrix for matrix, turn in zip((x1, x2), turned))
    call.need(left.shape[-1] == right.shape[-2], f"{list(left.shape)} and {list(right.shape)} do not fit")
    rows = call.common_shape(left.shape[:-2], right.shape[:-2])
    call.room((*rows, left.shape[-2], right.shape[-1]))
    if not left.is_floating_point():
        # A float64 holds sums of products of bytes exactly, and multiplies faster than integers do.
        call.need(not right.is_floating_point(), "one of two operands is of whole numbers")
        left, right = left.double(), right.double()
    value = left @ right

    def magnitude() -> torch.Tensor:
        sizes = left.abs() @ right.abs()
        return sizes if bias is None else sizes + bias.abs()

    return Unrounded(value if bias is None else value + bias, left.shape[-1], magnitude)


@ge_operator("MatMul", "x1 x2 bias?", transpose_x1=False, transpose_x2=False)
@ge_operator("MatMulV2 MatMulV3", "x1 x2 bias? offset_w?", transpose_x1=False, transpose_x2=False, offset_x=0)
@ge_operator("BatchMatMul", "x1 x2", adj_x1=False, adj_x2=False)
@ge_operator("BatchMatMulV2 BatchMatMulV3", "x1 x2 bias? offset_w?", adj_x1=False, adj_x2=False, offset_x=0)
def _matmul(
    call: GeCall,
    x1: torch.Tensor,
    x2: torch.Tensor,
    bias: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
) -> Unrounded:
    without = offset is None and call.attrs.get("offset_x", 0) == 0
    call.need(without, "offsets of quantised operands are not known")
    turn = "adj" if call.op_type.startswith("Batch") else "transpose"
    return product(call, x1, x2, bias, (call.attrs[f"{turn}_x1"], call.attrs[f"{turn}_x2"]))


@ge_operator("BiasAdd", "x bias", data_format="NHWC")
def _bias_add(call: GeCall, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    call.need(x.ndim == 2 or call.attrs["data_format"] == "NHWC", "only a bias along the last dimension")
    return x + bias


# Quantisation, its reverse, and products of quantised operands.
#
# Scales of a product may be packed: 64 bits whose lower half is a float32 (`TransQuantParamV2`). What becomes
# int8 is left unrounded here: a value between two may go either way.


_INT8 = 2
_INT32 = 3
_WIDEST = 127.0
_ROUNDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "round": torch.round,
    "rint": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
}


def _as_int8(call: GeCall, value: torch.Tensor) -> torch.Tensor:
    mode = str(call.attrs["round_mode"]).lower()
    call.need(mode in _ROUNDS, f"round_mode={call.attrs['round_mode']!r:.100} is not known")
    call.need(call.attrs["dst_type"] == _INT8, f"dst_type {call.attrs['dst_type']} is not int8")
    return value if _ROUNDS[mode] is torch.round else _ROUNDS[mode](value)


@ge_operator(
    "AscendQuant", "x", scale=REQUIRED, offset=REQUIRED, sqrt_mode=False, round_mode="Round", dst_type=2
)
def _quant(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    scale = call.attrs["scale"] ** (2 if call.attrs["sqrt_mode"] else 1)
    return _as_int8(call, x * scale + call.attrs["offset"])


@ge_operator("AscendQuantV2", "x scale offset?", sqrt_mode=False, round_mode="round", dst_type=2, axis=-1)
def _quant_v2(
    call: GeCall, x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None
) -> torch.Tensor:
    scale = _along(call, scale, x) ** (2 if call.attrs["sqrt_mode"] else 1)
    return _as_int8(call, x * scale + (0 if offset is None else _along(call, offset, x)))


def _along(call: GeCall, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if scale.ndim != 1 or scale.numel() == 1:
        return scale
    axis = call.axis(call.attrs["axis"], x.ndim)
    call.need(scale.numel() == x.shape[axis], f"{scale.numel()} scales for {x.shape[axis]} columns")
    return scale.reshape(-1, *(1,) * (x.ndim - axis - 1))


@ge_operator("AscendDequant", "x deq_scale", sqrt_mode=False, relu_flag=False, dtype=0)
def _dequant(call: GeCall, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    scale = _scale(call, scale) ** (2 if call.attrs["sqrt_mode"] else 1)
    value = x.double() * scale
    return value.relu() if call.attrs["relu_flag"] else value


@ge_operator("AscendAntiQuant", "x", scale=REQUIRED, offset=REQUIRED, dtype=0, sqrt_mode=False)
def _antiquant(call: GeCall, x: torch.Tensor) -> torch.Tensor:
    scale = call.attrs["scale"] ** (2 if call.attrs["sqrt_mode"] else 1)
    return torch.mul(x.double() + call.attrs["offset"], scale)


@ge_operator("AscendAntiQuantV2", "x scale offset?", dst_type=1, sqrt_mode=False)
def _antiquant_v2(
    call: GeCall, x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None
) -> torch.Tensor:
    shifted = x.double() if offset is None else x.double() + offset
    return shifted * scale ** (2 if call.attrs["sqrt_mode"] else 1)


@ge_operator("DynamicQuant", "x smooth_scales? group_index?", dst_type=2)
def _dynamic_quant(
    call: GeCall, x: torch.Tensor, smooth: torch.Tensor | None, groups: torch.Tensor | None
) -> list[Unrounded]:
    """Each row by its own largest value; the second output is what a step is worth."""
    call.need(groups is None, "scales by group")
    call.need(call.attrs["dst_type"] == _INT8, f"dst_type {call.attrs['dst_type']} is not int8")
    smoothed = x if smooth is None else x * smooth
    scale = smoothed.abs().amax(-1) / _WIDEST
    steps = torch.where(scale > 0, scale, torch.ones_like(scale)).unsqueeze(-1)
    return [Unrounded(smoothed / steps), Unrounded(scale)]


@ge_operator(
    "QuantBatchMatmulV3",
    "x1 x2 scale offset? bias? pertoken_scale?",
    dtype=REQUIRED,
    transpose_x1=False,
    transpose_x2=False,
    group_size=0,
)
def _quant_matmul(
    call: GeCall,
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    pertoken: torch.Tensor | None,
) -> Unrounded:
    """A bias of whole numbers is added before scaling, one of floats after it."""
    call.need(x1.dtype == torch.int8 == x2.dtype, "its operands are not int8")
    call.need(call.attrs["group_size"] in (0, -1), "scales by group")
    early = bias if bias is not None and not bias.is_floating_point() else None
    turned = (call.attrs["transpose_x1"], call.attrs["transpose_x2"])
    total = product(call, x1, x2, early, turned).value
    if call.attrs["dtype"] == _INT32:
        return Unrounded(total)
    value = total * _scale(call, scale)
    if pertoken is not None:
        value = value * pertoken.unsqueeze(-1)
    if bias is not None and early is None:
        late = value + bias
        return Unrounded(late, 2, lambda: value.abs() + bias.abs())
    return Unrounded(value if offset is None else value + offset)


def _scale(call: GeCall, scale: torch.Tensor) -> torch.Tensor:
    if scale.is_floating_point():
        return scale
    call.need(scale.element_size() == 8, f"a scale of {scale.dtype}")
    halves = scale.contiguous().view(torch.int32).reshape(*scale.shape, 2)
    return halves[..., 0].contiguous().view(torch.float32).double()


@ge_operator(
    "WeightQuantBatchMatmulV2",
    "x weight antiquant_scale antiquant_offset? quant_scale? quant_offset? bias?",
    transpose_x=False,
    transpose_weight=False,
    antiquant_group_size=0,
    dtype=-1,
    inner_precise=0,
)
def _weight_quant_matmul(
    call: GeCall,
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    quant_scale: torch.Tensor | None,
    quant_offset: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> Unrounded:
    call.need(weight.dtype == torch.int8, f"a weight of {weight.dtype}")
    call.need(quant_scale is None and quant_offset is None, "a quantised result")
    call.need(call.attrs["antiquant_group_size"] == 0, "scales by group")
    shape = (-1, 1) if call.attrs["transpose_weight"] else (1, -1)
    wide = weight.double() if offset is None else weight.double() + offset.reshape(shape)
    turned = (call.attrs["transpose_x"], call.attrs["transpose_weight"])
    return product(call, x, wide * scale.reshape(shape), bias, turned)
