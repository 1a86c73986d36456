"""What a model states of itself, in numbers and words: its configuration and the attributes of its modules.

    configuration_of(dump)     as its dump or a `config.json` in it has it
    settings_of(content)       a configuration by names that all families share
    SYNONYMS                   these names, and those that families and modules write instead

`rope_theta` at the top, in `rope_parameters` or as `rotary_emb_base` is one setting. So are values that a
configuration leaves out and that follow from others (`head_dim`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.texts import parsed
from ..errors import FormatError
from ..tensors.location import bytes_of, is_directory, is_file
from .base import Dump
from .modules import ModuleDump

CONFIG_FILE = "config.json"
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model", "dim"),
    "intermediate_size": ("n_inner", "ffn_hidden_size", "ffn_dim"),
    "vocab_size": ("n_vocab",),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("n_kv_heads", "n_kv_head", "num_kv_heads"),
    "head_dim": ("head_size", "kv_channels"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len", "seq_length"),
    "rms_norm_eps": (
        *("variance_epsilon", "eps", "epsilon", "norm_eps", "norm_epsilon", "layer_norm_eps"),
        *("layer_norm_epsilon", "layernorm_epsilon"),
    ),
    "hidden_act": ("hidden_activation", "activation_function", "activation"),
    "sliding_window": ("window", "window_size", "attention_window"),
    "num_experts": ("num_local_experts", "n_routed_experts", "n_experts"),
    "num_experts_per_tok": ("top_k", "topk", "moe_topk", "n_activated_experts"),
    "norm_topk_prob": ("renormalize", "normalize_topk"),
    "routed_scaling_factor": ("route_scale",),
    "n_group": ("num_expert_group", "n_expert_groups"),
    "topk_group": ("n_limited_groups",),
    "attn_logit_softcapping": ("attn_logit_softcap", "attn_softcap", "logit_cap"),
    "final_logit_softcapping": ("final_logit_softcap", "final_softcap"),
    "rope_theta": ("theta", "base", "rope_base", "rotary_base", "rotary_emb_base"),
    "partial_rotary_factor": ("rotary_pct", "rotary_percent"),
    "scaling": ("scale", "softmax_scale", "sm_scale", "attn_scale"),
    "tie_word_embeddings": ("tie_embeddings", "tie_weights"),
    "attn_implementation": ("_attn_implementation",),
    "dtype": ("torch_dtype", "params_dtype"),
}
SHARED_NAMES = {name: shared for shared, names in SYNONYMS.items() for name in (shared, *names)}
"""The shared name of each name in the table."""
NOT_COMPUTED = frozenset({"attn_implementation", "dtype", "max_position_embeddings"})
"""Settings that are worth a line, though the same numbers come of them, but for rounding and long texts."""
_PROVENANCE = re.compile(
    r"^_|^(transformers_version|architectures|model_type|use_cache|auto_map|name_or_path|return_dict|"
    r"is_decoder|is_encoder_decoder|torchscript|pruned_heads|chunk_size_feed_forward|problem_type|"
    r"pretraining_tp|finetuning_task|task_specific_params|tokenizer_class|layer_idx|max_window_layers|"
    r"use_sliding_window|sep_token_id|prefix|tf_legacy_loss|use_bfloat16|id2label|label2id)\b|"
    r"^output_|initializer|dropout|_pdrop$|(bos|eos|pad|decoder_start)_token|router_aux_loss|jitter"
)
"""Settings of where a configuration comes from, of training, and of sampling: no line is for them."""
_SAMPLING = re.compile(
    r"^(do_sample|early_stopping|num_beams?|num_beam_groups|diversity_penalty|temperature|top_k|top_p|typical_p|"
    r"repetition_penalty|length_penalty|no_repeat_ngram_size|encoder_no_repeat_ngram_size|bad_words_ids|"
    r"num_return_sequences|remove_invalid_values|exponential_decay_length_penalty|suppress_tokens|"
    r"begin_suppress_tokens|forced_\w+|max_length|min_length|cross_attention_hidden_size|"
    r"add_cross_attention|tie_encoder_decoder)$"
)
"""What transformers 4 write into every configuration; `top_k` is not that of the experts."""
_ROPES = ("rope_parameters", "rope_scaling")
_ELSEWHERE = {
    "rope_local_base_freq": "rope_theta of sliding_attention",
    "original_max_position_embeddings": "rope original_max_position_embeddings",
}
"""Parameters of rotary embeddings that stand at the top of some configurations."""
_NESTED_ALIKE = ("text_config", "llm_config", "language_config")
_SAME_WORDS = {
    "swish": "silu",
    "gelu_new": "gelu_pytorch_tanh",
    "gelu_fast": "gelu_pytorch_tanh",
    "su": "longrope",
    "mrope": "default",
}
_NONE = "none"
_DEFAULTS: Mapping[str, object] = {
    "sliding_window": _NONE,
    "attn_logit_softcapping": _NONE,
    "final_logit_softcapping": _NONE,
    "rope_type": "default",
}
"""What a configuration of transformers means that does not state it."""
_CLOSE = 1e-7
"""Relative difference of numbers that are the same, written in float32 and in float64."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, under the name that the model has for it."""

    name: str
    value: object


ModelSettings = Mapping[str, Setting]
"""The settings of a model by their shared names."""


def configuration_of(dump: Dump) -> Mapping[str, Any]:
    """The configuration of the model of a dump; empty where none is known."""
    outline = dump.outline(dump.ranks[0]) if isinstance(dump, ModuleDump) and dump.ranks else None
    if outline is not None and outline.config:
        return outline.config
    home = dump.root if is_directory(dump.root) else dump.root.parent
    try:
        return read_configuration(home / CONFIG_FILE) or {}
    except FormatError:
        return {}


def read_configuration(file: Path) -> Mapping[str, Any] | None:
    """The configuration in a file; `None` where there is no file, or that of a tool and not of a model.

    Raises `FormatError` for one that is no JSON.
    """
    if not is_file(file):
        return None
    try:
        content = parsed(bytes_of(file))
    except (OSError, ValueError) as error:
        raise FormatError(f"{file}: cannot be read: {error}; give the config.json of a model") from error
    if not isinstance(content, dict) or not ({"model_type", "architectures"} | SHARED_NAMES.keys()) & {
        *content
    }:
        return None
    return content


def settings_of(content: Mapping[str, Any]) -> ModelSettings:
    """The settings of a configuration that say what its model computes, or how."""
    published = "model_type" in content or "transformers_version" in content
    flat = {
        name: value
        for name, value in _flat(content)
        if is_of_code(name.rpartition(".")[2]) and not (published and _SAMPLING.search(name))
    }
    if content.get("use_sliding_window") is False:
        flat["sliding_window"] = None
    settings = {
        name: Setting(name, value)
        for name, value in flat.items()
        if name not in SHARED_NAMES and value is not None
    }
    settings |= by_shared_names(flat)
    heads, size = (_count(settings, name) for name in ("num_attention_heads", "hidden_size"))
    implied: dict[str, object] = dict(_DEFAULTS) if published else {}
    if heads:
        implied |= {"num_key_value_heads": heads} | ({"head_dim": size // heads} if size else {})
    settings = {name: Setting(name, value) for name, value in implied.items()} | settings
    return {name: setting for name, setting in settings.items() if not _is_idle(name, settings)}


def by_shared_names(stated: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings that the table of synonyms has, of attributes or of a configuration."""
    settings = {}
    for shared, names in SYNONYMS.items():
        name = next((name for name in (shared, *names) if stated.get(name) is not None), "")
        if name:
            settings[shared] = Setting(name, stated[name])
        elif shared in _DEFAULTS and not stated.keys().isdisjoint((shared, *names)):
            settings[shared] = Setting(shared, _DEFAULTS[shared])
    return settings


def agree(shared: str, golden: object, mine: object) -> bool:
    """Whether two values of a setting come to the same. What scores are multiplied by may divide them."""
    if isinstance(golden, str) and isinstance(mine, str):
        return _word(golden) == _word(mine)
    if isinstance(golden, (int, float)) and isinstance(mine, (int, float)):
        inverse = shared == "scaling" and math.isclose(golden * mine, 1, rel_tol=_CLOSE)
        return inverse or math.isclose(golden, mine, rel_tol=_CLOSE)
    return golden == mine


def is_of_code(name: str) -> bool:
    """Whether an attribute says what is computed, or how: not of training or where it comes from."""
    return name in SHARED_NAMES or not _PROVENANCE.search(name)


def _flat(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if name in _ROPES:
            yield from _rope(value) if isinstance(value, dict) else ()
        elif not isinstance(value, dict):
            yield _ELSEWHERE.get(name, name), value
        elif name in _NESTED_ALIKE:
            yield from _flat(value)
        elif is_of_code(name):
            yield from ((f"{name}.{inner}", setting) for inner, setting in _flat(value))


def _rope(parameters: Mapping[str, Any], kind: str = "") -> Iterator[tuple[str, Any]]:
    """The parameters of rotary embeddings, those of each kind of layers apart."""
    for name, value in parameters.items():
        if isinstance(value, dict):
            yield from _rope(value, "" if name == "full_attention" else f" of {name}")
        elif name in ("rope_theta", "partial_rotary_factor"):
            yield f"{name}{kind}", value
        else:
            yield ("rope_type" if name in ("type", "rope_type") else f"rope {name}") + kind, value


def _is_idle(name: str, settings: ModelSettings) -> bool:
    """Whether a setting is a parameter of scaled rotary embeddings in a model that scales none."""
    kind = settings.get("rope_type", Setting("", "")).value
    return name.startswith("rope ") and " of " not in name and _word(str(kind)) == "default"


def _count(settings: ModelSettings, name: str) -> int:
    value = settings[name].value if name in settings else 0
    return value if isinstance(value, int) else 0


def _word(text: str) -> str:
    plain = text.lower().removeprefix("torch.")
    return _SAME_WORDS.get(plain, plain)
