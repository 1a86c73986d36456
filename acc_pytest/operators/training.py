"""Operators of ATB's training side: softmax of packed scores and its gradient, masks, strided products."""

from __future__ import annotations

import torch

from .param import flag, integer, integers
from .registry import As, OperatorCall, Outputs, Tensors, operator

FAST = {"headNum": integer(), "qSeqLen": integers()}


def _squares(call: OperatorCall, flat: torch.Tensor) -> list[torch.Tensor]:
    """The scores `[heads, s, s]` of each sequence, from one flat tensor."""
    heads, counts = call.param["headNum"], call.param["qSeqLen"]
    sizes = [heads * s * s for s in counts]
    call.need(
        sum(sizes) == flat.numel(),
        f"{flat.numel()} elements are not the squares of qSeqLen {list(counts)} for {heads} heads",
    )
    sequences = torch.split(call.wide(flat).flatten(), sizes)
    return [flat_scores.reshape(heads, s, s) for flat_scores, s in zip(sequences, counts)]


@operator("FastSoftMaxOperation", FAST, ("x",))
def fast_softmax(call: OperatorCall, t: Tensors) -> Outputs:
    """Softmax of each row of every sequence's scores."""
    value = torch.cat([scores.softmax(-1).flatten() for scores in _squares(call, t["x"])])
    return [As(value.reshape(t["x"].shape), t["x"].dtype)]


@operator("FastSoftMaxGradOperation", FAST, ("y", "dy"))
def fast_softmax_grad(call: OperatorCall, t: Tensors) -> Outputs:
    """y (dy - sum of y dy over the row)."""
    value = [
        (y * (dy - (y * dy).sum(-1, keepdim=True))).flatten()
        for y, dy in zip(_squares(call, t["y"]), _squares(call, t["dy"]))
    ]
    return [As(torch.cat(value).reshape(t["y"].shape), t["y"].dtype)]


@operator("GenAttentionMaskOperation", {"headNum": integer(1), "seqLen": integers()}, ("mask",))
def gen_attention_mask(call: OperatorCall, t: Tensors) -> Outputs:
    """The corner `[s, s]` of every sequence's mask, once for each head, flat."""
    mask, counts = t["mask"], call.param["seqLen"]
    call.need(
        mask.ndim == 4 and len(counts) == len(mask) and max(counts, default=0) <= mask.shape[-1],
        f"seqLen {list(counts)} does not fit mask {list(mask.shape)}",
    )
    corners = [m[0, :s, :s].flatten().repeat(call.param["headNum"]) for m, s in zip(mask, counts)]
    return [torch.cat(corners) if corners else mask.new_empty(0)]


STRIDED = {
    "transposeA": flag(alias="transA"),
    "transposeB": flag(alias="transB"),
    "batch": integer(1),
    "headNum": integer(1, alias="head_num"),
    **{name: integers() for name in ("m", "n", "k", "lda", "ldb", "ldc", "strideA", "strideB", "strideC")},
}


@operator("StridedBatchMatmulOperation", STRIDED, ("a", "b"))
def strided_batch_matmul(call: OperatorCall, t: Tensors) -> Outputs:
    """C = A B for each batch and head, operands found by leading dimension and stride in flat tensors.

    Rows of a head are `lda` apart and heads `strideA`; batches follow each other. Gaps of the result
    between its rows are zero (the device leaves them as they are).
    """
    p, heads = call.param, call.param["headNum"]
    lists = [p[name] for name in ("m", "n", "k", "lda", "ldb", "ldc", "strideA", "strideB", "strideC")]
    call.need(all(len(values) == p["batch"] for values in lists), "m, n, k, ... need one entry a batch")
    a, b = call.wide(t["a"]).flatten(), call.wide(t["b"]).flatten()
    total = heads * sum(m * n for m, n in zip(p["m"], p["n"]))
    result, starts = torch.zeros(total, dtype=call.accumulate), [0, 0, 0]
    for m, n, k, lda, ldb, ldc, step_a, step_b, step_c in zip(*lists):
        for head in range(heads):
            left = _matrix(call, a, starts[0] + head * step_a, m, k, lda, p["transposeA"])
            right = _matrix(call, b, starts[1] + head * step_b, k, n, ldb, p["transposeB"])
            where = starts[2] + head * step_c
            call.need(where + (m - 1) * ldc + n <= total, "the result reaches outside m * n * heads elements")
            result.as_strided((m, n), (ldc, 1), where).copy_(left @ right)
        starts = [s + size * heads for s, size in zip(starts, (m * k, n * k, m * n))]
    return [As(result, t["a"].dtype)]


def _matrix(
    call: OperatorCall,
    flat: torch.Tensor,
    start: int,
    rows: int,
    columns: int,
    leading: int,
    transposed: bool,
) -> torch.Tensor:
    if transposed:
        return _matrix(call, flat, start, columns, rows, leading, False).T
    call.need(
        start + (rows - 1) * leading + columns <= flat.numel(),
        f"a matrix of {rows} rows {leading} apart from {start} reaches outside {flat.numel()} elements",
    )
    return flat.as_strided((rows, columns), (leading, 1), start)
