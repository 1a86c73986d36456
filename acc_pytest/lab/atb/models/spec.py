"""The model to build: sizes, variants, precision, and how it is spread over ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ....errors import SettingsError
from ..graph import AtbModel, Cell
from .leaves import BLOCK

Phase = Literal["prefill", "decode", "both"]
FAMILIES = ("llama", "llama-separate", "llama-int8", "moe", "bloom", "chatglm")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
"""float32 is no device's choice; with it a wrong graph shows where the rounding of float16 would hide it."""
POSITIVE = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_size",
    "intermediate",
    "vocab",
    "experts",
    "tokens",
)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes of one model as ATB runs it.

    `models` is 2 where prefill and decode are models of their own with a paged cache, 1 where one model
    with a contiguous cache does both. `tokens` is the longest sequence that the cache must hold.
    The first `dense_layers` layers of a mixture have no experts, the others choose `experts_per_token` of
    `experts` for a token. The first `rotary_size` of the `head_size` elements of a head are rotated:
    its two halves against each other, neighbours with `interleaved`. With `sandwich` attention and
    feed-forward have a norm after them too.

    Over `ranks` heads and feed-forward columns are split. Key heads are split too, or where ranks are
    more, each rank has the one that its query heads need. Vocabulary and hidden columns are split
    where that is even, else every rank has all. Raises `SettingsError` for sizes that no model can have.
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
    interleaved: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    sandwich: bool = False
    dense_layers: int = 1
    tokens: int = 16
    dtype: str = "float16"
    ranks: int = 1
    models: int = 2

    def __post_init__(self) -> None:
        for name, allowed in (("family", FAMILIES), ("dtype", tuple(DTYPES)), ("models", (1, 2))):
            if getattr(self, name) not in allowed:
                choices = ", ".join(map(str, allowed))
                raise SettingsError(f"model: {name} must be one of {choices}, got {getattr(self, name)!r}")
        for name in POSITIVE:
            if getattr(self, name) < 1:
                raise SettingsError(f"model: {name} must be >= 1, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise SettingsError(
                f"model: heads must be a multiple of kv_heads={self.kv_heads}, got {self.heads}"
            )
        if self.family == "bloom" and self.kv_heads != self.heads:
            raise SettingsError("model: bloom packs one key per query head; set kv_heads equal to heads")
        if self.experts_per_token not in range(1, self.experts + 1):
            raise SettingsError(
                f"model: experts_per_token must be from 1 to experts={self.experts}, "
                f"got {self.experts_per_token}"
            )
        if self.rotary_size % 2 or not 0 < self.rotary_size <= self.head_size:
            raise SettingsError(
                f"model: rotary_size must be even and at most head_size={self.head_size}, "
                f"got {self.rotary_size}"
            )
        self._check_ranks()

    def _check_ranks(self) -> None:
        if self.ranks < 1:
            raise SettingsError(f"model: ranks must be >= 1, got {self.ranks}")
        for name in ("heads", "intermediate"):
            if getattr(self, name) % self.ranks:
                raise SettingsError(
                    f"model: {name}={getattr(self, name)} does not split over {self.ranks} ranks"
                )
        if self.kv_heads % self.ranks and self.ranks % self.kv_heads:
            raise SettingsError(
                f"model: kv_heads={self.kv_heads} does not split over {self.ranks} ranks; "
                "one of the two must be a multiple of the other"
            )

    @property
    def own_heads(self) -> int:
        """Query heads of one rank."""
        return self.heads // self.ranks

    @property
    def own_kv_heads(self) -> int:
        """Key heads of one rank."""
        return max(1, self.kv_heads // self.ranks)

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


# A family of models that runs as ATB graphs.


Weights = Mapping[str, torch.Tensor]
"""Parameters of the golden module by name, in the dtype of mine."""


class NamedWeights(dict[str, torch.Tensor]):
    """`Weights` whose error names a missing one."""

    def __missing__(self, name: str) -> torch.Tensor:
        raise SettingsError(f"model: weight {name} is missing, but the ATB graph needs it")


class Family(ABC):
    """The ATB graphs of one kind of model."""

    @abstractmethod
    def model(self, spec: ModelSpec, weights: Weights, rank: int, phase: Phase) -> AtbModel:
        """The ATB model of one phase on one rank."""

    @abstractmethod
    def state(self, spec: ModelSpec) -> dict[str, Cell]:
        """The tensors that a rank keeps between steps: the key/value caches, zero at first."""

    @abstractmethod
    def inputs(
        self, spec: ModelSpec, ids: Sequence[int], past: int, phase: Phase, rank: int
    ) -> dict[str, torch.Tensor]:
        """A rank's model inputs of one step: `ids` come after `past` tokens."""

    @abstractmethod
    def logits(self, outputs: Mapping[str, Cell]) -> torch.Tensor:
        """The logits of the last token, `[vocab]`, among all tensors of a run."""
