"""Tiny networks of Hugging Face's transformers with random weights: golden sides that we have not written."""

from __future__ import annotations

from typing import Any

import torch

from acc_pytest.errors import SettingsError
from acc_pytest.lab.atb.models.spec import DTYPES
from acc_pytest.lab.demo.golden.models import fill

COMMON = {"vocab_size": 128, "hidden_size": 64, "attn_implementation": "eager"}
DECODER = {
    **COMMON,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
WITH_HEAD = {**DECODER, "head_dim": 16, "pad_token_id": 0}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", DECODER),
    "mistral": ("Mistral", DECODER),
    "qwen": ("Qwen2", DECODER),
    "glm": ("Glm", WITH_HEAD),
    "glm4": ("Glm4", WITH_HEAD),
    "mixtral": ("Mixtral", {**DECODER, "num_local_experts": 4}),
    "bloom": ("Bloom", {**COMMON, "n_head": 4}),
}
"""By name: what the classes of transformers begin with, and the sizes."""
BIAS = 0.5
"""Large enough that a dropped bias is no rounding."""


def published(name: str, *, layers: int = 2, dtype: str = "float16", seed: int = 1) -> Any:
    """The network, in float32, with weights from the seed that `dtype` holds exactly.

    Raises `SettingsError` for a name without a network here, and where transformers is not installed.
    """
    if name not in NETWORKS:
        raise SettingsError(f"network {name!r} is unknown; choose one of {', '.join(NETWORKS)}")
    try:
        import transformers
    except ImportError:
        raise SettingsError(
            "the published networks need transformers; install it: pip install transformers"
        ) from None
    kind, sizes = NETWORKS[name]
    depth = "n_layer" if name == "bloom" else "num_hidden_layers"
    config = getattr(transformers, f"{kind}Config")(**sizes, **{depth: layers})
    with torch.random.fork_rng(devices=[]):
        module = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    fill(module, DTYPES[dtype], seed, BIAS)
    return module
