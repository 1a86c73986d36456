"""A small decoder on several ranks that have prompts of their own, dumped: golden, and mine in bfloat16."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook

FAULTY = "layers.1.2"
"""The module that a fault is in."""


@dataclass(frozen=True)
class Run:
    """`steps` passes on `ranks`: prompts of `[batch, tokens]` ids, then one token of each sequence at a time.

    `same`: all ranks have the same prompts. Mine multiplies what `FAULTY` gives on rank `faulty` in step
    `step` by `factor`.
    """

    ranks: int = 8
    batch: int = 1
    tokens: int = 5
    steps: int = 1
    same: bool = False
    faulty: int = 6
    step: int = 0
    factor: float = 3.0

    def dumped(self, home: Path, patch: pytest.MonkeyPatch) -> tuple[str, str]:
        """Golden and mine."""
        torch.manual_seed(0)
        model = Decoder()
        for side in ("golden", "mine"):
            model = model.bfloat16() if side == "mine" else model
            for rank in range(self.ranks):
                patch.setenv("RANK", str(rank))
                patch.setenv("WORLD_SIZE", str(self.ranks))
                self._run(model, home / side, rank, side == "mine" and rank == self.faulty)
        return str(home / "golden"), str(home / "mine")

    def _run(self, model: nn.Module, home: Path, rank: int, faulty: bool) -> None:
        generator = torch.Generator().manual_seed(0 if self.same else rank)
        prompts = torch.randint(16, (self.batch, self.tokens), generator=generator)
        answers = torch.randint(16, (self.batch, self.steps), generator=generator)
        step = -1

        def wrong(module: nn.Module, given: object, made: torch.Tensor) -> torch.Tensor:
            nonlocal step
            step += 1
            return made * self.factor if step == self.step else made

        config = DumpConfig(
            str(home),
            list(range(self.steps)),
            run_name="msit_dump_20250101_000000",
            process_name=f"cpu_{rank + 1}",
        )
        with contextlib.ExitStack() as until_here, torch.no_grad():
            if faulty:
                hook = model.get_submodule(FAULTY).register_forward_hook(wrong)
                until_here.callback(hook.remove)
            until_here.enter_context(register_hook(model, config))
            for ids in (prompts, *answers.T[:-1, :, None]):
                model(ids)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(2)
        )
        self.head = nn.Linear(8, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        stream = self.embed(ids)
        for layer in self.layers:
            stream = stream + layer(stream)
        logits: torch.Tensor = self.head(stream)
        return logits
