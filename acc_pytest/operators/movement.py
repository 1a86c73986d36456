"""Operators that move, cut, join, pad or fill: their outputs are exact copies of what they were given."""

from __future__ import annotations

from itertools import pairwise

import torch

from .layout import group_of, nd_to_nz, nz_to_nd
from .registry import OperatorCall, Outputs, Tensors, choice, flag, floats, integer, integers, operator


def _axis(call: OperatorCall, name: str, axis: int, ndim: int) -> int:
    call.need(-ndim <= axis < ndim, f"parameter {name} is {axis}, but the input has {ndim} dimensions")
    return axis % ndim


@operator("GatherOperation", {"axis": integer(), "batchDims": integer()}, ("x", "indices"))
def gather(call: OperatorCall, t: Tensors) -> Outputs:
    """Rows of `x` along `axis`: x[:axis] + indices[batchDims:] + x[axis + 1:].

    The first `batchDims` dimensions of both coincide, and each index looks in its own batch.
    """
    x, indices = t["x"], t["indices"].long()
    batch = call.param["batchDims"]
    axis = _axis(call, "axis", call.param["axis"], x.ndim)
    call.need(
        0 <= batch <= min(axis, indices.ndim) and x.shape[:batch] == indices.shape[:batch],
        f"parameter batchDims is {batch}, but x is {list(x.shape)}, indices {list(indices.shape)} "
        f"and axis {axis}",
    )
    size = x.shape[axis]
    call.need(
        not indices.numel() or (int(indices.min()) >= 0 and int(indices.max()) < size),
        f"indices reach outside 0..{size - 1}, the rows of x along axis {axis}",
    )
    shape = (*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :])
    dtype = x.dtype
    if str(dtype) == "torch.uint32":
        x = x.view(torch.int32)  # torch picks none of them along every axis
    if not batch:
        return [x.index_select(axis, indices.flatten()).reshape(shape).view(dtype)]
    rows = x.flatten(0, batch - 1)
    picked = indices.flatten(0, batch - 1).flatten(1)
    batches = [r.index_select(axis - batch, i) for r, i in zip(rows, picked)]
    return [(torch.stack(batches).reshape(shape) if batches else x.new_empty(shape)).view(dtype)]


@operator("TransposeOperation", {"perm": integers()}, ("x",))
def transpose(call: OperatorCall, t: Tensors) -> Outputs:
    """`x` with its dimensions in the order `perm`."""
    perm = call.param["perm"]
    call.need(
        sorted(perm) == list(range(t["x"].ndim)),
        f"parameter perm is {list(perm)}, no permutation of {t['x'].ndim} dimensions",
    )
    return [t["x"].permute(perm)]


STRIDED = {"size": integers(), "stride": integers(), "offset": integers(0)}


@operator("AsStridedOperation", STRIDED, ("x",))
def as_strided(call: OperatorCall, t: Tensors) -> Outputs:
    """A copy of the view `size`, `stride` (elements), `offset[0]` of contiguous `x`."""
    p = call.param
    size, stride, offset = p["size"], p["stride"], p["offset"][0] if p["offset"] else 0
    call.need(len(size) == len(stride), f"size has {len(size)} entries, stride {len(stride)}")
    if not all(size):
        return [t["x"].new_empty(size)]
    last = offset + sum((s - 1) * d for s, d in zip(size, stride))
    call.need(
        0 <= offset <= last < t["x"].numel() and min(stride, default=0) >= 0,
        f"size {list(size)}, stride {list(stride)}, offset {offset} reach outside x {list(t['x'].shape)}",
    )
    return [t["x"].contiguous().as_strided(size, stride, offset)]


@operator("ConcatOperation", {"concatDim": integer()}, ("x", "y"))
def concat(call: OperatorCall, t: Tensors) -> Outputs:
    """`x` and `y` one after the other along `concatDim`."""
    x, y = t["x"], t["y"]
    dim = _axis(call, "concatDim", call.param["concatDim"], x.ndim)
    shapes = [list(s.shape[:dim]) + list(s.shape[dim + 1 :]) for s in (x, y)]
    call.need(
        x.ndim == y.ndim and shapes[0] == shapes[1] and x.dtype == y.dtype,
        f"x {x.dtype} {list(x.shape)} and y {y.dtype} {list(y.shape)} do not join along dimension {dim}",
    )
    return [torch.cat((x, y), dim)]


SPLIT = {"splitNum": choice(2, "two", "three", start=2), "splitDim": integer(), "splitSizes": integers()}


@operator("SplitOperation", SPLIT, ("x",))
def split(call: OperatorCall, t: Tensors) -> Outputs:
    """`x` cut along `splitDim` into `splitNum` equal parts, or into parts of `splitSizes`."""
    x, p = t["x"], call.param
    dim = _axis(call, "splitDim", p["splitDim"], x.ndim)
    if p["splitSizes"]:
        call.need(
            len(p["splitSizes"]) == p["splitNum"] and sum(p["splitSizes"]) == x.shape[dim],
            f"splitSizes {list(p['splitSizes'])} are not {p['splitNum']} parts of {x.shape[dim]}",
        )
        return torch.split(x, p["splitSizes"], dim)
    call.need(
        x.shape[dim] % p["splitNum"] == 0,
        f"dimension {dim} has size {x.shape[dim]}, which does not split into {p['splitNum']} equal parts",
    )
    return torch.split(x, [x.shape[dim] // p["splitNum"]] * p["splitNum"], dim)


@operator("SliceOperation", {"offsets": integers(), "size": integers()}, ("x",))
def slice_(call: OperatorCall, t: Tensors) -> Outputs:
    """The box of `x` from `offsets` (negative: from the end) of `size` (-1: to the end)."""
    x, offsets, size = t["x"], call.param["offsets"], call.param["size"]
    call.need(
        len(offsets) == len(size) == x.ndim,
        f"offsets {list(offsets)} and size {list(size)} need one entry for each of {x.ndim} dimensions",
    )
    result = x
    for dim, (start, count) in enumerate(zip(offsets, size)):
        first = start + x.shape[dim] if start < 0 else start
        length = x.shape[dim] - first if count == -1 else count
        call.need(
            0 <= first <= first + length <= x.shape[dim],
            f"offset {start} and size {count} reach outside dimension {dim} of {list(x.shape)}",
        )
        result = result.narrow(dim, first, length)
    return [result]


@operator("RepeatOperation", {"multiples": integers()}, ("x",))
def repeat(call: OperatorCall, t: Tensors) -> Outputs:
    """`x` tiled; `multiples` may have more entries than `x` has dimensions."""
    multiples = call.param["multiples"]
    call.need(
        len(multiples) >= t["x"].ndim,
        f"parameter multiples is {list(multiples)}, too short for {t['x'].ndim} dimensions",
    )
    return [t["x"].repeat(multiples)]


FILL = {"withMask": flag(True), "value": floats(), "outDim": integers()}


@operator("FillOperation", FILL, lambda param: ("x", "mask") if param["withMask"] else ())
def fill(call: OperatorCall, t: Tensors) -> Outputs:
    """`value[0]` where `mask` is not 0 and `x` elsewhere; without mask a float16 tensor of `outDim`."""
    p = call.param
    call.need(len(p["value"]) == 1, f"parameter value is {list(p['value'])}; one number is needed")
    if not p["withMask"]:
        return [torch.full(p["outDim"], p["value"][0], dtype=torch.float16)]
    value = torch.tensor(p["value"][0]).to(t["x"].dtype)
    return [torch.where(t["mask"] != 0, value, t["x"])]


BOX = {"starts": integers(), "ends": integers(), "strides": integers()}


@operator("SetValueOperation", BOX, ("dst", "src"), writes=("dst",))
def set_value(call: OperatorCall, t: Tensors) -> Outputs:
    """Write `src` over the box `starts` to `ends` of `dst`. No output."""
    p, dst, src = call.param, t["dst"], t["src"]
    call.need(
        len(p["starts"]) == len(p["ends"]) == dst.ndim and set(p["strides"]) <= {1},
        f"starts {list(p['starts'])}, ends {list(p['ends'])} need {dst.ndim} entries, strides only ones",
    )
    size = [end - start for start, end in zip(p["starts"], p["ends"])]
    inside = all(0 <= s <= e <= n for s, e, n in zip(p["starts"], p["ends"], dst.shape))
    call.need(
        inside and size == list(src.shape),
        f"src {list(src.shape)} is not the box {list(p['starts'])} to {list(p['ends'])} of {list(dst.shape)}",
    )
    result = dst.clone()
    result[tuple(slice(s, e) for s, e in zip(p["starts"], p["ends"]))] = src
    return [result]


NZ_TO_ND, ND_TO_NZ = 1, 2
TRANSDATA = {
    "transdataType": choice(0, "NZ to ND", "ND to NZ", start=1, extra={0: "undefined"}),
    "outCrops": integers(0, 0),
}


@operator("TransdataOperation", TRANSDATA, ("x",))
def transdata(call: OperatorCall, t: Tensors) -> Outputs:
    """`[b, n1, m', n0]` <-> `[b, m, n]`; to NZ the rest of the last block is zero."""
    x, kind = t["x"], call.param["transdataType"]
    call.need(kind != 0, "parameter transdataType is missing")
    if kind == ND_TO_NZ:
        call.need(x.ndim in (2, 3), f"x {list(x.shape)} has not 2 or 3 dimensions")
        return [nd_to_nz(x if x.ndim == 3 else x[None], group_of(x.dtype))]
    call.need(x.ndim == 4, f"x {list(x.shape)} is not [b, n1, m, n0]")
    rows, columns = (*call.param["outCrops"], 0, 0)[:2]
    return [nz_to_nd(x, rows or None, columns or None)]


@operator("PadOperation", {}, ("tmpOut", "paddingOffset", "seqLen", "inputIds"))
def pad(call: OperatorCall, t: Tensors) -> Outputs:
    """The last token's row of each sequence: `[tokens, h]` -> `[batch, h]`."""
    last = t["seqLen"].flatten().long().cumsum(0) - 1
    call.need(
        not last.numel() or int(last[-1]) < t["tmpOut"].shape[0],
        f"seqLen sums to {int(last[-1]) + 1}, but tmpOut has {t['tmpOut'].shape[0]} tokens",
    )
    return [t["tmpOut"][last]]


@operator("UnpadOperation", {}, ("inputIds", "cumOffsetsNow", "tokenNum", "seqLen"))
def unpad(call: OperatorCall, t: Tensors) -> Outputs:
    """Ids `[batch, max]` without padding, each sequence's offset, and that offset for each token.

    The outputs are as long as the padded input; the tail is zero.
    """
    ids, lengths = t["inputIds"], t["seqLen"].flatten().tolist()
    call.need(
        ids.ndim == 2 and len(lengths) == ids.shape[0] and max(lengths, default=0) <= ids.shape[1],
        f"inputIds {list(ids.shape)} and seqLen {lengths} do not fit",
    )
    offsets = t["cumOffsetsNow"].clone()
    offsets[1:] = t["cumOffsetsNow"][:-1]
    offsets[:1] = 0
    packed = ids.new_zeros(1, ids.numel())
    padding = offsets.new_zeros(1, ids.numel())
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    for row, (start, stop) in enumerate(pairwise(starts)):
        packed[0, start:stop] = ids[row, : stop - start]
        padding[0, start:stop] = offsets.flatten()[row]
    return [packed, offsets, padding]


HIDDEN = {"qSeqLen": integers(), "maxSeqLen": integer(4096)}


@operator("PadWithHiddenStateOperation", HIDDEN, ("x",))
def pad_with_hidden_state(call: OperatorCall, t: Tensors) -> Outputs:
    """Packed tokens `[sum, h]` -> `[batch, maxSeqLen, h]`, zero behind each sequence."""
    x, lengths, longest = t["x"], call.param["qSeqLen"], call.param["maxSeqLen"]
    call.need(
        sum(lengths) == x.shape[0] and all(0 <= length <= longest for length in lengths),
        f"qSeqLen {list(lengths)} does not cut x {list(x.shape)} into sequences of at most {longest}",
    )
    result = x.new_zeros(len(lengths), longest, *x.shape[1:])
    for row, tokens in zip(result, torch.split(x, lengths)):
        row[: len(tokens)] = tokens
    return [result]


@operator("UnpadWithHiddenStateOperation", HIDDEN, ("x",))
def unpad_with_hidden_state(call: OperatorCall, t: Tensors) -> Outputs:
    """`[batch, maxSeqLen, h]` -> packed tokens `[sum, h]`."""
    x, lengths = t["x"], call.param["qSeqLen"]
    call.need(
        len(lengths) == x.shape[0] and all(0 <= length <= x.shape[1] for length in lengths),
        f"qSeqLen {list(lengths)} does not fit x {list(x.shape)}",
    )
    return [torch.cat([row[:n] for row, n in zip(x, lengths)])]
