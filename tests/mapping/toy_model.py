"""A small decoder in plain torch with mistakes to choose from, and a comparison of two of its runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acc_pytest.base.older_torch import half_on_cpu
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis

WIDTH, HEADS, LAYERS = 32, 4, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.fault = ""

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        q, k, v = (self._heads(layer(x)) for layer in (self.q, self.k, self.v))
        q, k = self._rotated(q, positions), self._rotated(k, positions)
        scores = q @ k.transpose(-1, -2) / (1 if self.fault == "scale" else (WIDTH // HEADS) ** 0.5)
        if mask is not None and self.fault != "mask":
            scores = scores + mask
        heads = scores.softmax(-1) @ v
        if self.fault == "head":
            heads[:, 1] = 0
        return self.o(heads.transpose(1, 2).flatten(2))

    @staticmethod
    def _heads(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        size = x.shape[-1] // 2
        angle = positions[:, None, :, None] / 10 ** (torch.arange(size) / size)
        one, other = x[..., :size], x[..., size:]
        sine = angle.sin() * (-1 if self.fault == "rotation" else 1)
        turned = (one * angle.cos() - other * sine, other * angle.cos() + one * sine)
        return torch.cat(turned, -1).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.act = nn.SiLU()
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.fault = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate(x), self.up(x)
        if self.fault == "swapped":
            gate, up = up, gate
        return self.down(self.act(gate) * up)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(), Mlp()
        self.hands_on_mask = True
        self.fault = ""

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        found = self.attention(self.before(x), positions, **({"mask": mask} if self.hands_on_mask else {}))
        x = found if self.fault == "residual" else x + found
        return x + self.mlp(self.after(x))


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, WIDTH)
        self.layers: Any = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 64, bias=False)

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        positions = torch.arange(input_ids.shape[-1])[None]
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, positions, mask=mask)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Verdicts:
    """What was found: the plan, the rows in its order, and the diagnosis."""

    plan: Plan
    rows: list[Row]
    diagnosis: Diagnosis

    @property
    def roots(self) -> list[str]:
        return [root.name for root in self.diagnosis.roots]

    @property
    def texts(self) -> list[str]:
        return [root.row.cause.text for root in self.diagnosis.roots if root.row.cause is not None]

    def verdict(self, verdict: str) -> list[str]:
        return [pair.id for pair, row in zip(self.plan.pairs, self.rows) if row.verdict == verdict]


def model(seed: int = 0) -> Toy:
    torch.manual_seed(seed)
    return Toy().eval()


IDS = torch.tensor([[5, 17, 3, 60, 2, 9]])
MASK = torch.full((6, 6), -1e4).triu(1)


@dataclass(frozen=True)
class Run:
    """One run to be dumped: the prompts of its steps, and what of it is dumped."""

    prompts: tuple[torch.Tensor, ...] = (IDS,)
    mask: torch.Tensor | None = MASK
    dtype: torch.dtype = torch.float32
    config: tuple[tuple[str, Any], ...] = ()

    def but(self, **changed: Any) -> Run:
        return replace(self, **changed)


def dump(model: nn.Module, path: Path, run_: Run = Run()) -> Path:
    model = model.to(run_.dtype)
    config = DumpConfig(str(path), range(len(run_.prompts)), run_name="dump", **dict(run_.config))
    with torch.no_grad(), half_on_cpu(), register_hook(model, config):
        for ids in run_.prompts:
            mask = run_.mask
            if mask is not None and mask.is_floating_point():
                mask = mask.to(run_.dtype)
            model(ids, mask=mask if ids.shape == IDS.shape else None)
    return path


def compared(golden: Path, mine: Path) -> Verdicts:
    made = plan(open_dump(str(golden)), open_dump(str(mine)))
    rows, diagnosis = run(made)
    return Verdicts(made, rows, diagnosis)
