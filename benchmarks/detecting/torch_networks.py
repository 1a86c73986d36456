"""Torch against torch: golden is a network in float32, mine the same weights in float16 or bfloat16.

All weights are values that both of these dtypes hold exactly, so that one golden serves both.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acc_pytest.base.threads import one_thread
from acc_pytest.capture.torch_hooks import DumpConfig, DumpHandle, register_hook
from acc_pytest.lab.demo.golden.models import fill

from .networks import DECODE_STEPS, VOCABULARY, Golden
from .torch_architectures import ARCHITECTURES, HEADS, HIDDEN, Architecture

PADDING = 2
"""Tokens of an encoder's prompt that its attention mask hides."""
ANSWER = 5
"""Tokens that the decoder of an encoder-decoder is given."""
BIAS = 0.5
"""Standard deviation of biases: large enough that a dropped one is no rounding."""

Fed = dict[str, torch.Tensor]
"""The arguments of one step by name, without the cache."""


@dataclass(frozen=True)
class Setting:
    """What golden depends on."""

    network: str
    implementation: str = "eager"
    layers: int = 2
    seed: int = 1
    prompt: int = 11

    @property
    def architecture(self) -> Architecture:
        return ARCHITECTURES[self.network]


def make(setting: Setting, directory: Path) -> Golden:
    """The network in float32, its dump in `directory`, and what each step was fed (greedy decoding)."""
    module = _network(setting)
    fed = [_prompt(setting)]
    with one_thread(), dumped(module, directory):
        logits, cache = step(module, fed[0])
        for _ in range(DECODE_STEPS if setting.architecture.decodes else 0):
            fed.append(_next(fed[-1], logits))
            logits, cache = step(module, fed[-1], cache)
    return Golden(module, directory, fed)


def cast(module: Any, dtype: str) -> Any:
    """A network of its own with the same weights in `dtype`; buffers keep theirs, as published ones do."""
    module = copy.deepcopy(module)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return module


def dumped(module: Any, directory: Path) -> DumpHandle:
    """While open, the module's steps are dumped with the default `DumpConfig`."""
    return register_hook(module, DumpConfig(directory, range(DECODE_STEPS + 1)))


def run(module: Any, fed: Sequence[Fed]) -> list[torch.Tensor]:
    """The logits of all steps."""
    made, cache = [], None
    for arguments in fed:
        logits, cache = step(module, arguments, cache)
        made.append(logits)
    return made


@one_thread()
@torch.no_grad()
def step(module: Any, fed: Fed, cache: Any = None) -> tuple[torch.Tensor, Any]:
    """Logits and cache of one step."""
    caching = {"past_key_values": cache, "use_cache": True} if module.config.use_cache else {}
    result = module(**fed, **caching)
    return result.logits, result.get("past_key_values")


def _prompt(setting: Setting) -> Fed:
    generator = torch.Generator().manual_seed(1000 + setting.seed)
    one = setting.architecture
    ids = torch.randint(2, VOCABULARY, (1, setting.prompt), generator=generator)
    fed = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if not one.decodes:
        fed["attention_mask"][:, -PADDING:] = 0
    if one.positions:
        fed["position_ids"] = torch.arange(setting.prompt)[None]
    else:
        fed["decoder_input_ids"] = torch.randint(2, VOCABULARY, (1, ANSWER), generator=generator)
    return fed


def _next(fed: Fed, logits: torch.Tensor) -> Fed:
    mask = fed["attention_mask"]
    return {
        "input_ids": logits[:, -1:].argmax(-1),
        "attention_mask": torch.cat([mask, mask[:, :1]], -1),
        "position_ids": fed["position_ids"][:, -1:] + 1,
    }


@torch.no_grad()
def _network(setting: Setting) -> Any:
    import transformers

    one = setting.architecture
    kind = getattr(transformers, one.model)
    config = kind.config_class(
        **one.config,
        **{one.depth: setting.layers},
        attn_implementation=setting.implementation,
        use_cache=one.decodes,
    )
    with torch.random.fork_rng(devices=[]):
        module = kind(config).eval()
    fill(module, torch.bfloat16, setting.seed, BIAS)
    module.get_input_embeddings().weight.mul_(one.embedded)
    for name, parameter in module.named_parameters():
        if name.endswith(one.unscaled or "-"):
            parameter.mul_((HIDDEN / HEADS) ** -0.5)
        if one.norms_from_one and parameter.dim() == 1:
            parameter.sub_(1.0)
        # float16 has a smaller range: what it rounds has fewer bits left, which bfloat16 holds as well.
        parameter.copy_(parameter.half().float())
    return module
