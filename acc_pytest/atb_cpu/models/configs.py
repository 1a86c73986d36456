"""From the configuration of a Hugging Face model to a `ModelSpec`, without importing transformers.

Attributes are read under the names of transformers 4 and 5 (`rope_theta` or `rope_parameters`). What the
ATB graphs here do not compute is refused with the option's name, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import SettingsError

Sizes = dict[str, Any]
"""Keyword arguments of a `ModelSpec`."""
SWISH = ("silu", "swish")
_REQUIRED = object()


def sizes_of(config: Any, tokens: int) -> Sizes:
    """The sizes of the model that `config` describes, run over at most `tokens` tokens.

    Raises `SettingsError` for a kind of model without ATB graphs here, and for options that they lack.
    """
    kind = getattr(config, "model_type", "")
    if kind not in READERS:
        raise SettingsError(
            f"model: {kind or type(config).__name__} has no ATB graphs here; there are {', '.join(READERS)}"
        )
    return READERS[kind](config, tokens)


def _get(config: Any, *names: str, default: Any = _REQUIRED) -> Any:
    """The first of `names` that is there and not `None`."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    if default is _REQUIRED:
        raise SettingsError(f"model: its config has no {names[0]}, which a {config.model_type} needs")
    return default


def _need(config: Any, name: str, *allowed: Any) -> None:
    value = getattr(config, name, allowed[0])
    if value not in allowed:
        choices = " or ".join(map(repr, allowed))
        raise SettingsError(
            f"model: {name}={value!r} of this {config.model_type} has no ATB graph here; only {choices} has"
        )


def _rope(config: Any) -> tuple[float, float]:
    """Base of the rotation, and the part of a head that it turns."""
    parameters: Mapping[str, Any] = _get(config, "rope_parameters", "rope_scaling", default={})
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise SettingsError(
            f"model: rope_scaling of type {kind!r} has no ATB graph here; use a model with plain rotation"
        )
    base = parameters.get("rope_theta", _get(config, "rope_theta", default=10000.0))
    share = parameters.get("partial_rotary_factor", _get(config, "partial_rotary_factor", default=1.0))
    return float(base), float(share)


def _decoder(config: Any, tokens: int) -> Sizes:
    """Llama and those built like it."""
    _need(config, "hidden_act", *SWISH)
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True) and tokens > window:
        raise SettingsError(
            f"model: {tokens} tokens do not fit sliding_window={window}, which the ATB graphs here do not "
            "compute; run fewer tokens"
        )
    heads = _get(config, "num_attention_heads")
    size = _get(config, "head_dim", default=config.hidden_size // heads)
    base, share = _rope(config)
    return {
        "family": "llama",
        "models": 2,
        "layers": _get(config, "num_hidden_layers"),
        "hidden": _get(config, "hidden_size"),
        "heads": heads,
        "kv_heads": _get(config, "num_key_value_heads", default=heads),
        "head_size": size,
        "intermediate": _get(config, "intermediate_size"),
        "vocab": _get(config, "vocab_size"),
        "epsilon": _get(config, "rms_norm_eps"),
        "rope_base": base,
        "rotary_size": int(size * share),
        "tokens": tokens,
    }


def _mixture(config: Any, tokens: int) -> Sizes:
    """Mixtral: every layer chooses among experts and renormalises what it chose."""
    return {
        **_decoder(config, tokens),
        "family": "moe",
        "dense_layers": 0,
        "experts": _get(config, "num_local_experts"),
        "experts_per_token": _get(config, "num_experts_per_tok"),
    }


def _glm(config: Any, tokens: int) -> Sizes:
    """GLM-4: a part of the head is rotated, in neighbouring pairs."""
    return {**_decoder(config, tokens), "interleaved": True}


def _bloom(config: Any, tokens: int) -> Sizes:
    _need(config, "apply_residual_connection_post_layernorm", False)
    heads, hidden = _get(config, "n_head", "num_attention_heads"), _get(config, "hidden_size", "n_embed")
    return {
        "family": "bloom",
        "models": 1,
        "layers": _get(config, "n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_size": hidden // heads,
        "rotary_size": hidden // heads // 2 * 2,
        "intermediate": 4 * hidden,
        "vocab": _get(config, "vocab_size"),
        "epsilon": _get(config, "layer_norm_epsilon"),
        "tokens": tokens,
    }


def _chatglm(config: Any, tokens: int) -> Sizes:
    """ChatGLM2 and 3: half of a head is rotated, in neighbouring pairs."""
    for name, value in (
        ("rmsnorm", True),
        ("post_layer_norm", True),
        ("apply_residual_connection_post_layernorm", False),
        ("add_bias_linear", False),
        ("add_qkv_bias", True),
    ):
        _need(config, name, value)
    heads, size = _get(config, "num_attention_heads"), _get(config, "kv_channels")
    grouped = getattr(config, "multi_query_attention", False)
    return {
        "family": "chatglm",
        "models": 1,
        "layers": _get(config, "num_layers"),
        "hidden": _get(config, "hidden_size"),
        "heads": heads,
        "kv_heads": _get(config, "multi_query_group_num") if grouped else heads,
        "head_size": size,
        "rotary_size": size // 2,
        "interleaved": True,
        "rope_base": 10000.0 * _get(config, "rope_ratio", default=1.0),
        "intermediate": _get(config, "ffn_hidden_size"),
        "vocab": _get(config, "padded_vocab_size"),
        "epsilon": _get(config, "layernorm_epsilon"),
        "tokens": tokens,
    }


READERS: dict[str, Callable[[Any, int], Sizes]] = {
    "llama": _decoder,
    "mistral": _decoder,
    "qwen2": _decoder,
    "mixtral": _mixture,
    "bloom": _bloom,
    "glm": _glm,
    "glm4": _glm,
    "chatglm": _chatglm,
}
"""By `config.model_type`."""
