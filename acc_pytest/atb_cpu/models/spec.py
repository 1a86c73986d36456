"""What model to build: sizes, variants, precision, and how it is spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ...errors import SettingsError
from .attention_leaves import BLOCK

Phase = Literal["prefill", "decode", "both"]
FAMILIES = ("llama", "llama-separate", "moe", "bloom", "chatglm")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
SINGLE_RANK = ("bloom", "chatglm")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes of one model as ATB runs it.

    `models` is 2 where prefill and decode are models of their own with a paged cache, 1 where one model
    with a contiguous cache does both. `tokens` is the longest sequence that the cache must hold.
    `experts_per_token` experts are chosen for a token, of `experts`. `rotary_size` of the `head_size`
    elements of a head are rotated. Raises `SettingsError` for sizes that no model can have.
    """

    family: str = "llama"
    layers: int = 2
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 4
    head_size: int = 8
    intermediate: int = 36
    vocab: int = 128
    experts: int = 2
    experts_per_token: int = 2
    epsilon: float = 1e-5
    rope_base: float = 10000.0
    rotary_size: int = 8
    qkv_bias: bool = False
    tokens: int = 16
    dtype: str = "float16"
    ranks: int = 1
    models: int = 2

    def __post_init__(self) -> None:
        for name, allowed in (("family", FAMILIES), ("dtype", tuple(DTYPES)), ("models", (1, 2))):
            if getattr(self, name) not in allowed:
                said = ", ".join(map(str, allowed))
                raise SettingsError(f"model: {name}={getattr(self, name)!r}; choose one of {said}")
        for name in (
            "layers",
            "hidden",
            "heads",
            "kv_heads",
            "head_size",
            "intermediate",
            "vocab",
            "experts",
        ):
            if getattr(self, name) < 1:
                raise SettingsError(f"model: {name}={getattr(self, name)}; it must be at least 1")
        if self.heads % self.kv_heads:
            raise SettingsError(f"model: heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        if self.family == "bloom" and self.kv_heads != self.heads:
            raise SettingsError("model: bloom packs one key per query head; set kv_heads equal to heads")
        self._check_ranks()

    def _check_ranks(self) -> None:
        if self.ranks < 1:
            raise SettingsError(f"model: ranks={self.ranks}; it must be at least 1")
        if self.ranks > 1 and self.family in SINGLE_RANK:
            raise SettingsError(
                f"model: {self.family} runs on one rank; use a llama family for ranks={self.ranks}"
            )
        for name in ("heads", "kv_heads", "intermediate", "vocab", "hidden"):
            if getattr(self, name) % self.ranks:
                raise SettingsError(
                    f"model: {name}={getattr(self, name)} does not split over {self.ranks} ranks"
                )

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The models of a process, in the order in which they first run."""
        return ("prefill", "decode") if self.models == 2 else ("both",)

    def phase_of(self, past: int) -> Phase:
        """The model that runs after `past` tokens."""
        return "both" if self.models == 1 else "decode" if past else "prefill"

    @property
    def blocks(self) -> int:
        """Blocks of the paged cache: enough for `tokens`, two at least."""
        return max(2, -(-self.tokens // BLOCK))

    @property
    def positions(self) -> int:
        """Rows of the position tables and of the contiguous cache."""
        return self.blocks * BLOCK
