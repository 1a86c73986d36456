"""What the flash-attention models of 2024 (Bloom, ChatGLM) share: one contiguous cache, biases apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..graph import Call, Cell, Operation, graph
from .attention_leaves import causal_mask
from .family import Family
from .leaves import ADD, elewise, linear
from .spec import ModelSpec, Phase


def heads_merged(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`[1, n, heads, size]` seen as `[1, n, heads * size]`."""
    return (*shape[:2], -1)


def parallel_linear(*, bias: bool) -> Operation:
    """`ParallelLinearBaseV2`: a linear without bias, then the bias as an addition of its own."""
    names = ("x", "w", "b", "p0", "p1", "p2", "p3")
    multiply = linear(old=True)
    if not bias:
        return graph("ParallelLinearBaseV2", names, ("out",), Call(multiply, ("x", "w"), ("out",)))
    return graph(
        "ParallelLinearBaseV2",
        names,
        ("out",),
        Call(multiply, ("x", "w"), ("product",)),
        Call(elewise(ADD, old=True), ("product", "b"), ("out",)),
    )


def projection() -> Operation:
    """`ParallelLinearBase`: the output projection."""
    return graph("ParallelLinearBase", ("x", "w"), ("out",), Call(linear(old=True), ("x", "w"), ("out",)))


class FlashFamily(Family):
    """Cache and step inputs: ids, mask, caches, tokenOffset, seqLen, placeholder, one layer id per layer."""

    def bias(self, spec: ModelSpec) -> torch.Tensor:
        """The additive mask of the whole run, `[..., positions, positions]`."""
        return causal_mask(spec.positions)

    def extra(self, spec: ModelSpec, past: int, new: int) -> list[torch.Tensor]:
        """Further inputs after the layer ids."""
        return []

    def state(self, spec: ModelSpec) -> dict[str, Cell]:
        shape = (spec.layers, 1, spec.positions, spec.kv_heads * spec.head_size)
        return {f"input_{i}": Cell(torch.zeros(shape, dtype=spec.torch_dtype)) for i in (2, 3)}

    def inputs(
        self, spec: ModelSpec, ids: Sequence[int], past: int, phase: Phase, rank: int
    ) -> dict[str, torch.Tensor]:
        dtype, new, total = spec.torch_dtype, len(ids), past + len(ids)
        values = {
            "input_0": torch.tensor([list(ids)]),
            "input_1": self.bias(spec).to(dtype),
            "input_4": torch.tensor([total], dtype=torch.int32),
            "input_5": torch.tensor([new], dtype=torch.int32),
            "input_6": torch.zeros(1, dtype=dtype),
        }
        for layer in range(spec.layers):
            values[f"input_{7 + layer}"] = torch.tensor([layer], dtype=torch.int32)
        for index, tensor in enumerate(self.extra(spec, past, new)):
            values[f"input_{7 + spec.layers + index}"] = tensor.to(dtype)
        return values
