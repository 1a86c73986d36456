"""LinearParallelOperation over experts that are spread over ranks: rows go to their experts' ranks and back.

Tokens of a rank lie expert by expert. `globalTokensPerExpert[r][e]` is how many of rank r's rows expert e
gets; rank q has the `local` experts from q * local on. The rows that a rank computes lie expert by expert,
and within one by the rank they come from. Rows behind them are zero (the device leaves them as they are).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from .layout import torch_dtype
from .quantise import descale, integer_matmul
from .registry import As, OperatorCall, Outputs, Tensors

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
