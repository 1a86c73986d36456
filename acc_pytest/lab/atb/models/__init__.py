"""Models as ATB graphs, a module per family, built from the weights of the golden model."""

from __future__ import annotations

from .flash import Bloom, ChatGlm
from .from_torch import read_model
from .llama import Int8Llama, Llama, Moe
from .spec import Family


def family_of(name: str) -> Family:
    """The family called `name` (one of `spec.FAMILIES`)."""
    families: dict[str, Family] = {
        "llama": Llama(packed=True),
        "llama-separate": Llama(packed=False),
        "llama-int8": Int8Llama(),
        "moe": Moe(packed=True),
        "bloom": Bloom(),
        "chatglm": ChatGlm(),
    }
    return families[name]


__all__ = ["Family", "family_of", "read_model"]
