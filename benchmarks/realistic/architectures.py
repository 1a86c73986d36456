"""Architectures of transformers as configs of any size, and what each of them is fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VOCABULARY = 256
FIRST = 1
"""The id of the first token of a prompt, which no other place has."""
POSITIONS = 640

Words = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How large a network is."""

    layers: int = 2
    hidden: int = 64

    @property
    def head(self) -> int:
        """Features of an attention head."""
        return min(64, self.hidden // 4)

    @property
    def heads(self) -> int:
        return self.hidden // self.head

    @property
    def inner(self) -> int:
        """Features inside an mlp; never as many as `hidden`."""
        return self.hidden * 3 // 2


@dataclass(frozen=True)
class Architecture:
    """A network of transformers.

    `config` are the words of its config for a size. `cache` is the argument by which a decode step gets what
    the steps before it left. `implementations` are its ways to compute attention; `routed` says that routers
    choose experts, `rotary` where its rotation tables are made.
    """

    name: str
    model: str
    config: Callable[[Size], Words]
    implementations: tuple[str, ...] = ("eager", "sdpa")
    cache: str = "past_key_values"
    routed: bool = False


def _common(size: Size) -> Words:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.inner,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
        "bos_token_id": FIRST,
        "eos_token_id": 2,
    }


def _grouped(size: Size, **further: Any) -> Words:
    return {**_common(size), "num_key_value_heads": size.heads // 2, **further}


def _with_head(size: Size, **further: Any) -> Words:
    return _grouped(size, head_dim=size.head, **further)


ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture("llama", "LlamaForCausalLM", _grouped),
        Architecture("mistral", "MistralForCausalLM", _grouped),
        Architecture("qwen2", "Qwen2ForCausalLM", _grouped),
        Architecture("qwen3", "Qwen3ForCausalLM", _with_head),
    )
}
