"""A demo pair: the model, the dump's era and variants, and the fault of mine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ..atb_cpu import Fault, ModelSpec
from ..errors import SettingsError

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
