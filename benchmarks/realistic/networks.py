"""Networks with weights of a style: golden in float32 and dumped, mine the same weights in another dtype."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from detecting.networks import Golden

from acc_pytest.base.threads import one_thread
from acc_pytest.capture.golden import dump_golden
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook

from .architectures import ARCHITECTURES, Architecture, Size
from .feeding import Fed, what_is_fed
from .ports import PORTS
from .styles import STYLES, Style, fill

CASTINGS = ("loaded", "whole")
"""Parameters only, as loading with a dtype does; or the module's `.to(dtype)`, which rounds buffers too."""


OWN = "ACC_BENCHMARK_OWN"
"""A variable that makes networks somebody's own: their classes are none of transformers."""
DEVICE = "ACC_BENCHMARK_DEVICE"
"""A variable: the device that mine runs on, `cpu` where it is not set. Golden is always run by the CPU."""


@dataclass(frozen=True)
class Terms:
    """On which terms a network runs beside golden: the port is one of `PORTS`."""

    dtype: str
    casting: str = "loaded"
    implementation: str = "eager"
    port: str = "plain"

    def __str__(self) -> str:
        return f"{self.dtype} {self.casting} {self.implementation} {self.port}"


@dataclass(frozen=True)
class Setting:
    """What a golden network and its noise profile depend on; `mine` are the terms of the other side."""

    network: str
    mine: Terms
    style: str = "even"
    implementation: str = "eager"
    layers: int = 2
    hidden: int = 64
    tokens: int = 16
    seed: int = 1

    @property
    def architecture(self) -> Architecture:
        return ARCHITECTURES[self.network]

    @property
    def size(self) -> Size:
        return Size(self.layers, self.hidden, self.tokens)

    @property
    def weights(self) -> Style:
        return STYLES[self.style]

    def __str__(self) -> str:
        sizes = f"layers={self.layers} hidden={self.hidden} tokens={self.tokens} seed={self.seed}"
        return f"{self.network}/{self.style} {self.implementation} {sizes}, mine {self.mine}"


@torch.no_grad()
def network(setting: Setting, terms: Terms | None = None) -> Any:
    """The network, as golden or on other terms."""
    import transformers

    # What it says of ways to compute attention that a network does not have is no news.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    one = setting.architecture
    kind = getattr(transformers, one.model)
    implementation = terms.implementation if terms else setting.implementation
    config = kind.config_class(**one.config(setting.size), attn_implementation=implementation)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        module = kind(config).eval()
    if os.environ.get(OWN):
        module.__class__ = type(kind.__name__, (kind,), {"__module__": OWN})
    fill(module, setting.weights, setting.hidden, setting.seed)
    if terms is None:
        return module
    cast(module, terms)
    module.to(os.environ.get(DEVICE, "cpu"))
    PORTS[terms.port](module)
    return module


def cast(module: Any, terms: Terms) -> None:
    """Give the network the dtype of the terms."""
    dtype = getattr(torch, terms.dtype)
    if terms.casting == "whole":
        module.to(dtype)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)


@one_thread()
def make(setting: Setting, directory: Path) -> Golden:
    """Golden with its noise profile, its dump in `directory`, and what each step is fed."""
    module = network(setting)
    fed = what_is_fed(setting.architecture, setting.size, 1000 + setting.seed)
    dump_golden(
        module,
        lambda model: run(setting, model, fed),
        DumpConfig(directory, range(len(fed))),
        dtype=getattr(torch, setting.mine.dtype),
        cast_buffers=setting.mine.casting == "whole",
    )
    return Golden(module, directory, fed)


def dump(setting: Setting, module: Any, fed: Sequence[Fed], directory: Path) -> list[torch.Tensor]:
    """Run the steps and dump them with the default `DumpConfig`; returns the result of each step."""
    with register_hook(module, DumpConfig(directory, range(len(fed)))):
        return run(setting, module, fed)


@one_thread()
@torch.no_grad()
def run(setting: Setting, module: Any, fed: Sequence[Fed]) -> list[torch.Tensor]:
    """The logits (or last hidden states) of all steps."""
    made, cache = [], None
    first = next(module.parameters())
    word = setting.architecture.cache
    for arguments in fed:
        caching = {word: cache, "use_cache": True} if word else {}
        result = module(**{name: _as(value, first) for name, value in arguments.items()}, **caching)
        cache = result.get(word) if word else None
        made.append(_answer(result))
    return made


def _as(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """What is fed where the network is; pictures and sounds in its dtype."""
    value = value.to(parameter.device)
    return value.to(parameter.dtype) if value.is_floating_point() else value


def _answer(result: Any) -> torch.Tensor:
    for name in ("logits", "logits_per_image", "last_hidden_state"):
        if isinstance(answer := result.get(name), torch.Tensor):
            return answer
    raise LookupError(f"{type(result).__name__} has neither logits nor a last hidden state")


def moved(golden: Iterable[torch.Tensor], mine: Iterable[torch.Tensor], by_token: bool = False) -> float:
    """How far results are from golden's: relative L2 over all steps, or that of the median token.

    Networks with routers are measured by token: a tie moves one token by any amount.
    """
    pairs = [(one.double(), other.double().cpu()) for one, other in zip(golden, mine)]
    wanted, made = (torch.cat([one.reshape(-1, one.shape[-1]) for one in side]) for side in zip(*pairs))
    along = -1 if by_token else None
    ratios = torch.linalg.vector_norm(made - wanted, dim=along) / torch.linalg.vector_norm(wanted, dim=along)
    return float(ratios.median())
