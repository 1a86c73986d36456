"""The networks that are compared: golden in float32 by torch hooks, mine as ATB operators on the CPU."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from acc_pytest.base.threads import one_thread
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.lab.atb import Fault, LanguageModel, Runtime
from acc_pytest.lab.demo import DemoSpec
from acc_pytest.lab.demo.golden import seeded
from tests.published_networks import published

DECODE_STEPS = 1
TOKENS = 24
"""What the caches of mine hold."""
VOCABULARY = 128


@dataclass(frozen=True)
class Network:
    """A golden network (one of `published`, or the demo's `chatglm`) and the ATB graphs that run it.

    `family` and `models` choose among the graphs of one network, see `LanguageModel.from_torch`. `config`
    names the shipped settings it is judged by.
    """

    name: str
    golden: str
    family: str | None = None
    models: int | None = None
    config: str = "default"


NETWORKS = {
    one.name: one
    for one in (
        Network("llama", "llama"),
        Network("llama-separate", "llama", family="llama-separate"),
        Network("llama-one-model", "llama", models=1),
        Network("mistral", "mistral"),
        Network("qwen2", "qwen"),
        Network("glm", "glm"),
        Network("glm4", "glm4"),
        Network("chatglm2", "chatglm"),
        Network("bloom", "bloom"),
        Network("mixtral", "mixtral"),
    )
}
"""All that are judged by the default thresholds."""
INT8 = Network("llama-int8", "llama", family="llama-int8", config="w8a8")
"""Quantised: its error is that of int8, which the thresholds must be told (`--acc-config w8a8`)."""


@dataclass(frozen=True)
class Setting:
    """What golden depends on. Weights are values that the `dtype` of mine holds exactly."""

    golden: str
    dtype: str
    layers: int = 2
    seed: int = 1
    prompt: int = 11


@dataclass(frozen=True)
class Golden:
    """A golden network, where its dump is, and what was fed at each step (ids; torch: arguments by name)."""

    module: Any
    path: Path
    fed: Sequence[Any]


@one_thread()
@torch.no_grad()
def make(setting: Setting, path: Path) -> Golden:
    """The dump of prefill and `DECODE_STEPS` greedy decode steps in `path`."""
    module, step = _module(setting)
    generator = torch.Generator().manual_seed(1000 + setting.seed)
    ids = torch.randint(2, VOCABULARY, (setting.prompt,), generator=generator).tolist()
    fed, cache = [], None
    config = DumpConfig(path, range(DECODE_STEPS + 1))
    with register_hook(module, config):
        for _ in range(DECODE_STEPS + 1):
            fed.append(ids)
            logits, cache = step(torch.tensor([ids]), cache)
            ids = [int(logits.flatten(0, -2)[-1].argmax())]
    return Golden(module, path, fed)


@dataclass
class Goldens:
    """Golden dumps below `directory`, each made once."""

    directory: Path
    make: Callable[[Any, Path], Golden] = make
    _made: dict[Any, Golden] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def of(self, setting: Any) -> Golden:
        """What `make` makes of the setting."""
        if setting not in self._made:
            self._made[setting] = self.make(setting, self.directory / f"golden-{next(self._numbers)}")
        return self._made[setting]

    def forget(self, setting: Any) -> None:
        """Remove a dump that is not used any more."""
        shutil.rmtree(self._made.pop(setting).path)


Step = Callable[[torch.Tensor, Any], tuple[torch.Tensor, Any]]


def _module(setting: Setting) -> tuple[Any, Step]:
    if setting.golden == "chatglm":
        module = seeded(_demo(setting), setting.seed)
        return module, stepping(module)
    module = published(setting.golden, layers=setting.layers, dtype=setting.dtype, seed=setting.seed)
    return module, stepping(module)


def stepping(module: Any) -> Step:
    """One step of a golden network: ids and the cache in, logits and the cache out."""
    if hasattr(module, "step"):
        return module.step

    def step(ids: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        made = module(ids, past_key_values=cache, use_cache=True)
        return made.logits, made.past_key_values

    return step


def _demo(setting: Setting, ranks: int = 1) -> Any:
    return DemoSpec(
        family=setting.golden,
        layers=setting.layers,
        hidden=64,
        kv_heads=2,
        intermediate=96,
        prompt_length=TOKENS - DECODE_STEPS - 1,
        decode_steps=DECODE_STEPS,
        dtype=setting.dtype,
        ranks=ranks,
    ).model


def mine(
    network: Network, golden: Golden, setting: Setting, runtime: Runtime, fault: Fault | None = None
) -> LanguageModel:
    """The network as ATB runs it, over the runtime's ranks, with the fault in it.

    Raises `SettingsError` when it has no operator that can have this fault.
    """
    if setting.golden == "chatglm":
        weights = dict(golden.module.named_parameters())
        return LanguageModel(_demo(setting, runtime.ranks), weights, runtime, fault)
    return LanguageModel.from_torch(
        golden.module,
        runtime,
        dtype=setting.dtype,
        tokens=TOKENS,
        fault=fault,
        family=network.family,
        models=network.models,
    )
