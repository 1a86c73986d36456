"""In which order the modules of well-known architectures run, by attribute name.

`model_tree.json` lists siblings in the order the constructor registered them, which is often not the
order in which they run (a Llama layer registers attention and MLP before both norms). This table is
data only: names on one line run at the same place, earlier lines run first. Sibling groups of different
kinds (a model's, a layer's, an attention's, an MLP's) never meet, so one list serves them all.
"""

from __future__ import annotations

from collections.abc import Sequence

_PLACES: tuple[str, ...] = (
    "embed_tokens wte word_embeddings word_embedding embedding embeddings tok_embeddings embed_in embed",
    "wpe position_embeddings embed_positions pos_emb token_type_embeddings patch_embed",
    "word_embeddings_layernorm embed_layer_norm embeddings_layernorm",
    "input_layernorm ln_1 ln1 norm1 attention_norm attn_norm pre_attention_layernorm layernorm_before",
    "q_proj wq to_q query q_a_proj qkv qkv_proj query_key_value w_pack c_attn wqkv in_proj qkv_layer",
    "q_a_layernorm",
    "q_b_proj",
    "k_proj wk to_k key kv_a_proj_with_mqa",
    "kv_a_layernorm",
    "v_proj wv to_v value kv_b_proj",
    "q_norm q_layernorm query_layernorm",
    "k_norm k_layernorm key_layernorm",
    "rotary_emb rotary_pos_emb rope rotary rotary_embedding",
    "core_attention core_attn inner_attention inner_attn",
    "attention_dropout attn_dropout attn_drop",
    "self_attn self_attention attn attention linear_attn",
    "post_attention_layernorm ln_2 ln2 norm2 ffn_norm post_attention_norm layernorm_after pre_mlp_layernorm",
    "pre_feedforward_layernorm",
    "gate router",
    "gate_proj gate_up_proj gate_and_up_proj w1 dense_h_to_4h c_fc fc1 fc_in linear_fc1 up_gate_proj",
    "up_proj w3",
    "act act_fn activation activation_fn activation_func gelu gelu_impl silu",
    "w2",
    "experts",
    "shared_expert shared_experts",
    "shared_expert_gate",
    "model transformer backbone language_model layers h blocks block layer encoder decoder",
    "mlp feed_forward feedforward ffn moe block_sparse_moe",
    "down_proj dense_4h_to_h fc2 fc_out linear_fc2",
    "o_proj wo out_proj dense to_out c_proj",
    "post_feedforward_layernorm post_mlp_layernorm",
    "norm final_layernorm ln_f norm_f final_norm final_layer_norm",
    "lm_head output_layer embed_out output score classifier",
)

_PLACE = {name: place for place, names in enumerate(_PLACES) for name in names.split()}


def execution_order(names: Sequence[str]) -> list[int]:
    """Indices of `names` (relative to their parent, in registration order) in the order they run.

    `layers.3` is the fourth item of the list `layers`; items sort by value. A name the table does not
    know stays behind the sibling registered before it.
    """
    keys: list[tuple[int, int]] = []
    place = -1
    for name in names:
        first, *rest = name.split(".")
        place = _PLACE.get(first.lower(), place)
        number = rest[0] if rest else first
        # a number of more digits than an index has is a name
        keys.append((place, int(number) if number.isdecimal() and len(number) < 10 else -1))
    return sorted(range(len(names)), key=keys.__getitem__)
