"""MindIE's building blocks: wrapped linears and norms, parallel over ranks; embeddings, output head."""

from __future__ import annotations

import torch

from ..graph import Call, Operation, View, graph
from .attention_leaves import flash_attention
from .leaves import all_gather, all_reduce, gather, linear, rms_norm, rope, transpose_gathered

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
    taken = ("input", "weight", "bias") if bias else ("input", "weight")
    return graph("LinearNoQuant", PLAIN, ("out",), Call(linear(bias=bias), taken, ("out",)))


def row_linear(rank: int, ranks: int) -> Operation:
    """A row-parallel linear: partial product, then the sum over ranks."""
    if ranks == 1:
        return plain_linear()
    return graph(
        "LinearRowParallelNoAdd",
        PLAIN,
        ("out",),
        Call(plain_linear(), PLAIN, ("partial",)),
        Call(all_reduce(rank, ranks), ("partial",), ("out",)),
    )


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
    """The part of a weight that one rank holds: rows (`dim` 0, column parallel) or columns (1, row)."""
    return weight.chunk(ranks, dim)[rank].contiguous()


def embedding(rank: int, ranks: int) -> Operation:
    """Token embedding; over ranks each holds some columns, which are gathered."""
    if ranks == 1:
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


def lm_head(rank: int, ranks: int, *, pick: bool) -> Operation:
    """Output projection; with `pick` of the last position only."""
    project = plain_linear()
    if ranks > 1:
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


def rotation(size: int) -> Operation:
    """The rotation in its wrapper; it writes onto query and key."""
    taken, made = ("q", "k", "cos", "sin", "length"), ("q_out", "k_out")
    return graph(
        "RotaryPositionEmbedding",
        taken,
        made,
        Call(rope(), taken, made, shapes=dict.fromkeys(range(2), by_head(size))),
    )


def contiguous(heads: int, kv: int, size: int) -> list[Call]:
    """Attend over a contiguous cache, as a model does that serves prefill and decode alike."""
    core = flash_attention(heads, kv, size, alibi=False)
    taken = ("q", "k", "v", "k_cache", "v_cache", "mask", "offset", "length", "zero")
    batched = dict.fromkeys(range(3), lambda shape: (1, shape[0], -1, size))
    merged = {0: lambda shape: (*shape[:2], -1)}
    return [Call(core, taken, ("context",), batched, merged)]
