"""What looks like a model of transformers to whoever reads `config` and `state_dict()`."""

from __future__ import annotations

from typing import Any

import torch


class Config:
    """A configuration that transformers would not make, or not in this release."""

    def __init__(self, base: Any = None, **changed: Any) -> None:
        self.__dict__.update(base.to_dict() if base is not None else {}, **changed)


class Module:
    """A configuration and weights."""

    def __init__(self, config: Any, weights: dict[str, torch.Tensor]) -> None:
        self.config = config
        self._weights = weights

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._weights
