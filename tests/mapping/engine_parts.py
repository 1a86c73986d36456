"""What engines build models of: linears over ranks, norms that add the residual, attention, experts.

A `Served` model computes with the weights of a model of transformers, on all ranks step by step, and records
what each module was handed and gave, under the names and in the shapes that vLLM and SGLang use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from .served import Recorded, Recorder, Tensor, angles, dump_of

Ranks = list[Tensor]
"""A tensor of each rank."""


@dataclass(frozen=True)
class Prompts:
    """Sequences of these lengths, in the engine's `order`, on so many `ranks`. What the module `wrong` gives
    is off by a tenth."""

    lengths: tuple[int, ...] = (5, 3)
    order: tuple[int, ...] = (1, 0)
    ranks: int = 1
    wrong: str | None = None
    seed: int = 0

    def ids(self, vocabulary: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        return [torch.randint(1, vocabulary, (length,), generator=generator) for length in self.lengths]


class Served:
    """The parts; a family says in which order they run."""

    def __init__(self, model: Any, prompts: Prompts, home: Path) -> None:
        self.model, self.config, self.prompts, self.home = model, model.config, prompts, home
        self.ranks = prompts.ranks
        self.weights: dict[str, Tensor] = dict(model.state_dict())
        self.records = [Recorder(home / str(rank)) for rank in range(self.ranks)]
        sequences = prompts.ids(self.config.vocab_size)
        sequences = [sequences[number] for number in prompts.order]
        lengths = torch.tensor([len(each) for each in sequences])
        self.ids = torch.cat(sequences)
        self.positions = torch.cat([torch.arange(len(each)) for each in sequences])
        self.ends = lengths.cumsum(0) - 1
        row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        self.allowed = (row[:, None] == row[None, :]) & torch.ones(len(row), len(row)).tril().bool()

    def dump(self) -> Recorded:
        with torch.no_grad():
            self.forward()
        return dump_of(self.home, self.records)

    def forward(self) -> None:
        """Run the model."""
        raise NotImplementedError

    def all(self, tensor: Tensor) -> Ranks:
        return [tensor] * self.ranks

    @contextlib.contextmanager
    def call(self, path: str, op_type: str, *inputs: Ranks) -> Iterator[list[Ranks]]:
        """A call on every rank; what is put into the list is what it gives."""
        made: list[Ranks] = []
        with contextlib.ExitStack() as stack:
            calls = [
                stack.enter_context(record.call(path, op_type, *(given[rank] for given in inputs)))
                for rank, record in enumerate(self.records)
            ]
            yield made
            if path == self.prompts.wrong:
                made[0] = [each * 1.1 for each in made[0]]
            for rank, outputs in enumerate(calls):
                outputs += [each[rank] for each in made]

    def module(
        self, path: str, op_type: str, inputs: Sequence[Ranks], outputs: Sequence[Ranks]
    ) -> list[Ranks]:
        """A call of a module that calls no other."""
        with self.call(path, op_type, *inputs) as made:
            made += outputs
        return made

    def weight(self, path: str) -> tuple[Tensor, Tensor | None]:
        return self.weights[f"{path}.weight"], self.weights.get(f"{path}.bias")

    def whole(self, path: str, x: Ranks, *sources: str) -> Ranks:
        """A linear that every rank has whole, packed of `sources`."""
        packed = torch.cat([self.weight(source)[0] for source in sources])
        [made] = self.module(path, "ReplicatedLinear", [x], [[each @ packed.T for each in x]])
        return made

    def columns(
        self, path: str, op_type: str, x: Ranks, *sources: tuple[Tensor, Tensor | None, int]
    ) -> Ranks:
        """A linear whose rows are cut over ranks; of each source so many units, which stay whole."""
        outputs = []
        for rank, each in enumerate(x):
            own = [(self.share(weight, units, rank), bias, units) for weight, bias, units in sources]
            parts = [
                functional.linear(each, weight, None if bias is None else self.share(bias, units, rank))
                for weight, bias, units in own
            ]
            outputs.append(torch.cat(parts, -1))
        return self.module(path, op_type, [x], [outputs])[0]

    def share(self, weight: Tensor, units: int, rank: int) -> Tensor:
        """The rows of a rank: of fewer units than ranks, neighbours have the same."""
        apart = weight.unflatten(0, (units, -1))
        own = max(1, units // self.ranks)
        first = rank * units // self.ranks
        return apart[first : first + own].flatten(0, 1)

    def rows(self, path: str, x: Ranks, source: str, reduced: bool = True) -> Ranks:
        """A linear whose columns are cut over ranks; its sum is everywhere, or left for later."""
        weight, bias = self.weight(source)
        own = weight.shape[1] // self.ranks
        parts = [each @ weight[:, rank * own : (rank + 1) * own].T for rank, each in enumerate(x)]
        if bias is not None:
            parts[0] = parts[0] + bias
        return self.module(path, "RowParallelLinear", [x], [self.sum(parts) if reduced else parts])[0]

    def sum(self, parts: Ranks) -> Ranks:
        return self.all(torch.stack(parts).sum(0))

    def norm(
        self, path: str, x: Ranks, residual: Ranks | None = None, source: str = ""
    ) -> tuple[Ranks, Ranks]:
        """What is normalised, and the stream: with a residual, it is added first."""
        stream = x if residual is None else [one + other for one, other in zip(x, residual)]
        normed = [self.model.get_submodule(source or path)(each) for each in stream]
        outputs = [normed] if residual is None else [normed, stream]
        given = [x] if residual is None else [x, residual]
        return self.module(path, "RMSNorm", given, outputs)[0], stream

    def gated(self, path: str, x: Ranks, activation: str = "silu", op_type: str = "SiluAndMul") -> Ranks:
        """The packed gate and up as one."""
        made = []
        for each in x:
            gate, up = each.chunk(2, -1)
            act = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
            made.append(act * up)
        return self.module(path, op_type, [x], [made])[0]

    def turned(
        self, path: str, heads: Sequence[Ranks], tables: tuple[Tensor, Tensor], halves: bool
    ) -> list[Ranks]:
        """Query and key `[tokens, heads * size]` or `[tokens, heads, size]`, the first part of each head
        turned."""
        size = tables[0].shape[-1]
        made = [[turned_part(each, tables, halves, self.head_size(each, size)) for each in x] for x in heads]
        return self.module(path, "RotaryEmbedding", [self.all(self.positions), *heads], made)

    def head_size(self, x: Tensor, size: int) -> int:
        if x.dim() == 3:
            return x.shape[-1]
        return int(
            getattr(self.config, "head_dim", None)
            or self.config.hidden_size // self.config.num_attention_heads
        )

    def tables(self, size: int, theta: float) -> tuple[Tensor, Tensor]:
        return angles(self.positions, size, theta)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, cap: float | None = None, window: int = 0
    ) -> Tensor:
        """`[tokens, heads, size]` each; every key head serves a group of query heads."""
        groups = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(groups, 1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        scores = scores if cap is None else (scores / cap).tanh() * cap
        allowed = self.allowed
        if window:
            allowed = allowed & (self.positions[:, None] - self.positions[None, :] < window)
        weights = scores.masked_fill(~allowed, -1e9).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    def routed(self, rank: int, x: Tensor, source: str, chosen: Tensor, shares: Tensor) -> Tensor:
        """What the experts of each token give, of the rows that a rank has of each."""
        packed, down = self.weights[f"{source}.gate_up_proj"], self.weights[f"{source}.down_proj"]
        inner = down.shape[-1] // self.ranks
        mine = slice(rank * inner, (rank + 1) * inner)
        made = torch.zeros_like(x)
        for expert, (both, out) in enumerate(zip(packed, down)):
            gate, up = (each[mine] for each in both.chunk(2))
            hidden = functional.silu(x @ gate.T) * (x @ up.T)
            made = made + (shares * (chosen == expert)).sum(-1, keepdim=True) * (hidden @ out[:, mine].T)
        return made

    def logits(self, hidden: Ranks, cap: float | None = None) -> Ranks:
        """Of the last token of each sequence."""
        weight, bias = self.weight("lm_head")
        made = functional.linear(hidden[0][self.ends], weight, bias)
        made = made if cap is None else (made / cap).tanh() * cap
        given = [self.all(self.ids), hidden]
        return self.module("logits_processor", "LogitsProcessor", given, [self.all(made)])[0]


def turned_part(x: Tensor, tables: tuple[Tensor, Tensor], halves: bool, size: int) -> Tensor:
    """The first part of each head of `size` turned by halves or by neighbours."""
    heads = x.unflatten(-1, (-1, size))
    cos, sin = (each[:, None, : each.shape[-1] // 2] for each in tables)
    part, rest = heads[..., : tables[0].shape[-1]], heads[..., tables[0].shape[-1] :]
    if heads.dim() == 4:
        cos, sin = cos[:, None], sin[:, None]
    one, other = part.chunk(2, -1) if halves else (part[..., 0::2], part[..., 1::2])
    both, back = one * cos - other * sin, other * cos + one * sin
    made = torch.cat((both, back), -1) if halves else torch.stack((both, back), -1).flatten(-2)
    return torch.cat((made, rest), -1).reshape(x.shape)
