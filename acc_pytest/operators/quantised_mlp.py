"""The int8 MLPs that ATB computes in one kernel: up product, SwiGLU, quantisation by row, down product."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F

from .cache import lengths
from .layout import group_of, nz_to_nd
from .param import choice, flag
from .quantise import integer_matmul
from .registry import As, OperatorCall, Outputs, Tensors, operator
from .rounding import rounded

TILES = (256, 128)
"""Columns of the up product that the kernel computes at once, by `weightUpPermuteType`."""

_DTYPES = (torch.float16, torch.bfloat16)
_COMMON = {
    "outputType": choice(0, "float16", "bfloat16"),
    "weightUpPermuteType": choice(0, "tiles of 256 columns", "tiles of 128 columns"),
    "transposeWeightUp": flag(),
    "transposeWeightDown": flag(True),
}
_CUMSUM = 0
_GROUPED = {**_COMMON, "groupListType": choice(_CUMSUM, "ends", "counts")}
_UP, _DOWN = ("x", "weightUp", "scaleUp", "perTokenScale"), ("weightDown", "scaleDown")


@operator("MmDeqSwigluQuantMmDeqOperation", _COMMON, (*_UP, *_DOWN))
def mm_deq_swiglu_quant_mm_deq(call: OperatorCall, t: Tensors) -> Outputs:
    """One expert: `[m, k]` int8 by `[k, n]`, halved by SwiGLU, by `[n / 2, k']` to `[m, k']`.

    Weights come as matrices or as NZ tiles `[(1,) n1, m', 32]`.
    """
    result = _mlp(call, t, t["x"], t["perTokenScale"], None)
    return [As(result, _DTYPES[call.param["outputType"]])]


@operator("GmmDeqSwigluQuantGmmDeqOperation", _GROUPED, (*_UP, "groupList", *_DOWN))
def gmm_deq_swiglu_quant_gmm_deq(call: OperatorCall, t: Tensors) -> Outputs:
    """Some experts, each with the rows of its group; `groupList` has the groups' ends or sizes.

    Rows behind the last group are zero (the device leaves them as they are).
    """
    x, sizes = t["x"], lengths(t["groupList"])
    ends = sizes if call.param["groupListType"] == _CUMSUM else list(accumulate(sizes))
    call.need(
        ends == sorted(ends) and (not ends or 0 <= ends[0] <= ends[-1] <= len(x)),
        f"groupList {sizes} does not cut x {list(x.shape)} into groups",
    )
    products = [
        _mlp(call, t, x[start:stop], t["perTokenScale"].flatten()[start:stop], group)
        for group, (start, stop) in enumerate(pairwise([0, *ends]))
    ]
    call.need(bool(products), "groupList is empty")
    result = products[0].new_zeros(len(x), products[0].shape[1])
    result[: ends[-1]] = torch.cat(products)
    return [As(result, _DTYPES[call.param["outputType"]])]


def _mlp(
    call: OperatorCall, t: Tensors, x: torch.Tensor, row_scale: torch.Tensor, group: int | None
) -> torch.Tensor:
    """The rows of one expert; what the first product gives is float16, what the second takes int8."""
    p, tile = call.param, TILES[call.param["weightUpPermuteType"]]
    up = _matrix(call, t["weightUp"], "weightUp", group, transposed=p["transposeWeightUp"])
    down = _matrix(call, t["weightDown"], "weightDown", group, transposed=p["transposeWeightDown"])
    scale_up, scale_down = (_scale(call, t[name], group) for name in ("scaleUp", "scaleDown"))
    # NZ tiles are padded; the scales and the operand have the sizes
    up, down = up[: x.shape[1], : len(scale_up)], down[: len(scale_up) // 2, : len(scale_down)]
    call.need(
        up.shape == (x.shape[1], len(scale_up)) and down.shape == (len(scale_up) // 2, len(scale_down)),
        f"x {list(x.shape)}, weightUp {list(t['weightUp'].shape)}, weightDown {list(t['weightDown'].shape)} "
        f"and scales of {len(scale_up)} and {len(scale_down)} columns do not fit",
    )
    up, scale_up = _in_order(call, up, tile), _in_order(call, scale_up, tile)
    rows = call.wide(row_scale).reshape(-1, 1)
    hidden = call.wide(integer_matmul(x, up)) * scale_up * rows
    gate, value = call.between(hidden, torch.float16).chunk(2, -1)
    activated = F.silu(gate) * value
    step = activated.abs().amax(-1, keepdim=True) / 127
    small = rounded(activated / step, torch.int8)
    return call.wide(integer_matmul(small, down)) * scale_down * step


def _in_order(call: OperatorCall, columns: torch.Tensor, tile: int) -> torch.Tensor:
    """Columns as they were before the two halves were interleaved, half a tile of each in turn."""
    call.need(
        columns.shape[-1] % tile == 0,
        f"{columns.shape[-1]} columns of weightUp are not whole tiles of {tile} (weightUpPermuteType)",
    )
    return torch.unflatten(columns, -1, (-1, 2, tile // 2)).transpose(-3, -2).flatten(-3)


def _matrix(
    call: OperatorCall, weight: torch.Tensor, name: str, group: int | None, *, transposed: bool
) -> torch.Tensor:
    """`[k, n]` of one expert."""
    call.need(weight.dtype == torch.int8, f"{name} is {weight.dtype} and not int8")
    plain = 2 if group is None else 3
    if weight.ndim > plain:
        call.need(
            weight.shape[-1] == group_of(weight.dtype),
            f"{name} {list(weight.shape)} is not an int8 weight in NZ format",
        )
        weight = nz_to_nd(weight)
        weight = weight[0] if weight.ndim > plain else weight
    call.need(
        weight.ndim == plain and (group is None or group < len(weight)),
        f"{name} {list(weight.shape)} is no matrix for {'every' if group is not None else 'the one'} expert",
    )
    matrix = weight if group is None else weight[group]
    return matrix.T if transposed else matrix


def _scale(call: OperatorCall, scale: torch.Tensor, group: int | None) -> torch.Tensor:
    rows = scale.reshape(1 if group is None else len(scale), -1)
    call.need((group or 0) < len(rows), f"scales {list(scale.shape)} have no row for expert {group}")
    return call.wide(rows[group or 0])
