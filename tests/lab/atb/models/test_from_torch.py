"""A model of transformers and the ATB graphs built from it are the same network."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from acc_pytest.errors import SettingsError
from acc_pytest.lab.atb import LanguageModel, ModelSpec, NoProbe, Probe, Runtime

from . import golden
from .golden import GOLDEN, check, reference, runtime
from .stand_in import Config, Module


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", list(GOLDEN))
def test_prefill_and_decode_give_the_goldens_logits(name: str, dtype: str, ranks: int) -> None:
    mine = LanguageModel.from_torch(GOLDEN[name](), runtime(ranks), dtype=dtype, tokens=16)
    check(mine, *reference(name))


@pytest.mark.parametrize(
    ("name", "options", "ranks"),
    [
        ("qwen2", {"family": "llama-separate"}, 1),
        ("qwen2", {"family": "llama-separate"}, 2),
        ("llama-biases", {"family": "llama-separate"}, 2),
        ("llama", {"models": 1}, 1),
        ("llama", {"models": 1}, 2),
        ("llama", {}, 8),
        ("llama-gqa", {}, 4),
    ],
)
def test_other_graphs_of_a_network_compute_the_same(name: str, options: dict[str, Any], ranks: int) -> None:
    mine = LanguageModel.from_torch(GOLDEN[name](), runtime(ranks), dtype="float32", **options)
    check(mine, *reference(name))


def test_a_bound_sees_what_float16_would_hide() -> None:
    """The float32 bound is far below what one wrong constant does; epsilon is the smallest there is."""
    wrong = golden.llama(rms_norm_eps=1e-3)
    mine = LanguageModel.from_torch(wrong, runtime(), dtype="float32")
    with pytest.raises(AssertionError, match="allowed"):
        check(mine, *reference("llama"))


def test_a_vocabulary_that_does_not_split_is_on_every_rank() -> None:
    model = golden.llama(vocab_size=127)
    ids = torch.tensor([golden.PROMPT])
    with torch.no_grad():
        wanted = model(ids).logits[0, -1].double()
    check(LanguageModel.from_torch(model, runtime(2), dtype="float32"), [golden.PROMPT], [wanted])


def test_ranks_share_the_memory_of_what_they_do_not_split() -> None:
    seen: list[dict[str, int]] = []

    class Addresses(NoProbe):
        def __init__(self) -> None:
            self.held: dict[str, int] = {}
            seen.append(self.held)

        def executed(self, count: int, execution: Any) -> None:
            if execution.operation.kind == "RmsNormOperation":
                self.held[execution.name] = execution.before[1].untyped_storage().data_ptr()

    probes: list[Probe] = [Addresses(), Addresses()]
    model = LanguageModel.from_torch(golden.llama(), Runtime(probes))
    model.step([1, 2])
    model.step([3])
    first, second = seen
    assert first == second
    assert first["RmsNormOperation_2_0_0_0_0"] == first["RmsNormOperation_8_0_0_0_0"]


def test_weights_that_have_mines_dtype_are_not_copied() -> None:
    held: dict[str, int] = {}

    class Addresses(NoProbe):
        def executed(self, count: int, execution: Any) -> None:
            if execution.operation.kind in ("GatherOperation", "LinearOperation"):
                held[execution.name] = execution.before[
                    execution.operation.kind == "LinearOperation"
                ].data_ptr()

    model = copy.deepcopy(golden.llama()).to(torch.bfloat16)
    LanguageModel.from_torch(model, Runtime([Addresses()]), dtype="bfloat16", family="llama-separate").step(
        [1]
    )
    assert held["GatherOperation_0_0"] == model.model.embed_tokens.weight.data_ptr()
    assert held["LinearOperation_5_1_0"] == model.lm_head.weight.data_ptr()
    for index in range(2):
        attention = model.model.layers[index].self_attn
        assert held[f"LinearOperation_{2 + index}_0_1_0"] == attention.q_proj.weight.data_ptr()


def test_the_spec_says_what_the_config_says() -> None:
    mine = LanguageModel.from_torch(golden.llama(num_key_value_heads=2, head_dim=16), runtime(), tokens=20)
    assert mine.spec == ModelSpec(
        hidden=64,
        heads=8,
        kv_heads=2,
        head_size=16,
        rotary_size=16,
        intermediate=96,
        rope_base=5000.0,
        tokens=20,
    )


def test_the_names_of_transformers_4_are_read_too() -> None:
    model = golden.llama()
    config = Config(model.config, rope_parameters=None, rope_scaling=None, rope_theta=5000.0)
    weights = {**model.state_dict(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    check(LanguageModel.from_torch(Module(config, weights), runtime(), dtype="float32"), *reference("llama"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "gpt2"}, "gpt2 has no ATB graphs here; there are llama, mistral"),
        ({"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, "rope_scaling of type 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_scaling of type 'llama3'"),
        ({"hidden_act": "relu"}, "hidden_act='relu' of this llama"),
        ({"sliding_window": 32}, "64 tokens do not fit sliding_window=32"),
        ({"rms_norm_eps": None}, "no rms_norm_eps"),
        ({"num_hidden_layers": 3}, "weight model.layers.2.input_layernorm.weight is missing"),
    ],
)
def test_what_the_graphs_do_not_compute_is_refused(changed: dict[str, Any], message: str) -> None:
    model = golden.llama()
    with pytest.raises(SettingsError, match=message):
        LanguageModel.from_torch(Module(Config(model.config, **changed), model.state_dict()), runtime())


def test_a_weight_without_a_place_is_refused() -> None:
    model = golden.llama()
    weights = {**model.state_dict(), "model.layers.0.self_attn.q_norm.weight": torch.ones(8)}
    with pytest.raises(SettingsError, match=r"weight model\.layers\.0\.self_attn\.q_norm\.weight has no"):
        LanguageModel.from_torch(Module(model.config, weights), runtime())


def test_a_module_without_config_is_told_how_to_go_on() -> None:
    with pytest.raises(SettingsError, match=r"Linear has no config; give the sizes with LanguageModel"):
        LanguageModel.from_torch(torch.nn.Linear(2, 2), runtime())


def test_a_family_of_another_network_is_refused() -> None:
    with pytest.raises(SettingsError, match="family='bloom' cannot run the weights of a llama"):
        LanguageModel.from_torch(golden.llama(), runtime(), family="bloom")


@pytest.mark.parametrize(
    ("ranks", "message"),
    [(3, "heads=8 does not split over 3 ranks"), (16, "heads=8 does not split over 16 ranks")],
)
def test_heads_that_do_not_split_are_refused(ranks: int, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LanguageModel.from_torch(golden.llama(), runtime(ranks))


def test_more_ids_than_the_cache_holds_are_refused() -> None:
    mine = LanguageModel.from_torch(golden.llama(), runtime(), tokens=16)
    mine.step([1] * 15)
    with pytest.raises(SettingsError, match="2 ids after 15 do not fit its cache of 16 tokens"):
        mine.step([1, 2])
