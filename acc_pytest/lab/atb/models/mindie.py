"""MindIE's building blocks: wrapped linears and norms, parallel over ranks; embeddings, output head."""

from __future__ import annotations

import torch

from ..graph import Call, Operation, View, graph
from .leaves import (
    ADD,
    all_gather,
    all_reduce,
    concat,
    elewise,
    flash_attention,
    gather,
    linear,
    rms_norm,
    rope,
    split,
    transpose_gathered,
)
from .spec import ModelSpec

PLAIN = ("input", "weight", "scale", "offset", "descale", "bias", "index")


def pack(first: int) -> tuple[str, ...]:
    """The six weight slots of one linear, in the order in which its operation takes them."""
    return tuple(f"w{first + i}" for i in (0, 4, 3, 2, 1, 5))


def norm(first: int) -> tuple[str, ...]:
    """The four weight slots of one norm."""
    return tuple(f"w{first + i}" for i in range(4))


def by_head(size: int) -> View:
    """`[n, heads * size]` seen as `[n, heads, size]`."""
    return lambda shape: (shape[0], -1, size)


def merge(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[n, heads, size]` seen as `[n, heads * size]`."""
    return shape[0], -1


def unbatched(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[1, n, width]` seen as `[n, width]`."""
    return shape[1:]


def plain_linear(*, bias: bool = False) -> Operation:
    """`LinearNoQuant`: the wrapper MindIE puts around a float linear."""
    operands = ("input", "weight", "bias") if bias else ("input", "weight")
    return graph("LinearNoQuant", PLAIN, ("out",), Call(linear(bias=bias), operands, ("out",)))


def row_linear(
    rank: int, ranks: int, *, bias: bool = False, linear_operation: Operation | None = None
) -> Operation:
    """A row-parallel linear: partial product, the sum over ranks, then the bias, which so is added once.

    `linear_operation` is what multiplies, with the inputs of `PLAIN`, and adds its bias itself.
    """
    if ranks == 1:
        return linear_operation or plain_linear(bias=bias)
    bias = bias and linear_operation is None
    result = "sum" if bias else "out"
    calls = [
        Call(linear_operation or plain_linear(), PLAIN, ("partial",)),
        Call(all_reduce(rank, ranks), ("partial",), (result,)),
    ]
    if bias:
        calls.append(Call(elewise(ADD), ("sum", "bias"), ("out",)))
    return graph("LinearRowParallelAdd" if bias else "LinearRowParallelNoAdd", PLAIN, ("out",), *calls)


def norm_linear(epsilon: float, *, bias: bool = False) -> Operation:
    """A norm and the linear after it."""
    names = ("hidden", "g0", "g1", "g2", "g3", *PLAIN[1:])
    return graph(
        "NormLinear",
        names,
        ("out",),
        Call(rms_norm(epsilon), ("hidden", "g0"), ("normed",)),
        Call(plain_linear(bias=bias), ("normed", *PLAIN[1:]), ("out",)),
    )


def shard(weight: torch.Tensor, dim: int, rank: int, ranks: int) -> torch.Tensor:
    """The part of a weight that one rank holds: rows (`dim` 0, column parallel) or columns (1, row).

    A weight that does not split evenly is held whole. Parts of rows share the memory of the weight.
    """
    if weight.shape[dim] % ranks:
        return weight
    return weight.chunk(ranks, dim)[rank].contiguous()


def shard_heads(weight: torch.Tensor, size: int, rank: int, ranks: int) -> torch.Tensor:
    """The rows of a rank's key heads of `size` rows each; of the one head it needs where ranks are more."""
    heads = weight.shape[0] // size
    first, count = rank * heads // ranks, max(1, heads // ranks)
    return weight[first * size : (first + count) * size]


def embedding(spec: ModelSpec, rank: int) -> Operation:
    """Token embedding; over ranks each holds some columns, which are gathered."""
    ranks = spec.ranks
    if ranks == 1 or spec.hidden % ranks:
        return graph("WordEmbedding", ("w", "ids"), ("out",), Call(gather(), ("w", "ids"), ("out",)))
    return graph(
        "WordEmbedding",
        ("w", "ids"),
        ("out",),
        Call(gather(), ("w", "ids"), ("part",)),
        Call(all_gather(rank, ranks), ("part",), ("parts",)),
        Call(transpose_gathered(), ("parts",), ("out",), shapes={0: merge}),
    )


def positions() -> Operation:
    """cos and sin rows of the positions."""
    return graph(
        "PositionalEmbeddingGather",
        ("ids", "cos", "sin"),
        ("cos_out", "sin_out"),
        Call(gather(), ("cos", "ids"), ("cos_out",)),
        Call(gather(), ("sin", "ids"), ("sin_out",)),
    )


def lm_head(spec: ModelSpec, rank: int, *, pick: bool) -> Operation:
    """Output projection, each rank a part of the vocabulary; with `pick` of the last position only."""
    project, ranks = plain_linear(), spec.ranks
    if ranks > 1 and spec.vocab % ranks == 0:
        project = graph(
            "LinearColumnParallel",
            PLAIN,
            ("out",),
            Call(plain_linear(), PLAIN, ("part",)),
            Call(all_gather(rank, ranks), ("part",), ("parts",)),
            Call(transpose_gathered(), ("parts",), ("out",), shapes={0: merge}),
        )
    names = ("hidden", *PLAIN[1:], "last", "spare")
    source = "picked" if pick else "hidden"
    calls = [Call(gather(), ("hidden", "last"), ("picked",))] if pick else []
    return graph("LmHead", names, ("out",), *calls, Call(project, (source, *PLAIN[1:]), ("out",)))


def rotation(spec: ModelSpec) -> Operation:
    """The rotation in its wrapper, of the whole head, which writes onto query and key, or of a part."""
    size = spec.rotary_size
    operands, results = ("q", "k", "cos", "sin", "length"), ("q_out", "k_out")
    turn = rope(size if spec.interleaved else 2)
    if size == spec.head_size:
        heads = dict.fromkeys(range(2), by_head(size))
        return graph(
            "RotaryPositionEmbedding", operands, results, Call(turn, operands, results, shapes=heads)
        )
    widths = (size, spec.head_size - size)
    apart, rows = {0: by_head(spec.head_size)}, {0: merge, 1: merge}
    heads = dict.fromkeys(range(2), by_head(size))
    return graph(
        "RotaryPositionEmbedding",
        operands,
        results,
        Call(split(widths), ("q",), ("q_part", "q_rest"), apart),
        Call(split(widths), ("k",), ("k_part", "k_rest"), apart),
        Call(turn, ("q_part", "k_part", *operands[2:]), ("q_turned", "k_turned"), rows, heads),
        Call(concat(), ("q_turned", "q_rest"), ("q_out",)),
        Call(concat(), ("k_turned", "k_rest"), ("k_out",)),
    )


def contiguous(heads: int, kv: int, size: int) -> list[Call]:
    """Attend over a contiguous cache, as a model does that serves prefill and decode alike."""
    core = flash_attention(heads, kv, size, alibi=False)
    operands = ("q", "k", "v", "k_cache", "v_cache", "mask", "offset", "length", "zero")
    batched = dict.fromkeys(range(3), lambda shape: (1, shape[0], -1, size))
    merged = {0: lambda shape: (*shape[:2], -1)}
    return [Call(core, operands, ("context",), batched, merged)]
