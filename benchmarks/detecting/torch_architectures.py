"""The architectures of transformers that are compared torch against torch, and where in them things are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .networks import VOCABULARY

HIDDEN, INNER, HEADS = 64, 96, 4
COMMON = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_attention_heads": HEADS}
DECODER = {
    **COMMON,
    "intermediate_size": INNER,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
ROUTED = {
    **DECODER,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": INNER,
    "experts_implementation": "eager",
}


@dataclass(frozen=True)
class Piece:
    """A piece of the source of a forward, and what is written in its place; `path` is below the layer."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Architecture:
    """A network of transformers, and where in it things are; `None` or empty is what it does not have.

    `layer` is the path of a layer with its number left open; `first_norm` (the first that sees embeddings)
    and `rotary` are whole paths, all others those below a layer. `heads`, `rotation`, `gate_up` and
    `residuals` are the pieces of source that a fault changes: `{}` in the new text of `heads` stands for what
    takes the heads side by side, in that of `residuals` for the factor of the residual. `scores` is a wrong
    factor for the attribute `scaling`, or the piece that scales. `embedded` scales the embeddings, for an
    architecture that multiplies them itself, and `unscaled` names the weights that hold the scale of scores
    where nothing else does. `norms_from_one` says that norms multiply by 1 + weight, `routed` that routers
    choose experts.
    """

    name: str
    model: str
    config: Mapping[str, Any]
    depth: str = "num_hidden_layers"
    layer: str = "model.layers.{}"
    attention: str = "self_attn"
    mask: str = "attention_mask"
    heads: Piece = Piece("self_attn", "self.o_proj(attn_output)", "self.o_proj({})")
    rotation: Piece | None = Piece("self_attn", "cos, sin)", "cos, -sin)")
    scores: Piece | float = 1.0
    gate_up: Piece | None = Piece(
        "mlp",
        "self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
        "self.act_fn(self.up_proj(x)) * self.gate_proj(x)",
    )
    activation: str = "mlp.act_fn"
    other_activation: str = "gelu"
    residuals: tuple[Piece, ...] = (Piece("", "residual + ", "{} * residual + "),)
    first_norm: str = "model.layers.0.input_layernorm"
    rotary: str = "model.rotary_emb"
    implementations: tuple[str, ...] = ("eager", "sdpa")
    decodes: bool = True
    routed: bool = False
    embedded: float = 1.0
    unscaled: str = ""
    norms_from_one: bool = False

    @property
    def positions(self) -> bool:
        """Whether it is fed positions."""
        return self.name != "t5"


EXPERTS: dict[str, Any] = {
    "gate_up": Piece("mlp.experts", "gate, up = ", "up, gate = "),
    "activation": "mlp.experts.act_fn",
    "routed": True,
}
"""Of networks whose layers hold experts as one module."""

ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture("llama", "LlamaForCausalLM", DECODER),
        Architecture("qwen3", "Qwen3ForCausalLM", {**DECODER, "head_dim": 16}),
        Architecture(
            "gemma2",
            "Gemma2ForCausalLM",
            {**DECODER, "head_dim": 16, "query_pre_attn_scalar": 16},
            other_activation="silu",
            implementations=("eager",),
            embedded=HIDDEN**-0.5,
            norms_from_one=True,
        ),
        Architecture(
            "phi3",
            "Phi3ForCausalLM",
            {**DECODER, "bos_token_id": 1, "eos_token_id": 1},
            gate_up=Piece("mlp", "gate, up_states = ", "up_states, gate = "),
            activation="mlp.activation_fn",
        ),
        Architecture(
            "gpt_neox",
            "GPTNeoXForCausalLM",
            {**COMMON, "intermediate_size": INNER, "max_position_embeddings": 64},
            layer="gpt_neox.layers.{}",
            attention="attention",
            heads=Piece("attention", "self.dense(attn_output)", "self.dense({})"),
            rotation=Piece("attention", "cos, sin)", "cos, -sin)"),
            gate_up=None,
            activation="mlp.act",
            other_activation="silu",
            residuals=(Piece("", "attn_output + hidden_states", "attn_output + {} * hidden_states"),),
            first_norm="gpt_neox.layers.0.input_layernorm",
            rotary="gpt_neox.rotary_emb",
        ),
        Architecture(
            "falcon",
            "FalconForCausalLM",
            {**COMMON, "ffn_hidden_size": INNER, "max_position_embeddings": 64, "bias": True},
            layer="transformer.h.{}",
            attention="self_attention",
            heads=Piece("self_attention", "self.dense(attn_output)", "self.dense({})"),
            rotation=Piece("self_attention", "cos, sin)", "cos, -sin)"),
            scores=Piece("self_attention", "attention_scores /= math.sqrt(self.head_dim)", "pass"),
            gate_up=None,
            activation="mlp.act",
            other_activation="silu",
            residuals=(Piece("", "add(mlp_output, residual", "add(mlp_output, {} * residual"),),
            first_norm="transformer.h.0.input_layernorm",
            rotary="transformer.rotary_emb",
            implementations=("eager",),
        ),
        Architecture("mixtral", "MixtralForCausalLM", {**ROUTED, "num_local_experts": 4}, **EXPERTS),
        Architecture(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            {**ROUTED, "num_experts": 4, "head_dim": 16, "norm_topk_prob": True},
            **EXPERTS,
        ),
        Architecture(
            "deepseek_v2",
            "DeepseekV2ForCausalLM",
            {
                **ROUTED,
                "num_key_value_heads": HEADS,
                "n_routed_experts": 4,
                "n_shared_experts": 1,
                "kv_lora_rank": 32,
                "q_lora_rank": 48,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 16,
            },
            rotation=Piece("self_attn", "position_embeddings.to(", "position_embeddings.conj().to("),
            **EXPERTS,
        ),
        Architecture(
            "bert",
            "BertForMaskedLM",
            {**COMMON, "intermediate_size": INNER, "max_position_embeddings": 64},
            layer="bert.encoder.layer.{}",
            attention="attention.self",
            heads=Piece("attention.self", "return attn_output,", "return {},"),
            rotation=None,
            gate_up=None,
            activation="intermediate.intermediate_act_fn",
            other_activation="silu",
            residuals=(
                Piece("attention.output", "+ input_tensor", "+ {} * input_tensor"),
                Piece("output", "+ input_tensor", "+ {} * input_tensor"),
            ),
            first_norm="bert.embeddings.LayerNorm",
            rotary="",
            decodes=False,
        ),
        Architecture(
            "t5",
            "T5ForConditionalGeneration",
            {
                "vocab_size": VOCABULARY,
                "d_model": HIDDEN,
                "d_kv": HIDDEN // HEADS,
                "d_ff": INNER,
                "num_heads": HEADS,
                "feed_forward_proj": "gated-gelu",
            },
            depth="num_layers",
            layer="encoder.block.{}",
            attention="layer.0.SelfAttention",
            mask="mask",
            heads=Piece("layer.0.SelfAttention", "self.o(attn_output)", "self.o({})"),
            rotation=None,
            scores=(HIDDEN / HEADS) ** -0.5,
            gate_up=Piece(
                "layer.1.DenseReluDense",
                "self.act(self.wi_0(hidden_states))\n    hidden_linear = self.wi_1(hidden_states)",
                "self.act(self.wi_1(hidden_states))\n    hidden_linear = self.wi_0(hidden_states)",
            ),
            activation="layer.1.DenseReluDense.act",
            other_activation="silu",
            residuals=(
                Piece("layer.0", "hidden_states + self", "{} * hidden_states + self"),
                Piece("layer.1", "hidden_states + self", "{} * hidden_states + self"),
            ),
            first_norm="encoder.block.0.layer.0.layer_norm",
            unscaled="Attention.q.weight",
            rotary="",
            decodes=False,
        ),
    )
}
