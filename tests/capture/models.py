"""Small models that do what makes capturing hard, and a look at what was dumped of them."""

from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn


def files(folder: Path, step: int | str = 0) -> list[str]:
    """The tensor files of a step, as `module/input_0`."""
    home = folder / str(step)
    return sorted(str(path.relative_to(home))[:-4] for path in home.rglob("*.pth"))


def tensor(folder: Path, name: str, step: int | str = 0) -> torch.Tensor:
    """One of them."""
    return torch.load(folder / str(step) / f"{name}.pth", weights_only=True)


def entries(folder: Path, step: int = 0) -> list[dict[str, Any]]:
    """What the manifest of a step says of its tensors."""
    return json.loads((folder / str(step) / "manifest.json").read_text())["tensors"]


class Layer(nn.Module):
    """A norm that is registered after what runs behind it, an in-place activation, a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.act = nn.ReLU(inplace=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.linear(self.norm(x))) + x


class Stack(nn.Module):
    def __init__(self, layers: int = 2, width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.head = nn.Linear(width, 2)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Returns(nn.Module):
    """Returns what it was told to, whatever goes in."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.value


@dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] | None = None


Named = namedtuple("Named", "first second")


class Raises(nn.Module):
    """Fails when asked to, in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(2, 2)
        self.failing = Failing()
        self.behind = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, error: BaseException | None = None) -> torch.Tensor:
        return self.behind(self.failing(self.before(x), error))


class Failing(nn.Module):
    def forward(self, x: torch.Tensor, error: BaseException | None) -> torch.Tensor:
        if error is not None:
            raise error
        return x * 2
