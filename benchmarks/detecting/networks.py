"""The networks that are compared: golden in float32 by torch hooks, mine as ATB operators on the CPU."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from acc_pytest.atb_cpu import Fault, LanguageModel, Runtime
from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.demo import DemoSpec
from acc_pytest.demo.golden import seeded
from acc_pytest.judging.tolerance import tolerance
from acc_pytest.threads import one_thread
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
ROUTED = ("mixtral",)
"""Golden networks whose routers choose experts."""
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
    """A golden network, where its dump is, and what was fed at each step (ids; torch: arguments by name).

    `margin` is the least distance between neighbours among the logits of the experts that a router chose and
    the first that it did not, as a share of their T; infinite without routers.
    """

    module: Any
    path: Path
    fed: Sequence[Any]
    margin: float

    @property
    def decided(self) -> bool:
        """Whether no rounding can choose other experts or another order: a difference, but no mistake.

        Neighbours must be T apart.
        """
        return self.margin > 1.0


@one_thread()
@torch.no_grad()
def make(setting: Setting, path: Path) -> Golden:
    """The dump of prefill and `DECODE_STEPS` greedy decode steps in `path`."""
    module, step = _module(setting)
    generator = torch.Generator().manual_seed(1000 + setting.seed)
    ids = torch.randint(2, VOCABULARY, (setting.prompt,), generator=generator).tolist()
    fed, cache = [], None
    config = DumpConfig(path, range(DECODE_STEPS + 1))
    with _margins(module, setting.dtype) as found, register_hook(module, config):
        for _ in range(DECODE_STEPS + 1):
            fed.append(ids)
            logits, cache = step(torch.tensor([ids]), cache)
            ids = [int(logits.flatten(0, -2)[-1].argmax())]
    return Golden(module, path, fed, min(found, default=float("inf")))


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
        """Remove a dump that is not used."""
        shutil.rmtree(self._made.pop(setting).path)

    def decided(self, setting: Any) -> Any:
        """The setting with the first seed, from its own on, for which no router decides by a rounding."""
        while not self.of(setting).decided:
            self.forget(setting)
            setting = replace(setting, seed=setting.seed + 1000)
        return setting


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


@contextlib.contextmanager
def _margins(module: Any, dtype: str) -> Iterator[list[float]]:
    """While golden runs, how clearly each of its routers decided, as a share of T of `dtype`."""
    found: list[float] = []
    removers = []
    routers = [one for name, one in module.named_modules() if name.endswith(".mlp.gate")]
    for depth, router in enumerate(routers):

        def look(router: Any, inputs: tuple[torch.Tensor], depth: int = depth) -> None:
            logits = inputs[0].flatten(0, -2) @ router.weight.t()
            chosen = module.config.num_experts_per_tok
            ordered = logits.sort(-1, descending=True).values
            allowed = tolerance("float32", dtype, depth, inputs[0].shape[-1]).value
            gaps = (ordered[..., :chosen] - ordered[..., 1 : chosen + 1]).min()
            gap = gaps / logits.square().mean().sqrt()
            found.append(float(gap) / allowed)

        removers.append(router.register_forward_pre_hook(look))
    try:
        yield found
    finally:
        for remover in removers:
            remover.remove()


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
