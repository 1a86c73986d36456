"""A family of models that runs as ATB graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from ...errors import SettingsError
from ..graph import Cell
from ..topology import AtbModel
from .spec import ModelSpec, Phase

Weights = Mapping[str, torch.Tensor]
"""Parameters of the golden module by name, in the dtype of mine."""


class NamedWeights(dict[str, torch.Tensor]):
    """`Weights` whose error names a missing one."""

    def __missing__(self, name: str) -> torch.Tensor:
        raise SettingsError(f"model: weight {name} is missing, but the ATB graph needs it")


class Family(ABC):
    """The ATB graphs of one kind of model."""

    @abstractmethod
    def model(self, spec: ModelSpec, weights: Weights, rank: int, phase: Phase) -> AtbModel:
        """The ATB model of one phase on one rank."""

    @abstractmethod
    def state(self, spec: ModelSpec) -> dict[str, Cell]:
        """The tensors that a rank keeps between steps: the key/value caches, zero at first."""

    @abstractmethod
    def inputs(
        self, spec: ModelSpec, ids: Sequence[int], past: int, phase: Phase, rank: int
    ) -> dict[str, torch.Tensor]:
        """A rank's model inputs of one step: `ids` come after `past` tokens."""

    @abstractmethod
    def logits(self, outputs: Mapping[str, Cell]) -> torch.Tensor:
        """The logits of the last token, `[vocab]`, among all tensors of a run."""
