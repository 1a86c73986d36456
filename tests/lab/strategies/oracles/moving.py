"""Operators that move values: numpy's indexing, or one element after the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from .expected import Expected, same
from .table import Inputs, Param, oracle


def _bits(x: torch.Tensor) -> np.ndarray:
    """The elements as something that numpy can hold: bfloat16 as its bits."""
    array: np.ndarray = (x.contiguous().view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()
    return array


def _back(array: np.ndarray, dtype: torch.dtype) -> Expected:
    tensor = torch.from_numpy(np.array(array, order="C"))
    return same(tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor)


@oracle("GatherOperation")
def gather(p: Param, t: Inputs) -> Sequence[Expected]:
    """numpy.take in each batch."""
    x, indices, batch = _bits(t["x"]), t["indices"].numpy(), p["batchDims"]
    axis = p["axis"] % x.ndim
    lead = x.shape[:batch]
    parts = [
        np.take(x[place], indices[place], axis=axis - batch) for place in itertools.product(*map(range, lead))
    ]
    return [_back(np.stack(parts).reshape(*lead, *parts[0].shape), t["x"].dtype)]


@oracle("TransposeOperation")
def transpose(p: Param, t: Inputs) -> Sequence[Expected]:
    """numpy.transpose."""
    return [_back(np.transpose(_bits(t["x"]), p["perm"]), t["x"].dtype)]


@oracle("AsStridedOperation")
def as_strided(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each element by its place in memory."""
    flat, result = _bits(t["x"]).ravel(), np.empty(p["size"], _bits(t["x"]).dtype)
    for place in np.ndindex(*p["size"]):
        result[place] = flat[p["offset"][0] + sum(i * s for i, s in zip(place, p["stride"]))]
    return [_back(result, t["x"].dtype)]


@oracle("ConcatOperation")
def concat(p: Param, t: Inputs) -> Sequence[Expected]:
    """numpy.concatenate."""
    return [_back(np.concatenate((_bits(t["x"]), _bits(t["y"])), p["concatDim"]), t["x"].dtype)]


@oracle("SplitOperation")
def split(p: Param, t: Inputs) -> Sequence[Expected]:
    """numpy.split at the running sums of the sizes."""
    x, dim = _bits(t["x"]), p["splitDim"]
    sizes = p["splitSizes"]
    where = np.cumsum(sizes)[:-1] if sizes else p["splitNum"]
    return [_back(part, t["x"].dtype) for part in np.split(x, where, dim)]


@oracle("SliceOperation")
def slice_(p: Param, t: Inputs) -> Sequence[Expected]:
    """Basic indexing of numpy."""
    x, places = _bits(t["x"]), []
    for n, first, count in zip(x.shape, p["offsets"], p["size"]):
        first = first % n
        places.append(slice(first, n if count == -1 else first + count))
    return [_back(x[tuple(places)], t["x"].dtype)]


@oracle("RepeatOperation")
def repeat(p: Param, t: Inputs) -> Sequence[Expected]:
    """numpy.tile."""
    return [_back(np.tile(_bits(t["x"]), p["multiples"]), t["x"].dtype)]


@oracle("SetValueOperation")
def set_value(p: Param, t: Inputs) -> Sequence[Expected]:
    """Each element of the box by its own assignment."""
    result, source = _bits(t["dst"]).copy(), _bits(t["src"])
    for place in np.ndindex(*source.shape):
        result[tuple(i + s for i, s in zip(place, p["starts"]))] = source[place]
    return [_back(result, t["dst"].dtype)]


@oracle("TransdataOperation")
def transdata(p: Param, t: Inputs) -> Sequence[Expected]:
    """Element (r, c) of a matrix is element (c div n0, r, c mod n0) of its NZ form."""
    x = t["x"]
    if p["transdataType"] == 2:
        x = x if x.ndim == 3 else x[None]
        group = 32 if x.dtype == torch.int8 else 16
        batch, rows, columns = x.shape
        stored = x.new_zeros(batch, -(-columns // group), -(-rows // 16) * 16, group)
        for r, c in itertools.product(range(rows), range(columns)):
            stored[:, c // group, r, c % group] = x[:, r, c]
        return [same(stored)]
    rows, columns = p["outCrops"]
    plain = x.new_zeros(x.shape[0], rows, columns)
    for r, c in itertools.product(range(rows), range(columns)):
        plain[:, r, c] = x[:, c // x.shape[-1], r, c % x.shape[-1]]
    return [same(plain)]


@oracle("PadOperation")
def pad(p: Param, t: Inputs) -> Sequence[Expected]:
    """The last row of each sequence."""
    rows, place = [], 0
    for count in t["seqLen"].flatten().tolist():
        place += count
        rows.append(t["tmpOut"][place - 1])
    return [same(torch.stack(rows))]


@oracle("UnpadOperation")
def unpad(p: Param, t: Inputs) -> Sequence[Expected]:
    """Tokens appended to a list, sequence by sequence."""
    ids, padding = [], []
    before = [0, *t["cumOffsetsNow"].flatten().tolist()[:-1]]
    for row, count, skipped in zip(t["inputIds"].tolist(), t["seqLen"].flatten().tolist(), before):
        ids += row[:count]
        padding += [skipped] * count
    tail = [0] * (t["inputIds"].numel() - len(ids))
    offsets = torch.tensor(before, dtype=t["cumOffsetsNow"].dtype).reshape(t["cumOffsetsNow"].shape)
    packed = torch.tensor([ids + tail], dtype=t["inputIds"].dtype)
    return [same(packed), same(offsets), same(torch.tensor([padding + tail], dtype=offsets.dtype))]


@oracle("PadWithHiddenStateOperation")
def pad_with_hidden_state(p: Param, t: Inputs) -> Sequence[Expected]:
    """torch's own padding of sequences, and zeros up to the length asked for."""
    parts = torch.split(t["x"], list(p["qSeqLen"]))
    padded = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
    more = p["maxSeqLen"] - padded.shape[1]
    return [same(torch.nn.functional.pad(padded, (0, 0, 0, more)))]


@oracle("UnpadWithHiddenStateOperation")
def unpad_with_hidden_state(p: Param, t: Inputs) -> Sequence[Expected]:
    """torch's own inverse of it."""
    lengths = torch.tensor(p["qSeqLen"])
    parts = torch.nn.utils.rnn.unpad_sequence(t["x"], lengths, batch_first=True)
    return [same(torch.cat(parts))]
