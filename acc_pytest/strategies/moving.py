"""Shape rules of operators that move, cut, join, pad: their outputs are copies."""

from __future__ import annotations

from itertools import accumulate

import torch

from .table import rule
from .values import (
    FLOATS,
    SHORT,
    Draw,
    Drawn,
    axis,
    counts,
    flag,
    floats,
    integer,
    integers,
    numbers,
    one_of,
    order,
    shape,
)

_ANY = (torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.int64)


def _values(draw: Draw, size: list[int]) -> torch.Tensor:
    dtype = one_of(draw, *_ANY)
    return floats(draw, size, dtype) if dtype.is_floating_point else integers(draw, size, -100, 100, dtype)


@rule("GatherOperation")
def gather(draw: Draw) -> Drawn:
    """Any axis, indices of any shape, common leading dimensions as batches."""
    size = shape(draw)
    dim = integer(draw, 0, len(size) - 1)
    batch = integer(draw, 0, dim)
    places = [*size[:batch], *shape(draw, 1, 2)]
    indices = integers(draw, places, 0, size[dim] - 1, one_of(draw, torch.int64, torch.int32))
    axis = dim - len(size) if flag(draw) else dim
    return {"axis": axis, "batchDims": batch}, [_values(draw, size), indices]


@rule("TransposeOperation")
def transpose(draw: Draw) -> Drawn:
    """Any permutation."""
    size = shape(draw)
    return {"perm": order(draw, len(size))}, [_values(draw, size)]


@rule("AsStridedOperation")
def as_strided(draw: Draw) -> Drawn:
    """Views inside the tensor, overlapping ones too."""
    size, stride = shape(draw, 1, 3, 4), []
    stride = numbers(draw, len(size), len(size), 0, 5)
    offset = integer(draw, 0, 4)
    needed = 1 + offset + sum((n - 1) * s for n, s in zip(size, stride))
    x = _values(draw, [needed + integer(draw, 0, 3)])
    return {"size": size, "stride": stride, "offset": [offset]}, [x]


@rule("ConcatOperation")
def concat(draw: Draw) -> Drawn:
    """Two tensors that differ in one dimension at most."""
    left, dtype = shape(draw), one_of(draw, *FLOATS)
    dim, right = axis(draw, len(left)), list(left)
    right[dim] = integer(draw, 1, 6)
    return {"concatDim": dim}, [floats(draw, left, dtype), floats(draw, right, dtype)]


@rule("SplitOperation")
def split(draw: Draw) -> Drawn:
    """Two or three parts, equal or of given sizes."""
    size, number = shape(draw), integer(draw, 2, 3)
    dim = axis(draw, len(size))
    if flag(draw):
        sizes = numbers(draw, number, number, 1, 5)
        size[dim] = sum(sizes)
        return {"splitNum": number, "splitDim": dim, "splitSizes": sizes}, [_values(draw, size)]
    size[dim] *= number
    return {"splitNum": number, "splitDim": dim}, [_values(draw, size)]


@rule("SliceOperation")
def slice_(draw: Draw) -> Drawn:
    """A box; offsets may count from the end, -1 goes to the end."""
    size, offsets, lengths = shape(draw), [], []
    for n in size:
        first = integer(draw, 0, n - 1)
        offsets.append(first - n if flag(draw) else first)
        lengths.append(-1 if flag(draw) else integer(draw, 1, n - first))
    return {"offsets": offsets, "size": lengths}, [_values(draw, size)]


@rule("RepeatOperation")
def repeat(draw: Draw) -> Drawn:
    """Multiples, as many as dimensions or more."""
    size = shape(draw, 1, 3, 4)
    count = len(size) + integer(draw, 0, 1)
    return {"multiples": numbers(draw, count, count, 1, 3)}, [_values(draw, size)]


@rule("SetValueOperation")
def set_value(draw: Draw) -> Drawn:
    """A box inside the target."""
    size, dtype = shape(draw), one_of(draw, *FLOATS)
    starts = [integer(draw, 0, n - 1) for n in size]
    ends = [integer(draw, first + 1, n) for first, n in zip(starts, size)]
    box = [stop - first for first, stop in zip(starts, ends)]
    param = {"starts": starts, "ends": ends, "strides": [1] * len(size)}
    return param, [floats(draw, size, dtype), floats(draw, box, dtype)]


@rule("TransdataOperation")
def transdata(draw: Draw) -> Drawn:
    """To NZ from any matrix, and back with the padding cut off."""
    batch, rows, columns = integer(draw, 1, 2), integer(draw, 1, 33), integer(draw, 1, 33)
    if flag(draw):
        dtype = one_of(draw, torch.float16, torch.int8)
        lead = [batch] if flag(draw) else []
        size = [*lead, rows, columns]
        x = floats(draw, size, dtype) if dtype != torch.int8 else integers(draw, size, -100, 100, dtype)
        return {"transdataType": 2}, [x]
    stored = [batch, -(-columns // 16), -(-rows // 16) * 16, 16]
    return {"transdataType": 1, "outCrops": [rows, columns]}, [floats(draw, stored, torch.float16)]


@rule("PadOperation")
def pad(draw: Draw) -> Drawn:
    """Packed tokens of some sequences."""
    lengths, width = numbers(draw, 1, 4, 1, 5), integer(draw, 1, 8)
    tokens, longest = sum(lengths), max(lengths)
    rows = floats(draw, [tokens, width], one_of(draw, *SHORT))
    offsets = integers(draw, [1, tokens], 0, 3, torch.int32)
    ids = integers(draw, [len(lengths), longest], 0, 100, torch.int64)
    return {}, [rows, offsets, counts(lengths)[:, None], ids]


@rule("UnpadOperation")
def unpad(draw: Draw) -> Drawn:
    """Padded ids of some sequences, with the padding counted so far."""
    lengths = numbers(draw, 1, 4, 1, 5)
    longest = max(lengths) + integer(draw, 0, 2)
    ids = integers(draw, [len(lengths), longest], 1, 100, torch.int64)
    padding = list(accumulate(longest - n for n in lengths))
    tokens = torch.tensor([[sum(lengths)]], dtype=torch.int64)
    return {}, [ids, counts(padding)[:, None], tokens, counts(lengths)[:, None]]


@rule("PadWithHiddenStateOperation")
def pad_with_hidden_state(draw: Draw) -> Drawn:
    """Packed rows of some sequences."""
    lengths, width = numbers(draw, 1, 4, 1, 5), integer(draw, 1, 8)
    x = floats(draw, [sum(lengths), width], one_of(draw, *SHORT))
    return {"qSeqLen": lengths, "maxSeqLen": max(lengths) + integer(draw, 0, 2)}, [x]


@rule("UnpadWithHiddenStateOperation")
def unpad_with_hidden_state(draw: Draw) -> Drawn:
    """Padded rows of some sequences."""
    lengths, width = numbers(draw, 1, 4, 1, 5), integer(draw, 1, 8)
    longest = max(lengths) + integer(draw, 0, 2)
    x = floats(draw, [len(lengths), longest, width], one_of(draw, *SHORT))
    return {"qSeqLen": lengths, "maxSeqLen": longest}, [x]
