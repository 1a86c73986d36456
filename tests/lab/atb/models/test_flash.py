"""Bloom and ChatGLM2: one model with a contiguous cache, as the ports of 2024 are, over ranks too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from acc_pytest.errors import SettingsError
from acc_pytest.lab.atb import LanguageModel
from acc_pytest.lab.atb.models.flash import slopes

from . import golden
from .golden import check, reference, runtime, transformers
from .stand_in import Config, Module


def chatglm(**changed: Any) -> Module:
    """The weights of GLM under the names of ChatGLM2, which computes the same."""
    held = golden.glm().state_dict()
    model = {
        "transformer.embedding.word_embeddings.weight": held["model.embed_tokens.weight"],
        "transformer.encoder.final_layernorm.weight": held["model.norm.weight"],
        "transformer.output_layer.weight": held["lm_head.weight"],
        "transformer.rotary_pos_emb.inv_freq": torch.ones(4),
    }
    for layer in range(2):
        old, new = f"model.layers.{layer}.", f"transformer.encoder.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            model[f"{new}{norm}.weight"] = held[f"{old}{norm}.weight"]
        for kind in ("weight", "bias"):
            parts = [held[f"{old}self_attn.{n}_proj.{kind}"] for n in "qkv"]
            model[f"{new}self_attention.query_key_value.{kind}"] = torch.cat(parts)
        model[f"{new}self_attention.dense.weight"] = held[f"{old}self_attn.o_proj.weight"]
        model[f"{new}mlp.dense_h_to_4h.weight"] = held[f"{old}mlp.gate_up_proj.weight"]
        model[f"{new}mlp.dense_4h_to_h.weight"] = held[f"{old}mlp.down_proj.weight"]
    config = {
        "model_type": "chatglm",
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "kv_channels": 16,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "ffn_hidden_size": 96,
        "padded_vocab_size": 128,
        "layernorm_epsilon": golden.glm().config.rms_norm_eps,
        "add_qkv_bias": True,
        "add_bias_linear": False,
        **changed,
    }
    return Module(Config(**config), model)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_chatglm_names_give_the_logits_of_glm(dtype: str, ranks: int) -> None:
    check(LanguageModel.from_torch(chatglm(), runtime(ranks), dtype=dtype), *reference("glm"))


@pytest.mark.parametrize("options", [{"models": 2}, {"tokens": 200}])
def test_bloom_in_two_models_or_with_a_long_cache_computes_the_same(options: dict[str, Any]) -> None:
    mine = LanguageModel.from_torch(golden.bloom(), runtime(2), dtype="float32", **options)
    check(mine, *reference("bloom"))


def test_a_vocabulary_that_does_not_split_is_on_every_rank() -> None:
    model = transformers.BloomForCausalLM(
        transformers.BloomConfig(hidden_size=64, n_layer=1, n_head=4, vocab_size=127)
    )
    model = golden.seeded(model)
    with torch.no_grad():
        wanted = model(torch.tensor([golden.PROMPT])).logits[0, -1].double()
    mine = LanguageModel.from_torch(model, runtime(4), dtype="float32")
    check(mine, [golden.PROMPT], [wanted])


@pytest.mark.parametrize("heads", [1, 2, 5, 8, 14, 16, 112])
def test_slopes_are_those_of_the_published_models(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    alibi = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
    torch.testing.assert_close(slopes(heads), alibi[:, 0, 1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rmsnorm": False}, "rmsnorm=False of this chatglm has no ATB graph"),
        ({"add_bias_linear": True}, "add_bias_linear=True"),
        ({"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm=True"),
    ],
)
def test_options_of_chatglm_without_a_graph_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LanguageModel.from_torch(chatglm(**changed), runtime())


def test_bloom_with_the_residual_after_the_norm_is_refused() -> None:
    model = golden.bloom()
    config = Config(model.config, apply_residual_connection_post_layernorm=True)
    with pytest.raises(SettingsError, match="apply_residual_connection_post_layernorm=True of this bloom"):
        LanguageModel.from_torch(Module(config, model.state_dict()), runtime())
