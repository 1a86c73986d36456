"""A torch model as ATB: its sizes from `config`, its weights from `state_dict()` under the families' names.

Works on Hugging Face models of every release that has these names, and on any module that looks like
one; transformers is not needed. Weights are views of the model's own until they are rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ....errors import SettingsError
from .spec import ModelSpec

LLAMA_FORMS = ("llama", "llama-separate", "llama-int8")
"""Families that compute the same network in different graphs."""
_LAYER = r"model\.layers\.\d+\."
_DECODER = (
    r"(model\.embed_tokens|model\.norm|lm_head)\.weight",
    _LAYER + r"(input|post_attention|post_self_attn|post_mlp)_layernorm\.weight",
    _LAYER + r"self_attn\.[qkvo]_proj\.(weight|bias)",
    _LAYER + r"mlp\.(gate|up|down)_proj\.(weight|bias)",
    _LAYER + r"mlp\.gate\.weight",
    _LAYER + r"mlp\.experts\.\d+\.(gate|up|down)_proj\.weight",
)
_BLOOM = (
    r"transformer\.(word_embeddings|lm_head)\.weight|lm_head\.weight",
    r"transformer\.(word_embeddings_layernorm|ln_f)\.(weight|bias)",
    r"transformer\.h\.\d+\.(input_layernorm|post_attention_layernorm)\.(weight|bias)",
    r"transformer\.h\.\d+\.self_attention\.(query_key_value|dense)\.(weight|bias)",
    r"transformer\.h\.\d+\.mlp\.dense_(h_to_4h|4h_to_h)\.(weight|bias)",
)
_CHATGLM = (
    r"transformer\.(embedding\.word_embeddings|output_layer|encoder\.final_layernorm)\.weight",
    r"transformer\.encoder\.layers\.\d+\.(input_layernorm|post_attention_layernorm)\.weight",
    r"transformer\.encoder\.layers\.\d+\.self_attention\.query_key_value\.(weight|bias)",
    r"transformer\.encoder\.layers\.\d+\.self_attention\.dense\.weight",
    r"transformer\.encoder\.layers\.\d+\.mlp\.dense_(h_to_4h|4h_to_h)\.weight",
)
_NAMES = {"bloom": _BLOOM, "chatglm": _CHATGLM}
_TABLES = re.compile(r"(^|\.)(inv_freq|rotary_pos_emb\..*|attn\.bias|masked_bias)$")
"""Buffers that hold no parameter."""
_TIED = {"lm_head.weight": ("model.embed_tokens.weight", "transformer.word_embeddings.weight")}


def read_model(
    model: Any, *, ranks: int, dtype: str, tokens: int, family: str | None = None, models: int | None = None
) -> tuple[ModelSpec, dict[str, torch.Tensor]]:
    """Sizes and weights of `model` for `ranks` ranks.

    `family` chooses another graph of the same network (`llama-separate`), `models` 1 a single model for
    prefill and decode with a contiguous cache; by default both are what the model's port usually has.
    Raises `SettingsError` for a model, an option or a weight that has no place in the graphs.
    """
    config = getattr(model, "config", None)
    if config is None:
        raise SettingsError(
            f"model: {type(model).__name__} has no config; give the sizes with "
            "LanguageModel(ModelSpec(...), model.state_dict(), runtime)"
        )
    weights = {name: tensor for name, tensor in model.state_dict().items() if not _TABLES.search(name)}
    if isinstance(config, ModelSpec):
        spec = replace(config, ranks=ranks, dtype=dtype, tokens=tokens)
    else:
        sizes = sizes_of(config, tokens)
        # Packed and older names as the families know them; parts of packs are views.
        named: dict[str, torch.Tensor] = {}
        for full, tensor in weights.items():
            name = full.replace(".block_sparse_moe.", ".mlp.")
            name = re.sub(r"(\.experts\.\d+\.)w([123])\.", lambda m: m[1] + _MIXTRAL[m[2]] + "_proj.", name)
            base, _, kind = name.partition(".gate_up_proj")
            if kind or name.endswith(".gate_up_proj"):
                for half, block in zip(("gate", "up"), tensor.chunk(2, -2)):
                    _unpack(named, base, half, kind, block)
            elif name.endswith(".experts.down_proj"):
                _unpack(named, name.removesuffix(".down_proj"), "down", "", tensor)
            else:
                named[name] = tensor
        for tied, sources in _TIED.items():
            for source in sources:
                if source in named:
                    named.setdefault(tied, named[source])
        weights = named
        spec = ModelSpec(**{**sizes, **_from_weights(sizes, weights)}, ranks=ranks, dtype=dtype)
    if family is not None:
        if family != spec.family and not {family, spec.family} <= set(LLAMA_FORMS):
            raise SettingsError(f"model: family={family!r} cannot run the weights of a {spec.family}")
        spec = replace(spec, family=family)
    spec = spec if models is None else replace(spec, models=models)
    _check(spec, weights)
    return spec, weights


def _from_weights(sizes: Sizes, weights: dict[str, torch.Tensor]) -> Sizes:
    """Sizes that the weights tell: the linears with a bias, for which configurations have many names."""
    if sizes["family"] in _NAMES:
        return {}
    first = "model.layers.0."
    return {
        "qkv_bias": first + "self_attn.q_proj.bias" in weights,
        "output_bias": first + "self_attn.o_proj.bias" in weights,
        "mlp_bias": first + "mlp.down_proj.bias" in weights,
        "sandwich": first + "post_mlp_layernorm.weight" in weights,
    }


_MIXTRAL = {"1": "gate", "2": "down", "3": "up"}


def _unpack(named: dict[str, torch.Tensor], base: str, half: str, kind: str, block: torch.Tensor) -> None:
    """One matrix, or one for each expert."""
    if block.ndim == 3:
        for expert, matrix in enumerate(block):
            named[f"{base}.{expert}.{half}_proj.weight"] = matrix
    else:
        named[f"{base}.{half}_proj{kind}"] = block


def _check(spec: ModelSpec, weights: dict[str, torch.Tensor]) -> None:
    """Every weight has a place. (A missing one is named by the family that looks for it.)"""
    patterns = re.compile("|".join(_NAMES.get(spec.family, _DECODER)))
    for name in weights:
        if not patterns.fullmatch(name):
            raise SettingsError(f"model: weight {name} has no place in the ATB graphs of a {spec.family}")


# From the configuration of a Hugging Face model to a `ModelSpec`, without importing transformers.
#
# Attributes are read under the names of transformers 4 and 5 (`rope_theta` or `rope_parameters`). What the
# ATB graphs here do not compute is refused with the option's name, never ignored.


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
