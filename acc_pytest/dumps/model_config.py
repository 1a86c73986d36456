"""What a model states of itself: its configuration and attributes, by names that all families share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.texts import parsed
from ..base.vocabulary import number
from ..errors import AccError, FormatError
from ..tensors.location import bytes_of, is_directory
from .base import Dump
from .modules import ModuleDump

CONFIG_FILE = "config.json"
_SYNONYMS = {
    "num_hidden_layers": "n_layer n_layers num_layers",
    "hidden_size": "n_embd d_model dim",
    "intermediate_size": "n_inner ffn_hidden_size ffn_dim",
    "num_attention_heads": "n_head n_heads num_heads",
    "num_key_value_heads": "n_kv_heads n_kv_head num_kv_heads",
    "head_dim": "head_size kv_channels",
    "max_position_embeddings": "n_positions n_ctx max_seq_len seq_length",
    "rms_norm_eps": "variance_epsilon eps epsilon norm_eps norm_epsilon layer_norm_eps layer_norm_epsilon "
    "layernorm_epsilon",
    "hidden_act": "hidden_activation activation_function activation",
    "sliding_window": "window window_size attention_window",
    "num_experts": "num_local_experts n_routed_experts n_experts",
    "num_experts_per_tok": "top_k topk moe_topk n_activated_experts",
    "norm_topk_prob": "renormalize normalize_topk",
    "routed_scaling_factor": "route_scale",
    "n_group": "num_expert_group n_expert_groups",
    "topk_group": "n_limited_groups",
    "attn_logit_softcapping": "attn_logit_softcap attn_softcap logit_cap",
    "final_logit_softcapping": "final_logit_softcap final_softcap",
    "rope_theta": "rope_parameters.rope_theta theta base rope_base rotary_base rotary_emb_base",
    "rope_type": "rope_parameters.rope_type rope_parameters.type",
    "sliding_attention.rope_theta": "rope_parameters.sliding_attention.rope_theta rope_local_base_freq",
    "rope_parameters.original_max_position_embeddings": "original_max_position_embeddings",
    "partial_rotary_factor": "rope_parameters.partial_rotary_factor rotary_pct rotary_percent",
    "scaling": "scale softmax_scale sm_scale attn_scale",
    "tie_word_embeddings": "tie_embeddings tie_weights",
    "attn_implementation": "_attn_implementation",
    "dtype": "torch_dtype params_dtype",
}
"""The names that families and modules write instead of the shared one."""
SHARED_NAMES = {name: shared for shared, names in _SYNONYMS.items() for name in (shared, *names.split())}
NOT_COMPUTED = frozenset({"attn_implementation", "dtype", "max_position_embeddings"})
"""Settings that are worth a line, though they change no more than rounding, or texts that are very long."""
_PROVENANCE = re.compile(
    r"^_|^(transformers_version|architectures|model_type|use_cache|auto_map|name_or_path|return_dict|layer_idx|"
    r"is_decoder|is_encoder_decoder|torchscript|pruned_heads|chunk_size_feed_forward|problem_type|prefix|"
    r"pretraining_tp|finetuning_task|tokenizer_class|max_window_layers|use_sliding_window|use_bfloat16|"
    r"do_sample|temperature|top_p|max_length)$|id2label|label2id|^output_|initializer|dropout|_pdrop$|"
    r"_token_id$|aux_loss|jitter"
)
"""Names of what tells of the file, of training and of sampling, which are worth no line."""
_INSIDE = {"text_config": "", "llm_config": "", "full_attention": "", "rope_scaling": "rope_parameters."}
"""What the names of settings inside of a setting begin with, where that is not its name."""
_SAME_WORDS = {"swish": "silu", "gelu_new": "gelu_pytorch_tanh", "su": "longrope", "mrope": "default"}
_ABSENT = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
_DEFAULTS = {**dict.fromkeys(_ABSENT, "none"), "rope_type": "default"}
"""What a configuration of transformers means that does not state it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, under the name that the model has for it."""

    name: str
    value: object

    def __str__(self) -> str:
        text = number(self.value) if isinstance(self.value, float) else str(self.value)
        return text if len(text) <= 60 else f"{text[:57]}..."


def configuration_of(dump: Dump) -> Mapping[str, Any]:
    """The configuration of the model of a dump; empty where none is known."""
    outline = dump.outline(dump.ranks[0]) if isinstance(dump, ModuleDump) and dump.ranks else None
    if outline is not None and outline.config:
        return outline.config
    file = (dump.root if is_directory(dump.root) else dump.root.parent) / CONFIG_FILE
    with suppress(AccError):
        return read_configuration(file)
    return {}


def read_configuration(file: Path) -> Mapping[str, Any]:
    """The configuration in a file; empty if it is of no model. Raises `FormatError` if it is no JSON."""
    try:
        content = parsed(bytes_of(file))
    except (OSError, ValueError) as error:
        raise FormatError(f"{file}: cannot be read: {error}; give the config.json of a model") from error
    names = content.keys() if isinstance(content, dict) else set()
    return content if names & {"model_type", "architectures", *SHARED_NAMES} else {}


def settings_of(content: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings of a configuration that say what its model computes, or how."""
    is_published = not {"model_type", "transformers_version"}.isdisjoint(content)
    flat = dict(_flat(content))
    if is_published:
        flat.pop("top_k", None)  # of sampling
    if flat.get("use_sliding_window") is False:
        flat["sliding_window"] = None
    settings = settings_by_name(_DEFAULTS if is_published else {}) | settings_by_name(flat)
    if "rope_type" in settings and agree("", settings["rope_type"].value, "default"):
        return {name: entry for name, entry in settings.items() if not name.startswith("rope_parameters.")}
    return settings


def settings_by_name(stated: Mapping[str, Any]) -> dict[str, Setting]:
    """Settings by their shared names; of two names for one the shared name counts."""
    settings: dict[str, Setting] = {}
    for name, value in stated.items():
        shared = SHARED_NAMES.get(name, name)
        is_of_code = name in SHARED_NAMES or not any(map(_PROVENANCE.search, name.split(".")))
        entries = value if isinstance(value, list) else [value]
        is_plain = all(isinstance(entry, (int, float, str)) for entry in entries)
        if is_plain and is_of_code and (name == shared or shared not in settings):
            settings[shared] = Setting(name, value)
    return settings


def agree(shared: str, golden: object, mine: object) -> bool:
    """Whether two values of a setting come to the same. What scores are multiplied by may divide them."""
    if isinstance(golden, str) and isinstance(mine, str):
        return _word(golden) == _word(mine)
    if isinstance(golden, (int, float)) and isinstance(mine, (int, float)):
        is_inverse = shared == "scaling" and math.isclose(golden * mine, 1, rel_tol=1e-7)
        return is_inverse or math.isclose(golden, mine, rel_tol=1e-7)  # one number in float32 and float64
    return golden == mine


def _flat(content: Mapping[str, Any], before: str = "", depth: int = 8) -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if not isinstance(value, dict):
            yield before + name, value
        elif depth:
            yield from _flat(value, before + _INSIDE.get(name, f"{name}."), depth - 1)


def _word(text: str) -> str:
    plain = text.lower().removeprefix("torch.")
    return _SAME_WORDS.get(plain, plain)
