"""Operators between ranks: every rank's operands in, every rank's outputs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from .cache import lengths
from .layout import torch_dtype
from .param import COMMUNICATION, Param, choice, data_type, flag, integer, integers, text
from .registry import As, OperatorCall, Output, Outputs, Tensors, collective

_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(0),
    "prod": lambda x: x.prod(0),
    "max": lambda x: x.amax(0),
    "min": lambda x: x.amin(0),
}


def _stack(call: OperatorCall, ranks: Sequence[Tensors], name: str = "x") -> torch.Tensor:
    first = ranks[0][name]
    for number, rank in enumerate(ranks):
        call.need(
            rank[name].shape == first.shape and rank[name].dtype == first.dtype,
            f"rank {number} has {rank[name].dtype} {list(rank[name].shape)}, "
            f"rank 0 {first.dtype} {list(first.shape)}",
        )
    return torch.stack([rank[name] for rank in ranks])


def _reduced(call: OperatorCall, stacked: torch.Tensor, kind: str) -> Output:
    """Over the first dimension; integers wrap around as they do on the device."""
    if stacked.is_floating_point():
        return As(_REDUCTIONS[kind](call.wide(stacked)), stacked.dtype)
    return _REDUCTIONS[kind](stacked).to(stacked.dtype)


ALL_REDUCE_PARAM = {
    **COMMUNICATION,
    "allReduceType": text("sum", *_REDUCTIONS),
    "quantType": choice(0, "none", "per tensor", "per channel", extra={-1: "undefined"}),
    "outDataType": data_type(),
}


@collective(
    "AllReduceOperation",
    ALL_REDUCE_PARAM,
    lambda param: ("x", "scale", "offset") if param["quantType"] > 0 else ("x",),
)
def all_reduce(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """Sum, product, largest or smallest over ranks, on every rank.

    int8 with `quantType`: (sum + offset * ranks) * scale, float16.
    """
    stacked = _stack(call, ranks)
    if call.param["quantType"] <= 0:
        return [[_reduced(call, stacked, call.param["allReduceType"])]] * len(ranks)
    results = []
    for rank in ranks:
        shift = call.wide(rank["offset"]) * len(ranks)
        value = (call.wide(stacked).sum(0) + shift) * call.wide(rank["scale"])
        results.append([As(value, torch_dtype(call.param["outDataType"], torch.float16))])
    return results


@collective("AllGatherOperation", COMMUNICATION, ("x",))
def all_gather(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """Every rank's `x`, stacked on a new first dimension."""
    return [[_stack(call, ranks)]] * len(ranks)


@collective("BroadcastOperation", COMMUNICATION, ("x",), writes=("x",))
def broadcast(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """The root's `x` over every rank's."""
    root = call.param["rankRoot"]
    call.need(0 <= root < len(ranks), f"parameter rankRoot is {root}, there are {len(ranks)} ranks")
    return [[_stack(call, ranks)[root]]] * len(ranks)


REDUCE_SCATTER_PARAM = {**COMMUNICATION, "reduceType": text("sum", *_REDUCTIONS)}


@collective("ReduceScatterOperation", REDUCE_SCATTER_PARAM, ("x",))
def reduce_scatter(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """Reduced over ranks, then cut along the first dimension: one part a rank."""
    stacked, size = _stack(call, ranks), len(ranks)
    call.need(
        stacked.ndim > 1 and stacked.shape[1] % size == 0,
        f"x {list(stacked.shape[1:])} does not split along its first dimension over {size} ranks",
    )
    chunks = stacked.chunk(size, 1) if stacked.shape[1] else [stacked] * size
    return [[_reduced(call, chunk, call.param["reduceType"])] for chunk in chunks]


SCATTER_V = {**REDUCE_SCATTER_PARAM, "sendCounts": integers(), "sdispls": integers(), "recvCount": integer()}


@collective("ReduceScatterVOperation", SCATTER_V, ("x", "sendCounts", "sdispls", "recvCount", "shape"))
def reduce_scatter_v(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """Reduced over ranks; rank r gets `sendCounts[r]` elements from `sdispls[r]` of the flat result."""
    stacked = _stack(call, ranks)
    flat, width = stacked.flatten(1), stacked.shape[-1]
    results = []
    for number, rank in enumerate(ranks):
        count, start = (int(rank[name].flatten()[number]) for name in ("sendCounts", "sdispls"))
        call.need(
            0 <= start <= start + count <= flat.shape[1],
            f"rank {number} takes {count} elements from {start}, x has {flat.shape[1]}",
        )
        chunk = flat[:, start : start + count].reshape(len(ranks), -1, width)
        results.append([_reduced(call, chunk, call.param["reduceType"])])
    return results


@collective("AllGatherVOperation", COMMUNICATION, ("x", "sendCount", "recvCounts", "rdispls", "shape"))
def all_gather_v(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """The first `sendCount` elements of every rank, that of rank j at `rdispls[j]` of the result."""
    width = ranks[0]["x"].shape[-1]
    results = []
    for rank in ranks:
        counts, places = (rank[n].flatten().tolist() for n in ("recvCounts", "rdispls"))
        call.need(len(counts) == len(places) == len(ranks), "recvCounts and rdispls need one entry a rank")
        flat = rank["x"].new_zeros(max((c + p for c, p in zip(counts, places)), default=0))
        for source, count, place in zip(ranks, counts, places):
            flat[place : place + count] = source["x"].flatten()[:count]
        results.append([flat.reshape(-1, width)])
    return results


@collective("AllToAllOperation", {**COMMUNICATION, "transpose": flag()}, ("x",))
def all_to_all(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """Rank r gets the r-th of the equal parts of every rank, in rank order.

    With `transpose` the parts are column blocks: `[h, w]` -> `[h * ranks, w / ranks]`.
    """
    stacked, size = _stack(call, ranks), len(ranks)
    columns = call.param["transpose"]
    divided = stacked.shape[-1] if columns else stacked[0].numel()
    call.need(divided % size == 0, f"x {list(stacked.shape[1:])} does not split over {size} ranks")
    if columns:
        blocks = torch.unflatten(stacked, -1, (size, -1)).movedim(-2, 1)
        return [[blocks[:, r].flatten(0, 1)] for r in range(size)]
    chunks = stacked.reshape(size, size, -1)
    return [[chunks[:, r].reshape(stacked.shape[1:])] for r in range(size)]


_COUNTS = ("sendCounts", "sdispls", "recvCounts", "rdispls")
TO_ALL_V = {**COMMUNICATION, **{name: integers() for name in _COUNTS}}


@collective("AllToAllVOperation", TO_ALL_V, ("x",))
def all_to_all_v(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """Rank r gets `sendCounts_j[r]` elements from `sdispls_j[r]` of each rank j, at `rdispls_r[j]`."""
    params: Sequence[Param] = call.param["ranks"]
    return _exchanged(call, [rank["x"] for rank in ranks], [{k: p[k] for k in _COUNTS} for p in params])


@collective("AllToAllVV2Operation", COMMUNICATION, ("x", *_COUNTS, "shape?"))
def all_to_all_v_v2(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """AllToAllV whose counts and places are operands."""
    counts = [{name: lengths(rank[name]) for name in _COUNTS} for rank in ranks]
    return _exchanged(call, [rank["x"] for rank in ranks], counts)


def _exchanged(
    call: OperatorCall, tensors: Sequence[torch.Tensor], counts: Sequence[Mapping[str, Sequence[int]]]
) -> Sequence[Outputs]:
    results = []
    for r, mine in enumerate(counts):
        for key in _COUNTS:
            call.need(len(mine[key]) == len(tensors), f"rank {r}: {key} needs one entry a rank")
        flat = tensors[r].new_zeros(1, sum(mine["recvCounts"]))
        for j, (theirs, sent) in enumerate(zip(counts, tensors)):
            count, start, place = theirs["sendCounts"][r], theirs["sdispls"][r], mine["rdispls"][j]
            call.need(
                count == mine["recvCounts"][j],
                f"rank {j} sends {count} elements to rank {r}, which expects {mine['recvCounts'][j]}",
            )
            call.need(
                0 <= start <= start + count <= sent.numel() and 0 <= place <= flat.numel() - count,
                f"rank {j} sends elements from {start} to place {place} of rank {r}: outside",
            )
            flat[0, place : place + count] = sent.flatten()[start : start + count]
        results.append([flat])
    return results


@collective("SendOperation", {**COMMUNICATION, "destRank": integer(1)}, ("x",))
def send(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """Hand `x` to rank `destRank`. No output."""
    return [[] for _ in ranks]


@collective("RecvOperation", {**COMMUNICATION, "srcRank": integer(1)}, ("x?",))
def recv(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """The tensor that rank `srcRank` sends; its `x` is the operand of its SendOperation."""
    results = []
    for r, param in enumerate(call.param["ranks"]):
        source = param["srcRank"]
        call.need(
            0 <= source < len(ranks) and "x" in ranks[source],
            f"rank {r} receives from rank {source}, whose sent tensor is not given",
        )
        results.append([ranks[source]["x"]])
    return results
