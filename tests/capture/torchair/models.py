"""Small programs that are dumped by the real TorchAir and by our backend; each is run step after step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from acc_pytest.base.threads import one_thread

Backend = Callable[..., Any]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.norm(self.down(functional.gelu(self.up(x))) + x)
        left, right = hidden.split(4, -1)
        values, indices = (torch.cat([right, left], -1) * self.scale).topk(2)
        return values.softmax(-1), values, indices


class Attention(nn.Module):
    """A decoder layer with a cache that is written in place, rotary halves, lists with `None`, and dtypes."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 8, bias=False)
        self.register_buffer("cache", torch.zeros(2, 6, 8))

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        query, key, value = self.qkv(x).chunk(3, -1)
        self.cache[:, position] = key
        scores = query @ key.transpose(-1, -2) / 8**0.5
        mask = torch.full((3, 3), float("-inf"), dtype=scores.dtype).triu(1)
        mixed = functional.softmax(scores + mask, -1, dtype=torch.float32).to(value.dtype) @ value
        return self.out(mixed) + self.cache[:, :3].sum(0)


class Shapes(nn.Module):
    """Arithmetic with sizes that are not known when the graph is made."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        wide = torch.cat([x, x], 0).reshape(columns * 2, rows)
        return wide.sum(0) / (rows + 1) + torch.arange(rows, dtype=x.dtype)


def _mlp(backend: Backend) -> None:
    model = torch.compile(Mlp().eval(), backend=backend, dynamic=False)
    with torch.no_grad():
        model(torch.randn(3, 8))
        model(torch.randn(5, 8))  # another shape, another graph
        model(torch.randn(3, 8))


def _attention(backend: Backend) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = torch.compile(Attention().to(dtype).eval(), backend=backend)
        with torch.no_grad():
            for step in range(2):
                model(torch.randint(11, (2, 3)), torch.arange(3) + step)


def _shapes(backend: Backend) -> None:
    model = torch.compile(Shapes(), backend=backend, dynamic=True)
    with torch.no_grad():
        for rows in (3, 4):
            model(torch.randn(rows, 6))


def _training(backend: Backend) -> None:
    module = Mlp()
    model = torch.compile(module, backend=backend)
    for _ in range(2):
        model(torch.randn(3, 8))[1].sum().backward()


PROGRAMS: dict[str, Callable[[Backend], None]] = {
    "mlp": _mlp,
    "attention": _attention,
    "shapes": _shapes,
    "training": _training,
}


@one_thread()  # sums over several threads differ in their last bits
def run_program(name: str, backend: Backend) -> None:
    """Run a program from the same seed, with nothing compiled before."""
    torch._dynamo.reset()
    torch.manual_seed(7)
    PROGRAMS[name](backend)
