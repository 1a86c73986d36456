"""Architectures of transformers as configs of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

VOCABULARY = 256
FIRST = 1
"""The id of the first token of a prompt, which no other place has."""
IMAGE = 250
"""The id that stands for a piece of an image in a prompt; drawn ids are smaller."""
POSITIONS = 640
PATCH = 8
"""Pixels of a side of a patch of an image."""
EXPERTS, CHOSEN = 8, 2

Words = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How large a network is, and how much it will be fed."""

    layers: int = 2
    hidden: int = 64
    tokens: int = 16

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

    @property
    def patches(self) -> int:
        """Patches of a side of an image, which has about as many of them as tokens; an even number."""
        return max(2, 2 * round(self.tokens**0.5 / 2))


@dataclass(frozen=True)
class Architecture:
    """A network of transformers.

    `config` are the words of its config for a size, `fed` names what it is fed. `cache` is the argument by
    which a decode step gets what the steps before it left; empty without decode steps. `implementations` are
    its ways to compute attention; `routed` says that routers choose experts.
    """

    name: str
    model: str
    config: Callable[[Size], Words]
    implementations: tuple[str, ...] = ("eager", "sdpa")
    fed: str = "prompt"
    cache: str = "past_key_values"
    routed: bool = False


def _decoder(size: Size, **further: Any) -> Words:
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
        **further,
    }


def _grouped(size: Size, **further: Any) -> Words:
    return _decoder(size, num_key_value_heads=size.heads // 2, **further)


def _with_head(size: Size, **further: Any) -> Words:
    return _grouped(size, head_dim=size.head, **further)


def _renamed(names: Mapping[str, str], **further: Any) -> Callable[[Size], Words]:
    """The config of a family that has names of its own for the sizes; an empty name leaves one out."""

    def words(size: Size) -> Words:
        known = {names.get(name, name): value for name, value in _decoder(size).items()}
        return {**known, **further}

    return words


GPT = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}


def _routed(size: Size, count: str = "num_experts", **further: Any) -> Words:
    inner = {"num_experts_per_tok": CHOSEN, "moe_intermediate_size": size.inner // 2, count: EXPERTS}
    return _grouped(size, **inner, experts_implementation="eager", **further)


def _qwen2_moe(size: Size) -> Words:
    return _routed(size, shared_expert_intermediate_size=size.inner, decoder_sparse_step=1)


def _latent(size: Size) -> Words:
    """DeepSeek's: keys and values from a latent vector, a dense layer before those with experts."""
    words = _routed(size, "n_routed_experts", n_shared_experts=1, first_k_dense_replace=1)
    ranks = {"kv_lora_rank": size.hidden // 2, "q_lora_rank": size.hidden // 2}
    heads = {"qk_nope_head_dim": size.head, "qk_rope_head_dim": size.head // 2, "v_head_dim": size.head}
    return {**words, **ranks, **heads, "num_key_value_heads": size.heads, "n_group": 1, "topk_group": 1}


def _jamba(size: Size) -> Words:
    """Each second layer is attention, the others are recurrences; each second mlp has experts."""
    layers = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2}
    return {**_routed(size), **layers, "use_mamba_kernels": False, "mamba_d_state": 8}


def _jetmoe(size: Size) -> Words:
    """Attention has experts too, for queries and results."""
    experts = {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN}
    return _decoder(size, num_key_value_heads=CHOSEN, kv_channels=size.head, **experts)


def _glm4_moe(size: Size) -> Words:
    """A dense layer before those with experts, of which one is shared."""
    words = _routed(size, "n_routed_experts", n_shared_experts=1, first_k_dense_replace=1)
    return {**words, "head_dim": size.head, "n_group": 1, "topk_group": 1}


def _qwen3_next(size: Size) -> Words:
    """Layers of linear attention and of attention by turns."""
    kinds = [("linear_attention", "full_attention")[layer % 2] for layer in range(size.layers)]
    heads: Words = {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
    heads |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "head_dim": size.head}
    return _routed(size, shared_expert_intermediate_size=size.inner, layer_types=kinds, **heads)


def _mamba2(size: Size) -> Words:
    return _decoder(size, num_heads=8, head_dim=size.hidden * 2 // 8, state_size=16, n_groups=1)


def _modernbert(size: Size) -> Words:
    return _decoder(size, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2)


DISTILBERT = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
}


def _t5(size: Size) -> Words:
    return {
        "vocab_size": VOCABULARY,
        "d_model": size.hidden,
        "d_kv": size.head,
        "d_ff": size.inner,
        "num_heads": size.heads,
        "num_layers": size.layers,
        "feed_forward_proj": "gated-gelu",
        "decoder_start_token_id": 0,
    }


def _encoder_decoder(size: Size, **further: Any) -> Words:
    words: Words = {"vocab_size": VOCABULARY, "d_model": size.hidden, "max_position_embeddings": POSITIONS}
    for side in ("encoder", "decoder"):
        words |= {f"{side}_layers": size.layers, f"{side}_attention_heads": size.heads}
        words |= {f"{side}_ffn_dim": size.inner}
    ids = {"pad_token_id": 0, "bos_token_id": FIRST, "eos_token_id": 2, "decoder_start_token_id": 2}
    return {**words, **ids, **further}


def _whisper(size: Size) -> Words:
    lengths = {"max_source_positions": size.tokens, "max_target_positions": POSITIONS}
    return _encoder_decoder(
        size, num_mel_bins=16, suppress_tokens=None, begin_suppress_tokens=None, **lengths
    )


def _vision(size: Size) -> Words:
    return {
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.inner,
        "image_size": size.patches * PATCH,
        "patch_size": PATCH,
    }


def _clip(size: Size) -> Words:
    return {"text_config": _decoder(size), "vision_config": _vision(size), "projection_dim": size.hidden}


def _llava(size: Size) -> Words:
    from transformers import CLIPVisionConfig, LlamaConfig

    return {
        "vision_config": CLIPVisionConfig(**_vision(size)),
        "text_config": LlamaConfig(**_grouped(size)),
        "image_token_index": IMAGE,
    }


def _qwen2_vl(size: Size) -> Words:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": _thirds(size.head // 2)}
    vision = {
        "depth": size.layers,
        "embed_dim": size.hidden,
        "hidden_size": size.hidden,
        "num_heads": size.heads,
        "mlp_ratio": 2,
        "patch_size": PATCH,
    }
    marks = {"image_token_id": IMAGE, "vision_start_token_id": IMAGE + 1, "vision_end_token_id": IMAGE + 2}
    return {"text_config": _grouped(size, rope_parameters=rope), "vision_config": vision, **marks}


def _thirds(features: int) -> list[int]:
    """Rotary features of time, height and width, as Qwen2-VL parts them."""
    return [features - 2 * (3 * features // 8), 3 * features // 8, 3 * features // 8]


ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture("llama", "LlamaForCausalLM", _grouped),
        Architecture("mistral", "MistralForCausalLM", _grouped),
        Architecture("qwen2", "Qwen2ForCausalLM", _grouped),
        Architecture("qwen3", "Qwen3ForCausalLM", _with_head),
        Architecture("gemma", "GemmaForCausalLM", _with_head),
        Architecture("gemma2", "Gemma2ForCausalLM", _with_head, ("eager",)),
        Architecture("gemma3", "Gemma3ForCausalLM", _with_head),
        Architecture("granite", "GraniteForCausalLM", _grouped),
        Architecture("phi", "PhiForCausalLM", _grouped),
        Architecture("phi3", "Phi3ForCausalLM", _grouped),
        Architecture("starcoder2", "Starcoder2ForCausalLM", _grouped),
        Architecture("stablelm", "StableLmForCausalLM", _grouped),
        Architecture("cohere", "CohereForCausalLM", _grouped),
        Architecture("cohere2", "Cohere2ForCausalLM", _grouped),
        Architecture("olmo", "OlmoForCausalLM", _grouped),
        Architecture("olmo2", "Olmo2ForCausalLM", _grouped),
        Architecture("glm", "GlmForCausalLM", _with_head),
        Architecture("glm4", "Glm4ForCausalLM", _with_head),
        Architecture("nemotron", "NemotronForCausalLM", _with_head),
        Architecture("smollm3", "SmolLM3ForCausalLM", _grouped),
        Architecture("falcon", "FalconForCausalLM", _renamed({"intermediate_size": "ffn_hidden_size"})),
        Architecture("gpt_neox", "GPTNeoXForCausalLM", _decoder),
        Architecture(
            "opt",
            "OPTForCausalLM",
            lambda size: {**_decoder(size), "ffn_dim": size.inner, "word_embed_proj_dim": size.hidden},
        ),
        Architecture("gpt2", "GPT2LMHeadModel", _renamed(GPT)),
        Architecture("gptj", "GPTJForCausalLM", _renamed(GPT, rotary_dim=8), ("eager",)),
        Architecture("gpt_bigcode", "GPTBigCodeForCausalLM", _renamed(GPT)),
        Architecture("bloom", "BloomForCausalLM", _renamed(GPT | {"hidden_size": "hidden_size"}), ("eager",)),
        Architecture(
            "mpt",
            "MptForCausalLM",
            _renamed(
                {
                    "hidden_size": "d_model",
                    "num_hidden_layers": "n_layers",
                    "num_attention_heads": "n_heads",
                    "max_position_embeddings": "max_seq_len",
                },
                expansion_ratio=2,
            ),
            ("eager",),
        ),
        Architecture(
            "mixtral", "MixtralForCausalLM", partial(_routed, count="num_local_experts"), routed=True
        ),
        Architecture("qwen2_moe", "Qwen2MoeForCausalLM", _qwen2_moe, routed=True),
        Architecture("qwen3_moe", "Qwen3MoeForCausalLM", partial(_routed, norm_topk_prob=True), routed=True),
        Architecture("olmoe", "OlmoeForCausalLM", _routed, routed=True),
        Architecture("deepseek_v2", "DeepseekV2ForCausalLM", _latent, routed=True),
        Architecture("deepseek_v3", "DeepseekV3ForCausalLM", _latent, routed=True),
        Architecture(
            "gpt_oss",
            "GptOssForCausalLM",
            partial(_routed, count="num_local_experts"),
            ("eager",),
            routed=True,
        ),
        Architecture("jamba", "JambaForCausalLM", _jamba, routed=True),
        Architecture("mamba", "MambaForCausalLM", _decoder, ("eager",), cache="cache_params"),
        Architecture("rwkv", "RwkvForCausalLM", _decoder, ("eager",), cache="state"),
        Architecture("olmo3", "Olmo3ForCausalLM", _grouped),
        Architecture("exaone4", "Exaone4ForCausalLM", _with_head),
        Architecture("helium", "HeliumForCausalLM", _with_head),
        Architecture("ernie4_5", "Ernie4_5ForCausalLM", _with_head),
        Architecture("apertus", "ApertusForCausalLM", _grouped),
        Architecture("arcee", "ArceeForCausalLM", _with_head),
        Architecture("diffllama", "DiffLlamaForCausalLM", _grouped),
        Architecture("persimmon", "PersimmonForCausalLM", _decoder),
        Architecture(
            "granitemoe", "GraniteMoeForCausalLM", partial(_routed, count="num_local_experts"), routed=True
        ),
        Architecture("phimoe", "PhimoeForCausalLM", partial(_routed, count="num_local_experts"), routed=True),
        Architecture("jetmoe", "JetMoeForCausalLM", _jetmoe, routed=True),
        Architecture("glm4_moe", "Glm4MoeForCausalLM", _glm4_moe, routed=True),
        Architecture("qwen3_next", "Qwen3NextForCausalLM", _qwen3_next, cache="", routed=True),
        Architecture("mamba2", "Mamba2ForCausalLM", _mamba2, ("eager",), cache=""),
        Architecture("modernbert", "ModernBertForMaskedLM", _modernbert, fed="padded prompt", cache=""),
        Architecture(
            "distilbert", "DistilBertForMaskedLM", _renamed(DISTILBERT), fed="padded prompt", cache=""
        ),
        Architecture("bert", "BertForMaskedLM", _decoder, fed="padded prompt", cache=""),
        Architecture("roberta", "RobertaForMaskedLM", _decoder, fed="padded prompt", cache=""),
        Architecture("t5", "T5ForConditionalGeneration", _t5, ("eager",), "prompt and answer", ""),
        Architecture(
            "bart", "BartForConditionalGeneration", _encoder_decoder, fed="prompt and answer", cache=""
        ),
        Architecture(
            "whisper", "WhisperForConditionalGeneration", _whisper, fed="sound and answer", cache=""
        ),
        Architecture("vit", "ViTForImageClassification", _vision, fed="image", cache=""),
        Architecture("clip", "CLIPModel", _clip, fed="image and padded prompt", cache=""),
        Architecture("llava", "LlavaForConditionalGeneration", _llava, fed="prompt with image"),
        Architecture("qwen2_vl", "Qwen2VLForConditionalGeneration", _qwen2_vl, fed="prompt with patches"),
    )
}
