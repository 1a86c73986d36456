"""Run mine of a demo in memory: the records that would be written, without a disk."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from acc_pytest.demo.families import family_of
from acc_pytest.demo.graph import Record
from acc_pytest.demo.make import DTYPES, models_of, run_mine, seeded
from acc_pytest.demo.spec import DemoSpec
from acc_pytest.demo.topology import AtbModel


@dataclass
class Memory:
    """Collects (execution, record) in completion order, and the models by rank."""

    records: list[tuple[int, Record]] = field(default_factory=list)
    models: list[tuple[int, AtbModel]] = field(default_factory=list)

    def topology(self, model: AtbModel, rank: int) -> None:
        self.models.append((rank, model))

    def record(self, step: int, record: Record) -> None:
        self.records.append((step, record))


def run_in_memory(spec: DemoSpec) -> tuple[Memory, tuple[str, ...]]:
    """Records of mine over a fixed prompt and `decode_steps` more ids; names of the faulty operators."""
    spec, memory = spec.resolved(), Memory()
    family = family_of(spec.family)
    with torch.no_grad():
        module = seeded(family, spec, DTYPES[spec.dtype])
        weights = {name: p.detach().to(DTYPES[spec.dtype]) for name, p in module.named_parameters()}
        ranks, faulty = models_of(family, spec, weights)
        tokens = [[3, 1, 4, 1, 5], *([9 + step] for step in range(spec.decode_steps))]
        run_mine(family, spec, ranks, tokens, memory)
    return memory, faulty
