"""Operations of the flash-attention models of 2024 (Bloom, ChatGLM): one contiguous cache, biases apart.

Over ranks the linears into attention and feed-forward are column parallel, those out of them row
parallel; the embedding is on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..graph import Call, Cell, Operation, graph
from .attention_leaves import causal_mask
from .family import Family
from .leaves import ADD, all_gather, all_reduce, elewise, linear, transpose_gathered
from .spec import ModelSpec, Phase


def heads_merged(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[1, n, heads, size]` seen as `[1, n, heads * size]`."""
    return (*shape[:2], -1)


def parallel_linear(*, bias: bool, summed: tuple[int, int] | None = None) -> Operation:
    """`ParallelLinearBaseV2`: a linear without bias, then the bias as an addition of its own.

    A row-parallel one is `summed` by (rank, ranks) in between, so that the bias counts once.
    """
    names = ("x", "w", "b", "p0", "p1", "p2", "p3")
    steps: list[tuple[Operation, tuple[str, ...]]] = [(linear(old=True), ("w",))]
    if summed is not None and summed[1] > 1:
        steps.append((all_reduce(*summed), ()))
    if bias:
        steps.append((elewise(ADD, old=True), ("b",)))
    results = [*("product", "sum")[: len(steps) - 1], "out"]
    sources = ["x", *results]
    calls = [
        Call(step, (source, *operands), (result,))
        for (step, operands), source, result in zip(steps, sources, results)
    ]
    return graph("ParallelLinearBaseV2", names, ("out",), *calls)


def projection(spec: ModelSpec, rank: int) -> Operation:
    """`ParallelLinearBase`: the output projection, each rank a part of the vocabulary where it splits."""
    multiply, ranks = linear(old=True), spec.ranks
    if ranks == 1 or spec.vocab % ranks:
        return graph("ParallelLinearBase", ("x", "w"), ("out",), Call(multiply, ("x", "w"), ("out",)))
    return graph(
        "ParallelLinearBase",
        ("x", "w"),
        ("out",),
        Call(multiply, ("x", "w"), ("part",)),
        Call(all_gather(rank, ranks), ("part",), ("parts",)),
        Call(transpose_gathered(4), ("parts",), ("out",), shapes={0: lambda shape: (*shape[:-2], -1)}),
    )


class FlashFamily(Family):
    """Cache and step inputs: ids, mask, caches, tokenOffset, seqLen, placeholder, one layer id per layer."""

    output = "output_0"
    """The tensor of the graph that holds the logits."""

    def bias(self, spec: ModelSpec, rank: int) -> torch.Tensor:
        """The additive mask of the whole run, `[..., positions, positions]`, for the heads of a rank."""
        return causal_mask(spec.positions)

    def extra(self, spec: ModelSpec, past: int, new: int) -> list[torch.Tensor]:
        """Further inputs after the layer ids."""
        return []

    def state(self, spec: ModelSpec) -> dict[str, Cell]:
        shape = (spec.layers, 1, spec.positions, spec.own_kv_heads * spec.head_size)
        return {f"input_{i}": Cell(torch.zeros(shape, dtype=spec.torch_dtype)) for i in (2, 3)}

    def inputs(
        self, spec: ModelSpec, ids: Sequence[int], past: int, phase: Phase, rank: int
    ) -> dict[str, torch.Tensor]:
        dtype, new, total = spec.torch_dtype, len(ids), past + len(ids)
        values = {
            "input_0": torch.tensor([list(ids)]),
            "input_1": self.bias(spec, rank).to(dtype),
            "input_4": torch.tensor([total], dtype=torch.int32),
            "input_5": torch.tensor([new], dtype=torch.int32),
            "input_6": torch.zeros(1, dtype=dtype),
        }
        for layer in range(spec.layers):
            values[f"input_{7 + layer}"] = torch.tensor([layer], dtype=torch.int32)
        for index, tensor in enumerate(self.extra(spec, past, new)):
            values[f"input_{7 + spec.layers + index}"] = tensor.to(dtype)
        return values

    def logits(self, outputs: Mapping[str, Cell]) -> torch.Tensor:
        return outputs[self.output].read().flatten(0, -2)[-1]
