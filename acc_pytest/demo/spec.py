"""What a demo pair looks like: the model, the dump's era and variants, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import SettingsError

FAMILIES = ("llama", "llama-separate", "moe", "bloom", "chatglm")
ERAS = ("ait_dump", "ait_dump_ts", "msit_dump_ts", "atb_dump_data")
DTYPES = ("float16", "bfloat16")
FAULTS = ("residual", "rope_sign", "norm_eps", "scale", "nan", "row", "transpose", "replica")
BLOCK = 8
"""Tokens in one block of the paged key/value cache."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake in mine, in layer `layer`, at every step.

    `kind` is one of `FAULTS`. `operator` is the end of the operator's path below its layer
    (`3_ElewiseOperation`, `4_LinearNoQuant/0_LinearOperation`) or an operation type, whose first
    operator is meant; empty takes the operator where the mistake usually happens (the first linear for
    mistakes that any operator can make).
    """

    kind: str
    layer: int = 0
    operator: str = ""


@dataclass(frozen=True, slots=True)
class DemoSpec:
    """A pair of dumps to make; the defaults give the pair of README.

    `models` is the number of ATB models in the process (2 = prefill and decode apart) and `warmup`
    says whether a run with all-ones ids came first; `None` takes what the family usually does.
    `statistics` and `description` leave the payloads out (`tensor stats`, `-sd`), `kernels` adds
    the kernel level, `named` the tensor names in the file names of operators (2026 probes).
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

    def __post_init__(self) -> None:
        for name, allowed in (("family", FAMILIES), ("era", ERAS), ("dtype", DTYPES)):
            if getattr(self, name) not in allowed:
                raise SettingsError(
                    f"demo: {name}={getattr(self, name)!r}; choose one of {', '.join(allowed)}"
                )
        for name in (
            "layers",
            "hidden",
            "heads",
            "kv_heads",
            "intermediate",
            "vocab",
            "experts",
            "prompt_length",
        ):
            if getattr(self, name) < 1:
                raise SettingsError(f"demo: {name}={getattr(self, name)}; it must be at least 1")
        if self.decode_steps < 0:
            raise SettingsError(f"demo: decode_steps={self.decode_steps}; it must not be negative")
        self._check_shape()
        if self.models not in (None, 1, 2):
            raise SettingsError(f"demo: models={self.models}; 1 (one model) or 2 (prefill and decode apart)")
        if self.statistics and self.description:
            raise SettingsError("demo: statistics and description exclude each other; choose one")
        if self.fault is not None:
            self._check_fault(self.fault)

    def _check_shape(self) -> None:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise SettingsError(f"demo: hidden={self.hidden} must be an even multiple of heads={self.heads}")
        if self.heads % self.kv_heads:
            raise SettingsError(f"demo: heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        if self.family == "bloom" and self.kv_heads != self.heads:
            raise SettingsError("demo: bloom packs one key per query head; set kv_heads equal to heads")
        if self.ranks not in (1, 2, 4):
            raise SettingsError(f"demo: ranks={self.ranks}; choose 1, 2 or 4")
        if self.ranks > 1 and self.family in ("bloom", "chatglm"):
            raise SettingsError(
                f"demo: {self.family} runs on one rank; use a llama family for ranks={self.ranks}"
            )
        for name in ("heads", "kv_heads", "intermediate", "vocab", "hidden"):
            if getattr(self, name) % self.ranks:
                raise SettingsError(
                    f"demo: {name}={getattr(self, name)} does not split over {self.ranks} ranks"
                )

    def _check_fault(self, fault: Fault) -> None:
        if fault.kind not in FAULTS:
            raise SettingsError(f"demo: fault {fault.kind!r}; choose one of {', '.join(FAULTS)}")
        if not 0 <= fault.layer < self.layers:
            raise SettingsError(f"demo: fault in layer {fault.layer}, but the model has {self.layers} layers")
        if fault.kind == "replica" and self.ranks == 1:
            raise SettingsError("demo: fault 'replica' needs ranks=2 or 4; one rank has no replicas")

    def resolved(self) -> DemoSpec:
        """The same with `models` and `warmup` decided."""
        models = self.models or (1 if self.family in ("bloom", "chatglm") else 2)
        return replace(self, models=models, warmup=models == 2 if self.warmup is None else self.warmup)

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def blocks(self) -> int:
        """Blocks of the cache: enough for the whole run, two at least."""
        return max(2, -(-(self.prompt_length + self.decode_steps + 1) // BLOCK))

    @property
    def positions(self) -> int:
        """Rows of the position tables and of the cache."""
        return self.blocks * BLOCK


@dataclass(frozen=True, slots=True)
class DemoPaths:
    """Where the pair lies. `faulty` names the operators that hold the fault (`RopeOperation_2_0_1_0`)."""

    golden: Path
    mine: Path
    faulty: tuple[str, ...] = field(default=())
