"""Operators between ranks: every rank's operands in, every rank's outputs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from .cache import lengths
from .layout import descale, integer_matmul, torch_dtype
from .linear import weight_matrix
from .registry import (
    COMMUNICATION,
    As,
    ComputeRanks,
    OperatorCall,
    Output,
    Outputs,
    Param,
    Tensors,
    choice,
    collective,
    data_type,
    flag,
    integer,
    integers,
    text,
)

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
            call.need(len(mine[key]) >= len(tensors), f"rank {r}: {key} needs one entry a rank")
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


# LinearParallelOperation over experts that are spread over ranks: rows go to their experts' ranks and back.
#
# Tokens of a rank lie expert by expert. `globalTokensPerExpert[r][e]` is how many of rank r's rows expert e
# gets; rank q has the `local` experts from q * local on. The rows that a rank computes lie expert by expert,
# and within one by the rank they come from. Rows behind them are zero (the device leaves them as they are).


_Piece = tuple[int, int, int]
"""Rows of one rank for one expert: the rank, where they begin in its tokens, how many."""


def gathered_product(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """Rows to the ranks of their experts, and times the expert's weight there."""
    table = _table(call, ranks)
    results: list[Outputs] = []
    for rank, mine in enumerate(ranks):
        products = []
        for expert, pieces in enumerate(_pieces(call, table, rank)):
            rows = torch.cat([ranks[r]["x"][start : start + count] for r, start, count in pieces])
            scales = None
            if "perTokenScale" in mine:
                scale_pieces = [
                    ranks[r]["perTokenScale"].flatten()[start : start + n] for r, start, n in pieces
                ]
                scales = torch.cat(scale_pieces)
            products.append(_expert_product(call, mine, expert, rows, scales))
        results.append([_padded(call, mine, torch.cat(products))])
    return results


def product_scattered(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """Rows, as the other form leaves them, times their expert's weight, and back to whose they are."""
    table = _table(call, ranks)
    counts = [sum(row) for row in table]
    results: list[torch.Tensor | None] = [None] * len(ranks)
    for rank, mine in enumerate(ranks):
        first = 0
        for expert, pieces in enumerate(_pieces(call, table, rank)):
            number = sum(count for _, _, count in pieces)
            span = slice(first, first + number)
            call.need(span.stop <= len(mine["x"]), f"rank {rank}: x {list(mine['x'].shape)} has too few rows")
            scales = mine["perTokenScale"].flatten()[span] if "perTokenScale" in mine else None
            rows = _expert_product(call, mine, expert, mine["x"][span], scales)
            first += number
            for (r, start, count), piece in zip(pieces, torch.split(rows, [n for _, _, n in pieces])):
                result = results[r]
                target = rows.new_zeros(counts[r], rows.shape[1]) if result is None else result
                target[start : start + count] = piece
                results[r] = target
    return [[_padded(call, mine, result)] for mine, result in zip(ranks, results) if result is not None]


def _table(call: OperatorCall, ranks: Sequence[Tensors]) -> list[list[int]]:
    p = call.param
    call.need(
        p["tpSize"] == 1,
        f"tpSize {p['tpSize']} has no reference computation: how its ranks share rows is not published",
    )
    table = ranks[0]["globalTokensPerExpert"].reshape(len(ranks), -1).tolist()
    call.need(
        p["epSize"] in (1, len(ranks))
        and all(len(row) == len(ranks) * p["local_expert_nums"] for row in table),
        f"globalTokensPerExpert is not [{len(ranks)}, {len(ranks)} * {p['local_expert_nums']}] "
        "(ranks, local_expert_nums)",
    )
    return [[int(count) for count in row] for row in table]


def _pieces(call: OperatorCall, table: list[list[int]], rank: int) -> list[list[_Piece]]:
    """For each expert of `rank`, what every rank has for it."""
    local = call.param["local_expert_nums"]
    starts = [[0, *accumulate(row)] for row in table]
    return [
        [(r, starts[r][expert], row[expert]) for r, row in enumerate(table)]
        for expert in range(rank * local, (rank + 1) * local)
    ]


def _expert_product(
    call: OperatorCall, mine: Tensors, expert: int, rows: torch.Tensor, scales: torch.Tensor | None
) -> torch.Tensor:
    local = call.param["local_expert_nums"]
    weights = mine["weight"].reshape(local, *mine["weight"].shape[-2:])
    weight = weights[expert].T if call.param["transWeight"] else weights[expert]
    call.need(
        weight.shape[0] == rows.shape[1],
        f"x {list(mine['x'].shape)} and weight {list(mine['weight'].shape)} do not multiply",
    )
    if rows.dtype != torch.int8:
        return call.wide(rows) @ call.wide(weight)
    call.need("scale" in mine, "int8 operands need a scale, with quantType 0, 1 or 3")
    scale = descale(call, mine["scale"]).double().flatten()
    scale = scale.reshape(local, -1)[expert] if scale.numel() > 1 else scale
    value = integer_matmul(rows, weight) * scale
    return call.wide(value if scales is None else value * scales.double()[:, None])


def _padded(call: OperatorCall, mine: Tensors, rows: torch.Tensor) -> As:
    size = mine["maxOutputSize"].numel()
    call.need(len(rows) <= size, f"{len(rows)} rows do not fit maxOutputSize {size}")
    result = rows.new_zeros(size, rows.shape[1])
    result[: len(rows)] = rows
    natural = torch.float16 if mine["x"].dtype == torch.int8 else mine["x"].dtype
    return As(result, torch_dtype(call.param["outDataType"], natural))


# LinearParallelOperation: a linear whose operands or result are spread over ranks.


ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, PURE, TWO_DIMENSIONS, TO_EXPERTS, FROM_EXPERTS = range(7)
PER_TENSOR, PER_CHANNEL, PER_GROUP, PER_TOKEN = range(4)

_TYPES = (
    "all reduce", "reduce scatter", "all gather", "pure", "two dimensions", "all to all and gather",
    "reduce scatter and all to all",
)  # fmt: skip
LINEAR_PARALLEL = {
    **COMMUNICATION,
    "transWeight": flag(True),
    "hasResidual": flag(),
    "type": choice(0, *_TYPES, extra={-1: "undefined"}),
    "keepIntermediate": flag(),
    "quantType": choice(-1, "per tensor", "per channel", "per group", "per token", extra={-1: "none"}),
    "quantGroupSize": integer(),
    "outDataType": data_type(),
    "local_expert_nums": integer(1),
    "epSize": integer(1),
    "tpSize": integer(1),
    # in ATB's struct, and so in its tests; a dump has its members beside the others
    "moeInfo": {"localExpertNums": integer(), "epSize": integer(), "tpSize": integer()},
    "twoDimTPInfo": {"agDim": integer(), "rsDim": integer(), "innerDimIsAg": integer(1)},
}


def _inputs(param: Param) -> list[str]:
    quantised = param["quantType"] >= 0
    if param["type"] in (TO_EXPERTS, FROM_EXPERTS):
        scales = ["scale", "perTokenScale"][: quantised + (param["quantType"] == PER_TOKEN)]
        return ["x", "weight", *scales, "globalTokensPerExpert", "maxOutputSize"]
    names = ["x", "weight", *(["bias?", "scale"] if quantised else [])]
    names += ["residual"] if param["hasResidual"] else []
    # a plain linear may have one more operand, its bias
    names += ["perTokenScale"] if param["quantType"] == PER_TOKEN else []
    return names if quantised or param["hasResidual"] else [*names, "bias?"]


@collective("LinearParallelOperation", LINEAR_PARALLEL, _inputs)
def linear_parallel(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    """x W^T of every rank, and what `type` does between ranks before or after.

    all reduce: the sum on every rank. reduce scatter: its rows cut over ranks. all gather: the product of
    all ranks' rows (which `keepIntermediate` adds as output). pure: nothing. two dimensions: rows gathered
    over `agDim` ranks, results summed and cut over `rsDim`. A residual is added once, after the sum. To
    and from experts: `expert_parallel`.
    """
    kind = call.param["type"]
    call.need(kind in _BY_TYPE, "parameter type is -1, undefined")
    return _BY_TYPE[kind](call, ranks)


def _all_reduced(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    total = _sum_of_products(call, ranks)
    return [[_result(call, rank, total)] for rank in ranks]


def _reduced_and_scattered(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    total = _sum_of_products(call, ranks)
    dim = 1 if total.ndim == 3 and total.shape[0] == 1 else 0
    chunks = _chunks(call, total, len(ranks), dim)
    return [[_result(call, rank, chunk)] for rank, chunk in zip(ranks, chunks)]


def _sum_of_products(call: OperatorCall, ranks: Sequence[Tensors]) -> torch.Tensor:
    return torch.stack([_product(call, rank, rank["x"]) for rank in ranks]).sum(0)


def _gathered(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    gathered = torch.cat([rank["x"] for rank in ranks])
    results: list[list[Output]] = [[_result(call, r, _product(call, r, gathered))] for r in ranks]
    return [[*r, gathered] for r in results] if call.param["keepIntermediate"] else results


def _products(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    return [[_result(call, rank, _product(call, rank, rank["x"]))] for rank in ranks]


def _with_moe_info(call: OperatorCall) -> OperatorCall:
    """The call with what `moeInfo` says beside its other parameters, where a dump has it."""
    names = {"local_expert_nums": "localExpertNums", "epSize": "epSize", "tpSize": "tpSize"}
    info = {flat: call.param["moeInfo"][name] or call.param[flat] for flat, name in names.items()}
    return replace(call, param={**call.param, **info})


def _chunks(call: OperatorCall, total: torch.Tensor, number: int, dim: int = 0) -> Sequence[torch.Tensor]:
    call.need(total.shape[dim] % number == 0, f"{total.shape[dim]} rows do not split over {number} ranks")
    return total.chunk(number, dim)


def _two_dimensions(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    info = call.param["twoDimTPInfo"]
    gather, scatter, inner = info["agDim"], info["rsDim"], bool(info["innerDimIsAg"])
    call.need(
        gather * scatter == len(ranks),
        f"twoDimTPInfo has agDim {gather} and rsDim {scatter}, there are {len(ranks)} ranks",
    )
    # place of each rank in its two groups
    place = [divmod(r, gather)[::-1] if inner else divmod(r, scatter) for r in range(len(ranks))]
    outputs = []
    for rank, (_, column) in zip(ranks, place):
        gathered = torch.cat([mate["x"] for mate, p in zip(ranks, place) if p[1] == column])
        outputs.append(_product(call, rank, gathered))
    results: list[Outputs] = []
    for rank, (row, column) in zip(ranks, place):
        total = torch.stack([output for output, p in zip(outputs, place) if p[0] == row]).sum(0)
        results.append([_result(call, rank, _chunks(call, total, scatter)[column])])
    return results


_BY_TYPE: Mapping[int, ComputeRanks] = {
    ALL_REDUCE: _all_reduced,
    REDUCE_SCATTER: _reduced_and_scattered,
    ALL_GATHER: _gathered,
    PURE: _products,
    TWO_DIMENSIONS: _two_dimensions,
    TO_EXPERTS: lambda call, ranks: gathered_product(_with_moe_info(call), ranks),
    FROM_EXPERTS: lambda call, ranks: product_scattered(_with_moe_info(call), ranks),
}


def _product(call: OperatorCall, rank: Tensors, x: torch.Tensor) -> torch.Tensor:
    """`x` times this rank's weight, dequantised."""
    p = call.param
    weight = weight_matrix(call, rank["weight"], x.shape[-1], transposed=p["transWeight"])
    call.need(
        weight.shape[-2] == x.shape[-1],
        f"x {list(x.shape)} and weight {list(rank['weight'].shape)} do not multiply",
    )
    if x.dtype == torch.int8:
        call.need("scale" in rank, "int8 operands need a scale, with quantType 0 or 1")
        product = integer_matmul(x, weight)
        if "bias" in rank:
            product = product + rank["bias"].double()
        return call.wide(product * descale(call, rank["scale"]).double())
    wide = call.wide(weight)
    if p["quantType"] >= 0:
        wide = _widened(call, rank, wide)
        wide = call.wide(wide.to(x.dtype))  # the kernel multiplies in the dtype of x
    return call.wide(x) @ wide


def _widened(call: OperatorCall, rank: Tensors, weight: torch.Tensor) -> torch.Tensor:
    """An int8 weight `[k, n]` in numbers: (W + offset) * scale, by tensor, column or group of rows."""
    scale = call.wide(rank["scale"])
    shift = call.wide(rank["bias"]) if "bias" in rank else torch.zeros((), dtype=call.accumulate)
    if call.param["quantType"] == PER_GROUP:
        size = call.param["quantGroupSize"]
        call.need(size > 0, f"parameter quantGroupSize is {size}, not above 0")
        scale, shift = (_by_row(values, size, weight) for values in (scale, shift))
    return (weight + shift) * scale


def _by_row(values: torch.Tensor, size: int, weight: torch.Tensor) -> torch.Tensor:
    """Values `[groups, n]` (or `[n, groups]`, as the transposed weight lies) for each row of the weight."""
    rows, columns = weight.shape
    groups = -(-rows // size)
    if values.ndim == 2 and values.shape != (groups, columns) and values.shape == (columns, groups):
        values = values.T
    return values.repeat_interleave(size, 0)[:rows] if values.ndim == 2 else values


def _result(call: OperatorCall, rank: Tensors, value: torch.Tensor) -> As:
    """The output of this rank: bias and residual added, row scales applied."""
    p = call.param
    if "perTokenScale" in rank:
        value = value * call.wide(rank["perTokenScale"]).reshape(-1, 1)
    if p["quantType"] < 0 and "bias" in rank:
        value = value + call.wide(rank["bias"])
    if "residual" in rank:
        value = value + call.wide(rank["residual"])
    natural = torch.float16 if rank["x"].dtype == torch.int8 else rank["x"].dtype
    return As(value, torch_dtype(p["outDataType"], natural))
