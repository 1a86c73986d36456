"""Networks with weights of a style: golden in float32 and dumped, mine the same weights in another dtype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from detecting.networks import Golden

from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.threads import one_thread

from .architectures import ARCHITECTURES, FIRST, VOCABULARY, Architecture, Size
from .styles import STYLES, Style, fill

DECODE_STEPS = 1
CASTINGS = ("loaded", "whole")
"""Parameters only, as loading with a dtype does; or the module's `.to(dtype)`, which rounds buffers too."""

Fed = dict[str, torch.Tensor]
"""The arguments of one step by name, without the cache."""


@dataclass(frozen=True)
class Setting:
    """What golden depends on."""

    network: str
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
    def weights(self) -> Style:
        return STYLES[self.style]

    def __str__(self) -> str:
        sizes = f"layers={self.layers} hidden={self.hidden} tokens={self.tokens} seed={self.seed}"
        return f"{self.network}/{self.style} {self.implementation} {sizes}"


@dataclass(frozen=True)
class Terms:
    """On which terms a network runs again beside golden."""

    dtype: str
    casting: str = "loaded"
    implementation: str = "eager"

    def __str__(self) -> str:
        return f"{self.dtype} {self.casting} {self.implementation}"


@torch.no_grad()
def network(setting: Setting, terms: Terms | None = None) -> Any:
    """The network, as golden or on the terms of mine."""
    import transformers

    one = setting.architecture
    kind = getattr(transformers, one.model)
    implementation = terms.implementation if terms else setting.implementation
    config = kind.config_class(**one.config(Size(setting.layers, setting.hidden)))
    config._attn_implementation = implementation
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        module = kind(config).eval()
    fill(module, setting.weights, setting.hidden, setting.seed)
    return cast(module, terms) if terms else module


def cast(module: Any, terms: Terms) -> Any:
    """The network itself in the dtype of the terms."""
    dtype = getattr(torch, terms.dtype)
    if terms.casting == "whole":
        return module.to(dtype)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    return module


@one_thread()
def make(setting: Setting, directory: Path) -> Golden:
    """Golden, its dump in `directory`, and what each step is fed."""
    module = network(setting)
    fed = what_is_fed(setting)
    dump(setting, module, fed, directory)
    return Golden(module, directory, fed, float("inf"))


def dump(setting: Setting, module: Any, fed: Sequence[Fed], directory: Path) -> list[torch.Tensor]:
    """Run the steps and dump them with the default `DumpConfig`; returns the result of each step."""
    with register_hook(module, DumpConfig(directory, range(len(fed)))):
        return run(setting, module, fed)


@one_thread()
@torch.no_grad()
def run(setting: Setting, module: Any, fed: Sequence[Fed]) -> list[torch.Tensor]:
    """The logits (or last hidden states) of all steps."""
    made, cache = [], None
    dtype = next(module.parameters()).dtype
    word = setting.architecture.cache
    for arguments in fed:
        caching = {word: cache, "use_cache": True} if word else {}
        result = module(**{name: _as(value, dtype) for name, value in arguments.items()}, **caching)
        cache = result.get(word) if word else None
        made.append(_answer(result))
    return made


def _as(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Pictures and sounds in the dtype of the network."""
    return value.to(dtype) if value.is_floating_point() else value


def _answer(result: Any) -> torch.Tensor:
    for name in ("logits", "last_hidden_state"):
        if isinstance(answer := result.get(name), torch.Tensor):
            return answer
    raise LookupError(f"{type(result).__name__} has neither logits nor a last hidden state")


def moved(golden: Iterable[torch.Tensor], mine: Iterable[torch.Tensor]) -> float:
    """How far results are from golden's: relative L2 over all steps."""
    pairs = [(one.double().flatten(), other.double().flatten()) for one, other in zip(golden, mine)]
    wanted, made = (torch.cat(side) for side in zip(*pairs))
    return float((made - wanted).norm() / wanted.norm())


def what_is_fed(setting: Setting) -> list[Fed]:
    """The arguments of every step; ids are drawn beforehand, so that every run is fed the same."""
    draw = torch.Generator().manual_seed(1000 + setting.seed)
    ids = torch.randint(3, VOCABULARY, (1, setting.tokens + DECODE_STEPS), generator=draw)
    ids[0, 0] = FIRST
    prompt, rest = ids[:, : setting.tokens], ids[:, setting.tokens :]
    return [{"input_ids": prompt}, *({"input_ids": one} for one in rest.split(1, dim=1))]
