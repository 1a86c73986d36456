"""Run a toy model on the stand-in, with probes that keep what they see instead of writing it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from acc_pytest.lab.atb import Fault, LanguageModel, ModelSpec, Runtime
from acc_pytest.lab.atb.graph import Execution
from acc_pytest.lab.atb.runtime import Profile
from acc_pytest.lab.demo.golden import seeded

PROMPT = [3, 1, 4, 1, 5]


@dataclass
class Memory:
    """A probe: (count, execution) in completion order, JSON texts by name, profiles."""

    executions: list[tuple[int, Execution]] = field(default_factory=list)
    layers: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    profiles: list[tuple[str, int, Profile, Profile]] = field(default_factory=list)

    def layer(self, name: str, text: str) -> None:
        self.layers[name] = text

    def model(self, name: str, text: str) -> None:
        self.models[name] = text

    def executed(self, count: int, execution: Execution) -> None:
        self.executions.append((count, execution))

    def profiled(self, name: str, count: int, setup: Profile, executed: Profile) -> None:
        self.profiles.append((name, count, setup, executed))


def run_in_memory(
    spec: ModelSpec, fault: Fault | None = None, *, decode_steps: int = 1
) -> tuple[list[Memory], LanguageModel]:
    """Probes of all ranks after a fixed prompt and `decode_steps` more ids, and the model."""
    probes = [Memory() for _ in range(spec.ranks)]
    with torch.no_grad():
        weights = dict(seeded(spec, seed=7).named_parameters())
    model = LanguageModel(spec, weights, Runtime(probes), fault)
    model.step(PROMPT)
    for step in range(decode_steps):
        model.step([9 + step])
    return probes, model
