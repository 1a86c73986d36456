"""Attributes before numbers: settings by shared names, differences of models and of their modules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.model_config import Setting, settings_of
from acc_pytest.mapping.attributes import Description, differences
from acc_pytest.mapping.planner import plan

LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "num_attention_heads": 8, "hidden_act": "silu"}
YARN = {"rope_scaling": {"type": "yarn", "factor": 4}}
GEMMA = {
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window": 1024,
}
GEMMA_5 = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "sliding_window": 1024,
}


def sentences(golden: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """The sentences on two configurations."""
    different = differences(Description(settings_of(golden)), Description(settings_of(mine)), ())
    return [str(difference.sentence) for difference in different]


@pytest.mark.parametrize(
    ("golden", "mine"),
    [
        ({"n_head": 8}, {"num_attention_heads": 8}),
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 500000, "rope_type": "default"}}),
        ({"rotary_emb_base": 10000}, {"rope_theta": 1e4}),
        (YARN, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}),
        ({"rope_scaling": {"type": "su"}}, {"rope_scaling": {"rope_type": "longrope"}}),
        ({"rope_scaling": {"type": "mrope", "factor": 2}}, {"rope_scaling": {"type": "default"}}),
        (GEMMA, GEMMA_5),
        ({"torch_dtype": "bfloat16"}, {"dtype": "torch.bfloat16"}),
        ({"activation_function": "gelu_new"}, {"hidden_act": "gelu_pytorch_tanh"}),
        ({"text_config": {"hidden_size": 64}}, {"n_embd": 64}),
        ({**LLAMA, "sliding_window": 4096, "use_sliding_window": False}, {**LLAMA, "sliding_window": None}),
        ({"model_type": "qwen3_moe", "top_k": 50}, {"num_experts_per_tok": 8}),
        ({"rms_norm_eps": 1e-5}, {"layer_norm_epsilon": torch.tensor(1e-5).item()}),
        ({"_name_or_path": "a", "transformers_version": "4", "use_cache": True}, {"use_cache": False}),
        ({"attention_dropout": 0.1, "bos_token_id": 1}, {"attention_dropout": 0.0, "bos_token_id": 2}),
        (YARN, {"rms_norm_eps": 1e-5}),
        ({"id2label": {"0": "a"}, "quantization_config": None}, {"id2label": {"0": "b"}}),
    ],
)  # fmt: skip
def test_what_is_the_same_or_on_one_side_only_is_no_difference(
    golden: dict[str, Any], mine: dict[str, Any]
) -> None:
    assert not sentences(golden, mine)
    assert not sentences(mine, golden)


@pytest.mark.parametrize(
    ("golden", "mine", "sentence"),
    [
        ({"rms_norm_eps": 1e-5}, {"rms_norm_eps": 1e-6},
         "rms_norm_eps 1e-05 in golden, 1e-06 in mine (computed)"),
        ({"rope_theta": 1e4}, {"rope_parameters": {"rope_theta": 5e5}},
         "rope_theta 10000 in golden, rope_parameters.rope_theta 500000 in mine (computed)"),
        (YARN, LLAMA,
         "rope_parameters.type yarn in golden, rope_type default in mine (computed)"),
        ({**LLAMA, "sliding_window": 4096}, LLAMA, "sliding_window 4096 in golden, none in mine (computed)"),
        (GEMMA, {**GEMMA, "rope_local_base_freq": 1e5},
         "rope_local_base_freq 10000 in golden, 100000 in mine (computed)"),
        ({"norm_topk_prob": True}, {"norm_topk_prob": False},
         "norm_topk_prob True in golden, False in mine (computed)"),
        ({"top_k": 2}, {"num_experts_per_tok": 4},
         "top_k 2 in golden, num_experts_per_tok 4 in mine (computed)"),
        ({"dtype": "float32"}, {"torch_dtype": "bfloat16"},
         "dtype float32 in golden, torch_dtype bfloat16 in mine (not computed)"),
        ({"layer_types": ["full_attention"] * 40}, {"layer_types": ["sliding_attention"] * 40},
         "layer_types ['full_attention', 'full_attention', 'full_attention', 'f... in golden, "
         "['sliding_attention', 'sliding_attention', 'sliding_atten... in mine (computed)"),
        ({"vision_config": {"hidden_size": 8}}, {"vision_config": {"hidden_size": 16}},
         "vision_config.hidden_size 8 in golden, 16 in mine (computed)"),
    ],
)  # fmt: skip
def test_a_difference_is_one_sentence(golden: dict[str, Any], mine: dict[str, Any], sentence: str) -> None:
    assert sentences(golden, mine) == [sentence]


def test_a_configuration_of_any_depth_is_read() -> None:
    nested: dict[str, Any] = {"eps": 1e-5}
    for _ in range(500):
        nested = {"text_config": nested, "table": [[1]]}
    assert not sentences(nested, {"eps": 1e-6})


def test_computed_differences_come_first() -> None:
    golden = {"attn_implementation": "sdpa", "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    mine = {"attn_implementation": "eager", "max_position_embeddings": 128, "rms_norm_eps": 1e-6}
    assert [text.split()[0] for text in sentences(golden, mine)] == [
        *("rms_norm_eps", "attn_implementation", "max_position_embeddings")
    ]


def modules_of(**attributes: float) -> dict[str, dict[str, Setting]]:
    """Four layers, of which all but the first have these attributes."""
    settings = {shared: Setting(shared, value) for shared, value in attributes.items()}
    return {f"root.layers.{n}.norm": settings if n else {} for n in range(4)} | {"root.norm": settings}


def test_what_layers_have_alike_is_one_difference_and_a_scale_may_divide() -> None:
    golden, mine = modules_of(rms_norm_eps=1e-5, scaling=0.25), modules_of(rms_norm_eps=1e-3, scaling=4.0)
    different = differences(Description({}, golden), Description({}, mine), [(name, name) for name in golden])
    assert [entry.cells[0] for entry in different] == [
        "norm of layers 1-3: rms_norm_eps",
        "norm: rms_norm_eps",
    ]
    config = (
        Description(settings_of({"rms_norm_eps": 1e-5}), golden),
        Description(settings_of({"eps": 1e-3}), mine),
    )
    assert [entry.cells[0] for entry in differences(*config, [(name, name) for name in golden])] == [
        "rms_norm_eps"
    ]


def test_what_all_modules_of_a_port_agree_on_is_held_against_goldens_configuration() -> None:
    golden = Description(settings_of({"rope_theta": 5e5, "rms_norm_eps": 1e-6, "num_experts_per_tok": 8}))
    rotary = {"rope_theta": Setting("base", 10000.0), "rms_norm_eps": Setting("eps", 1.0)}
    gates = {f"root.gates.{n}": {"num_experts_per_tok": Setting("top_k", n)} for n in (2, 4)}
    [entry] = differences(golden, Description({}, {"root.rotary": rotary, **gates}), ())
    assert entry.sentence == "rope_theta 500000 in golden, base 10000 in mine (computed)"


# Two dumps of register_hook.


class Norm(nn.Module):
    """A norm whose names and operations are its own."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.gain, self.eps = nn.Parameter(weight.detach().clone()), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


class Router(nn.Module):
    """A router of two of four experts."""

    def __init__(self, top_k: int, base: float) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4, bias=False)
        self.top_k = top_k
        self.rope_base = base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x)
        return torch.where(scores >= scores.topk(self.top_k).values[..., -1:], scores, 0.0)


class Port(nn.Module):
    """A model with a configuration of its own class."""

    def __init__(
        self, *, eps: float = 1e-5, top_k: int = 2, names: tuple[str, str] = ("norm", "router")
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(norm_eps=1e-5, top_k=top_k, table=[object()], path=Path("x"))
        self.names = names
        for name, module in zip(names, (Norm(torch.ones(8), eps), Router(top_k, 1e4))):
            self.add_module(name, module)
        self.register_buffer("steps", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = self.get_submodule(name)(x)
        return x


Dumped = Callable[..., Path]


@pytest.fixture
def dumped(tmp_path: Path) -> Dumped:
    """The dump of a model."""

    def dump(name: str, model: nn.Module, inputs: torch.Tensor | None = None) -> Path:
        x = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(1)) if inputs is None else inputs
        with torch.no_grad(), register_hook(model.eval(), DumpConfig(tmp_path, run_name=name)):
            model(x)
        return tmp_path / name

    return dump


def notes(golden: Path, mine: Path) -> list[str]:
    """The notes on attributes of the plan of two dumps."""
    mapped = plan(open_dump(str(golden)), open_dump(str(mine))).notes
    return [str(note) for note in mapped if "in golden" in note or "more differences" in note]


def test_attributes_of_modules_configurations_and_buffers_are_told(dumped: Dumped) -> None:
    mine = Port(eps=1e-4, top_k=3)
    mine.steps = mine.steps.bfloat16()
    assert notes(dumped("golden", Port()), dumped("mine", mine)) == [
        "top_k 2 in golden, 3 in mine (computed)",
        "norm: eps 1e-05 in golden, 0.0001 in mine (computed)",
        "root: dtype of steps float32 in golden, bfloat16 in mine (computed)",
    ]
    assert not notes(dumped("again", Port()), dumped("same", Port()))


def test_a_port_with_names_of_its_own_is_held_against_the_modules_that_it_is_mapped_to(
    dumped: Dumped,
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2
    )
    ids = torch.tensor([[1, 5, 9]])
    theirs = transformers.LlamaForCausalLM(config)
    port = transformers.LlamaForCausalLM(config)
    port.load_state_dict(theirs.state_dict())
    del port.model.norm.variance_epsilon
    for number, layer in enumerate(port.model.layers):
        layer.input_layernorm = Norm(
            theirs.model.layers[number].input_layernorm.weight, 1e-3 if number else 1e-6
        )
    port.model.norm = Norm(theirs.model.norm.weight, 1e-6)
    assert notes(dumped("golden", theirs, ids), dumped("mine", port, ids)) == [
        "input_layernorm of layers 1-2: variance_epsilon 1e-06 in golden, eps 0.001 in mine (computed)"
    ]


def test_a_port_that_has_the_configuration_of_transformers_states_it(dumped: Dumped) -> None:
    transformers = pytest.importorskip("transformers")
    sides = Port(), Port()
    for side, eps in zip(sides, (1e-5, 1e-6)):
        side.config = transformers.LlamaConfig(rms_norm_eps=eps)
    named = (dumped(name, side) for name, side in zip(("golden", "mine"), sides))
    assert notes(*named) == ["rms_norm_eps 1e-05 in golden, 1e-06 in mine (computed)"]


def test_at_most_six_are_told(dumped: Dumped) -> None:
    golden, mine = Port(), Port()
    for number in range(8):
        golden.config.__dict__[f"factor_{number}"] = 1
        mine.config.__dict__[f"factor_{number}"] = 2
    sentences = notes(dumped("golden", golden), dumped("mine", mine))
    assert sentences[6:] == ["and 2 more differences of attributes: acc diff-config lists them"]


def test_a_configuration_beside_the_tensors_of_a_dump_counts(dumped: Dumped) -> None:
    paths = [dumped(name, Port()) for name in ("golden", "mine")]
    for path, eps in zip(paths, (1e-5, 1e-6)):
        for outline in path.rglob("model_outline.json"):
            outline.unlink()
        (path / "config.json").write_text(json.dumps({**LLAMA, "rms_norm_eps": eps}))
    assert notes(*paths) == ["rms_norm_eps 1e-05 in golden, 1e-06 in mine (computed)"]
    (paths[1] / "config.json").write_text("{")
    assert not notes(*paths)
