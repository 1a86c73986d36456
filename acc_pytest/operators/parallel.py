"""LinearParallelOperation: a linear whose operands or result are spread over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from .expert_parallel import gathered_product, product_scattered
from .layout import torch_dtype
from .linear import weight_matrix
from .param import COMMUNICATION, Param, choice, data_type, flag, integer
from .quantise import descale, integer_matmul
from .registry import As, ComputeRanks, OperatorCall, Output, Outputs, Tensors, collective

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, PURE, TWO_DIMENSIONS, TO_EXPERTS, FROM_EXPERTS = range(7)
PER_TENSOR, PER_CHANNEL, PER_GROUP, PER_TOKEN = range(4)

LINEAR_PARALLEL = {
    **COMMUNICATION,
    "transWeight": flag(True),
    "hasResidual": flag(),
    "type": choice(
        0,
        "all reduce",
        "reduce scatter",
        "all gather",
        "pure",
        "two dimensions",
        "all to all and gather",
        "reduce scatter and all to all",
        extra={-1: "undefined"},
    ),
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
        scales = [
            *(["scale"] if quantised else []),
            *(["perTokenScale"] if param["quantType"] == PER_TOKEN else []),
        ]
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


def _to_experts(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    return gathered_product(_with_moe_info(call), ranks)


def _from_experts(call: OperatorCall, ranks: Sequence[Tensors]) -> Sequence[Outputs]:
    return product_scattered(_with_moe_info(call), ranks)


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
    products = []
    for _, column in place:
        mates = [r for r, p in enumerate(place) if p[1] == column]
        gathered = torch.cat([ranks[m]["x"] for m in mates])
        products.append(gathered)
    outputs = [_product(call, rank, rows) for rank, rows in zip(ranks, products)]
    results: list[Outputs] = []
    for rank, (row, column) in zip(ranks, place):
        mates = [r for r, p in enumerate(place) if p[0] == row]
        total = torch.stack([outputs[m] for m in mates]).sum(0)
        results.append([_result(call, rank, _chunks(call, total, scatter)[column])])
    return results


_BY_TYPE: Mapping[int, ComputeRanks] = {
    ALL_REDUCE: _all_reduced,
    REDUCE_SCATTER: _reduced_and_scattered,
    ALL_GATHER: _gathered,
    PURE: _products,
    TWO_DIMENSIONS: _two_dimensions,
    TO_EXPERTS: _to_experts,
    FROM_EXPERTS: _from_experts,
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
