"""`make_demo`: weights from a seed, the golden run, then mine over the same tokens, both dumped.

A noise run, if asked for, is the golden model once more over these tokens, in the dtype of mine.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from ...base.older_torch import half_on_cpu
from ...base.threads import one_thread
from ...capture.golden import dump_golden
from ...capture.torch_hooks import DumpConfig, register_hook
from ...errors import DumpError, SettingsError
from ..atb import Fault, LanguageModel, ModelSpec, Probe, Runtime
from ..atb.probe import EVERY, E3Probe, E4Probe, E4Settings, ProbeSettings
from .golden import GoldenModel, seeded

GOLDEN_PROCESS = "cpu_4001"


def make_demo(directory: Path, spec: DemoSpec) -> DemoPaths:
    """Write `directory/golden`, `directory/mine` and, if `spec` says so, `directory/noise`.

    The same `spec` gives the same bytes.

    Directories of an earlier demo are replaced. Raises `SettingsError` when the fault names no
    operator and `DumpError` when `directory/golden` or `directory/mine` holds anything but a demo.
    """
    spec = spec.resolved()
    golden, mine, noise = directory / "golden", directory / "mine", directory / "noise"
    for path in (golden, mine, noise):
        _clear(path)
    with torch.no_grad():
        module = seeded(spec.model, spec.seed)
        runtime = Runtime(probes_of(mine, spec))
        model = LanguageModel(spec.model, dict(module.named_parameters()), runtime, spec.fault)
        tokens = _run_golden(module, spec, golden)
        run_mine(model, spec, tokens)
        if spec.noise:
            with half_on_cpu():
                _run_golden(module.to(spec.model.torch_dtype), spec, noise, tokens)
    return DemoPaths(golden, mine, model.faulty, noise if spec.noise else None)


def _clear(path: Path) -> None:
    if not path.exists():
        return
    foreign = [
        p.name for p in path.iterdir() if not p.name.startswith(("msit_dump", "ait_dump", "atb_dump_data"))
    ]
    if foreign:
        raise DumpError(f"{path}: holds {foreign[0]!r}, which is not from a demo; choose an empty directory")
    shutil.rmtree(path)


@one_thread()
def _run_golden(
    module: GoldenModel, spec: DemoSpec, directory: Path, tokens: list[list[int]] | None = None
) -> list[list[int]]:
    """Run prompt and greedy decoding, or `tokens`, dumped; returns the ids fed at each step."""
    config = DumpConfig(
        dump_path=directory,
        token_range=range(spec.decode_steps + 1),
        dump_statistics_mode=int(spec.statistics),
        dump_weight=not spec.statistics,
        run_name=f"msit_dump_{TIMESTAMP}",
        process_name=GOLDEN_PROCESS,
    )
    runs: list[list[list[int]]] = [] if tokens is None else [tokens]

    def run(model: nn.Module) -> None:
        assert isinstance(model, GoldenModel)
        runs.append(_decoded(model, spec, runs[0] if runs else None))

    if spec.profile and tokens is None:
        with half_on_cpu():
            dump_golden(module, run, config, dtype=spec.model.torch_dtype)
    else:
        with register_hook(module, config):
            run(module)
    return runs[0]


def _decoded(module: GoldenModel, spec: DemoSpec, tokens: list[list[int]] | None) -> list[list[int]]:
    """The ids of each step: the prompt and what the model chooses after it, or `tokens`."""
    generator = torch.Generator().manual_seed(spec.seed + 1)
    ids = torch.randint(0, spec.vocab, (spec.prompt_length,), generator=generator).tolist()
    cache, steps = None, []
    for number in range(spec.decode_steps + 1):
        ids = tokens[number] if tokens is not None else ids
        steps.append(ids)
        logits, cache = module.step(torch.tensor([ids]), cache)
        ids = [int(logits.flatten(0, -2)[-1].argmax())]
    return steps


def run_mine(model: LanguageModel, spec: DemoSpec, tokens: list[list[int]]) -> None:
    """Execute mine over the ids of every step in `tokens`, after a warm-up if there is one."""
    if spec.warmup:
        model.warm_up(spec.prompt_length)
    for ids in tokens:
        model.step(ids)


# The probes of a demo's ranks: one of each era, with a fixed time and process so that bytes repeat.


TIMESTAMP = "20250101_000000"
PID = 5001
"""Process id of rank 0; the other ranks follow."""


def probes_of(directory: Path, spec: DemoSpec) -> list[Probe]:
    """A probe a rank, which write below `directory`."""
    return [_probe(directory, spec, rank) for rank in range(spec.ranks)]


def _probe(directory: Path, spec: DemoSpec, rank: int) -> Probe:
    if spec.era == "atb_dump_data":
        newest = E4Settings(
            output=str(directory),
            task="statistics" if spec.statistics else "tensor",
            enabled=True,
            ranges=EVERY,
            child=not spec.statistics,
            level=0,
            named=spec.named,
            kernels=spec.kernels,
            any_path=True,
        )
        return E4Probe(newest, rank, PID + rank)
    settings = ProbeSettings(
        output=f"{directory}/",
        timestamp="" if spec.era == "ait_dump" else TIMESTAMP,
        era="E3" if spec.era == "msit_dump_ts" else "E2",
        values=not spec.description,
        statistics=spec.statistics,
        ranges=EVERY,
        child=True,
        named=spec.named,
        kernels=spec.kernels,
        any_path=True,
    )
    return E3Probe(settings, rank, PID + rank)


# A demo pair: the model, the dump's era and variants, and the fault of mine.


FAMILIES = ("llama", "bloom", "chatglm", "qwen", "moe", "llama-separate", "llama-int8")
ERAS = ("ait_dump", "ait_dump_ts", "msit_dump_ts", "atb_dump_data")
HOMES = {
    "bias": ("qwen", 1),
    "replica": ("llama", 2),
    "all_reduce": ("llama", 2),
    "int8_scale": ("llama-int8", 1),
}
"""Family and ranks of a demo with a fault that a Llama on one rank cannot have."""


@dataclass(frozen=True, slots=True)
class DemoSpec:
    """A pair of dumps to make; the defaults give the pair of README.

    `models` is the number of ATB models in the process (2 = prefill and decode apart) and `warmup`
    says whether a run with all-ones ids came first; `None` takes what the family usually does.
    `statistics` and `description` leave the payloads out (`tensor stats`, `-sd`), `kernels` adds
    the kernel level, `named` the tensor names in the file names of operators (2026 probes). `noise` adds
    a noise run: golden in the dtype of mine; `profile` a noise profile beside golden, of runs in that dtype.
    Raises `SettingsError` for a combination that no model can have.
    """

    family: str = "llama"
    layers: int = 2
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 4
    intermediate: int = 36
    vocab: int = 128
    experts: int = 2
    prompt_length: int = 7
    decode_steps: int = 2
    seed: int = 7
    dtype: str = "float16"
    warmup: bool | None = None
    models: int | None = None
    ranks: int = 1
    era: str = "msit_dump_ts"
    statistics: bool = False
    description: bool = False
    kernels: bool = False
    named: bool = False
    fault: Fault | None = None
    noise: bool = False
    profile: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("family", FAMILIES), ("era", ERAS)):
            if getattr(self, name) not in allowed:
                raise SettingsError(
                    f"demo: {name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        if self.prompt_length < 1:
            raise SettingsError(f"demo: prompt_length must be >= 1, got {self.prompt_length}")
        if self.decode_steps < 0:
            raise SettingsError(f"demo: decode_steps must be >= 0, got {self.decode_steps}")
        if self.heads < 1 or self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise SettingsError(
                f"demo: hidden must be an even multiple of heads={self.heads}, got {self.hidden}"
            )
        if self.statistics and self.description:
            raise SettingsError("demo: statistics and description exclude each other; choose one")
        if self.description and self.era == "atb_dump_data":
            raise SettingsError("demo: era atb_dump_data has no descriptions; choose another era")
        if self.fault is not None and self.fault.kind in ("replica", "all_reduce") and self.ranks == 1:
            raise SettingsError(f"demo: fault {self.fault.kind!r} needs ranks >= 2, got {self.ranks}")
        _ = self.model

    def resolved(self) -> DemoSpec:
        """This spec with `models` and `warmup` decided."""
        models = self._models
        return replace(self, models=models, warmup=models == 2 if self.warmup is None else self.warmup)

    @property
    def _models(self) -> int:
        return self.models or (1 if self.family in ("bloom", "chatglm") else 2)

    @property
    def model(self) -> ModelSpec:
        """The model alone."""
        return ModelSpec(
            family="llama" if self.family == "qwen" else self.family,
            qkv_bias=self.family == "qwen",
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            intermediate=self.intermediate,
            vocab=self.vocab,
            experts=self.experts,
            experts_per_token=self.experts,
            rotary_size=self.head_size,
            tokens=self.prompt_length + self.decode_steps + 1,
            dtype=self.dtype,
            ranks=self.ranks,
            models=self._models,
        )

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class DemoPaths:
    """The paths of the pair, and of the noise run if there is one.

    `faulty` names the operators that hold the fault (`RopeOperation_2_0_1_0`).
    """

    golden: Path
    mine: Path
    faulty: tuple[str, ...] = field(default=())
    noise: Path | None = None
