"""Tensors by names against other dumps: equal names, names of another vocabulary, and torch dumps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from acc_pytest import DumpConfig, compare, open_dump, register_hook
from tests.slow import slow

transformers = pytest.importorskip("transformers")
Tensors = dict[str, torch.Tensor]
IDS = torch.randint(1, 128, (1, 20), generator=torch.Generator().manual_seed(3))
FAULT = "layers.1.mlp.down_proj"
GGUF = (
    ("model.layers.", "blk."),
    ("self_attn.", "attn_"),
    ("mlp.", "ffn_"),
    ("_proj", ""),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=False,
    )  # fmt: skip
    made: torch.nn.Module = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            drawn = torch.randn_like(parameter)
            drawn = drawn * parameter.shape[1] ** -0.5 if parameter.dim() > 1 else 1 + 0.2 * drawn
            parameter.copy_(drawn.bfloat16())
    return made


def port(model: torch.nn.Module, fault: bool) -> torch.nn.Module:
    """The model in bfloat16; `fault` scales a weight."""
    mine = copy.deepcopy(model).bfloat16()
    if fault:
        with torch.no_grad():
            mine.get_parameter(f"model.{FAULT}.weight").mul_(1.5)
    return mine


def results(model: torch.nn.Module) -> Tensors:
    """What its leaves hand out, as float32: numpy has no bfloat16."""
    tensors: Tensors = {}

    def save(name: str, output: object) -> None:
        if isinstance(output, torch.Tensor):
            tensors[name] = output.detach().float()

    leaves = [(n, m) for n, m in model.named_modules() if not list(m.children()) and "rotary" not in n]
    hooks = [m.register_forward_hook(lambda _, i, o, name=n: save(name, o)) for n, m in leaves]
    with torch.no_grad():
        model(input_ids=IDS, use_cache=False)
    for hook in hooks:
        hook.remove()
    return tensors


@pytest.fixture(scope="module", params=["tensors", "register_hook"])
def golden(
    request: pytest.FixtureRequest, model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory
) -> str:
    home = tmp_path_factory.mktemp("golden")
    if request.param == "tensors":
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in results(model).items()}
        np.savez(home / "x.npz", **arrays)
    else:
        with torch.no_grad(), register_hook(model, DumpConfig(str(home))):
            model(input_ids=IDS, use_cache=False)
    return str(home)


def renamed(name: str) -> str:
    for word, other in GGUF:
        name = name.replace(word, other)
    return name


@pytest.mark.parametrize("fault", [slow(False), True])
@pytest.mark.parametrize("names", ["equal", "llama.cpp"])
def test_a_right_port_is_green_and_the_fault_the_only_root(
    golden: str, model: torch.nn.Module, tmp_path: Path, names: str, fault: bool
) -> None:
    for name, tensor in results(port(model, fault)).items():
        file = name if names == "equal" else renamed(name)
        np.save(tmp_path / f"{file}.npy", tensor.numpy())
    result = compare(golden, tmp_path)
    expected = {"equal": f"root.model.{FAULT}", "llama.cpp": "root.blk.1.ffn_down"}[names]
    assert [root.name for root in result.roots] == ([expected] if fault else [])
    assert result.verdict == ("fail" if fault else "pass")
    assert result.result.coverage == 1
    assert any("fit bfloat16" in line for line in result.notes)


@pytest.mark.parametrize("fault", [False, True])
def test_hidden_states_meet_the_layers_of_a_torch_dump(
    golden: str, model: torch.nn.Module, fault: bool
) -> None:
    if open_dump(golden).kind != "torch":
        pytest.skip("its tensors are those of leaves")
    with torch.no_grad():
        output = port(model, fault)(input_ids=IDS, use_cache=False, output_hidden_states=True)
    result = compare(golden, [state.float() for state in output.hidden_states])
    assert [root.name for root in result.roots] == (["root.model.layers.1"] if fault else [])
    assert len([row for row in result.rows if not row.alone]) == len(output.hidden_states)


def test_a_port_without_the_last_output_is_incomplete(golden: str, model: torch.nn.Module) -> None:
    tensors = {name: tensor for name, tensor in results(port(model, False)).items() if name != "lm_head"}
    result = compare(golden, tensors)
    assert (result.verdict, result.roots) == ("fail", ())
    assert "the last output of golden's model was not compared" in result.summary


@pytest.mark.parametrize("wrapper", [slow(""), "m."])
@pytest.mark.parametrize("first", [False, True])
def test_names_of_traced_operators_meet_modules_by_their_last_value(
    golden: str, model: torch.nn.Module, tmp_path: Path, wrapper: str, first: bool
) -> None:
    values: dict[str, Any] = {}
    for name, tensor in results(port(model, True)).items():
        for number, value in enumerate((0.5 * tensor, tensor)):
            values[f"__module.{wrapper}{name}/aten::mul/Multiply{f'_{number}' * bool(number)}"] = (
                value.numpy()
            )
    if first:
        logits = [name for name in values if "lm_head" in name]
        values = {name: values[name] for name in dict.fromkeys([*logits, *values])}
    np.savez(tmp_path / "mine.npz", **values)
    result = compare(golden, tmp_path / "mine.npz")
    assert [root.name for root in result.roots] == [f"root.model.{FAULT}"]


@pytest.mark.parametrize("wrong", [False, True])
def test_centred_logits_meet_golden_s_less_their_means(
    golden: str, model: torch.nn.Module, wrong: bool
) -> None:
    tensors = results(model)
    logits = tensors["lm_head"] * (1.1 if wrong else 1.0)
    tensors["lm_head"] = logits - logits.mean(-1, keepdim=True)
    result = compare(golden, tensors)
    if open_dump(golden).kind == "torch":  # elsewhere nothing says that these are logits
        assert [root.name for root in result.roots] == (["root.lm_head"] if wrong else [])
