"""The cache that a decode step began with, made again only where the dump has all of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan
from acc_pytest.reference.golden_model.calls import (
    KeyValue,
    ModuleCall,
    States,
    cache_argument,
    cache_for,
    continues,
    filled_cache,
    left_by,
)
from acc_pytest.reference.modules import TorchRecomputer
from acc_pytest.reference.recomputation import LOOKING, Recomputation
from acc_pytest.tensors.ref import TensorRef
from tests.e2e.replay_models import make_llama
from tests.newer import caches_have_layers, hybrid_caches_have_layers

transformers = pytest.importorskip("transformers")


class Attention(nn.Module):
    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx


def filled(kinds: Sequence[str], attending: Sequence[int], directory: Path) -> Any | None:
    """The cache of a model whose layers are of these kinds, of which the `attending` ones were dumped."""
    files = []
    for name in ("key", "value"):
        torch.save(torch.ones(1, 2, 5, 4, dtype=torch.bfloat16), directory / f"{name}.pth")
        files.append(TensorRef(str(directory / f"{name}.pth")))
    config = transformers.LlamaConfig(num_hidden_layers=len(kinds), layer_types=list(kinds))
    model: Any = SimpleNamespace(config=config)
    modules = {f"root.{number}": Attention(number) for number in attending}
    return filled_cache(model, {path: KeyValue(*files) for path in modules}, modules, torch.Tensor.float)


def test_keys_and_values_of_the_step_before_are_in_it(tmp_path: Path) -> None:
    caches_have_layers()
    cache = filled(["full_attention"] * 2, [0, 1], tmp_path)
    assert cache is not None
    assert cache.get_seq_length() == 5
    assert cache.layers[1].values.dtype == torch.float32


def test_where_layers_keep_what_was_not_dumped_there_is_none(tmp_path: Path) -> None:
    assert filled(["full_attention"] * 2, [0], tmp_path) is None


def test_a_module_writes_to_a_copy_of_its_own_layer(tmp_path: Path) -> None:
    caches_have_layers()
    cache: Any = filled(["full_attention"] * 2, [0, 1], tmp_path)
    given = cache_for(Attention(1), cache, torch.Tensor.half)
    given.update(*[torch.ones(1, 2, 1, 4, dtype=torch.float16)] * 2, 1)
    assert given.layers[1].keys.dtype == torch.float16
    assert given.get_seq_length(1) == 6
    assert cache.get_seq_length(1) == 5
    assert cache.layers[1].keys.dtype == torch.float32


IDS = torch.arange(9).reshape(1, 9) * 7 % 50
ATTENTION = "root.model.layers.{}.self_attn"
By = dict[tuple[int, str, str], Recomputation]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of a model: a prompt, two tokens more, and another prompt. `late` has no step 0."""
    caches_have_layers()
    directory = tmp_path_factory.mktemp("steps")
    for name, first, scale in (("golden", 0, 1.0), ("right", 0, 1.0), ("late", 1, 1.0), ("wrong", 0, 1.3)):
        model = make_llama()
        if name != "golden":
            model = model.to(torch.bfloat16)
        model.model.layers[1].self_attn.scaling *= scale
        config = DumpConfig(directory / name, token_range=range(first, 4))
        with torch.no_grad(), register_hook(model, config):
            past = model(IDS).past_key_values
            for step in (1, 2):
                past = model(IDS[:, step : step + 1], past_key_values=past).past_key_values
            model(IDS[:, :4])
    return directory


def recomputed(mine: Path) -> By:
    """What became of each tensor that a module of mine made: by step, path and slot."""
    pairs = plan(open_dump(str(mine.with_name("golden"))), open_dump(str(mine))).pairs
    recomputer = TorchRecomputer(open_dump(str(mine)), pairs, make_llama(), LOOKING)
    return {
        (int(pair.step), pair.mine.node, pair.mine.slot): recomputer.of_pair(number)
        for number, pair in enumerate(pairs)
        if not pair.fed
    }


def test_each_step_goes_on_from_what_the_one_before_left(steps: Path) -> None:
    found = recomputed(steps / "right")
    assert {step for step, *_ in found} == {0, 1, 2, 3}
    assert {one.outcome for one in found.values()} == {"right"}, found
    slots = {slot for step, path, slot in found if (step, path) == (2, ATTENTION.format(1))}
    assert "output[past_key_values][key]" in slots


def test_attention_that_is_wrong_is_found_in_every_step(steps: Path) -> None:
    found = recomputed(steps / "wrong")
    wrong = {where for where, one in found.items() if one.outcome == "wrong"}
    assert wrong == {(step, f"{ATTENTION.format(1)}.o_proj", "input[0]") for step in range(4)}


def test_without_the_step_before_a_cache_is_not_known(steps: Path) -> None:
    found = recomputed(steps / "late")
    unknown = {where: one.why for where, one in found.items() if not one.outcome}
    assert {step for step, *_ in unknown} == {1}
    assert (1, f"{ATTENTION.format(0)}.o_proj", "input[0]") in unknown
    said = "what the cache of root.model.layers.{} held before is not in the dump"
    assert set(unknown.values()) == {said.format(0), said.format(1)}
    assert found[1, "root.model.layers.0.mlp.down_proj", "output[0]"].outcome == "right"
    assert not [one for one in found.values() if one.outcome == "wrong"]


def make_hybrid() -> nn.Module:
    """A recurrent layer and one that attends, with weights that bfloat16 holds exactly."""
    torch.manual_seed(5)
    config = transformers.JambaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=1, mamba_d_state=4,
        mamba_dt_rank=4,
    )  # fmt: skip
    model: nn.Module = transformers.JambaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return model


@pytest.mark.parametrize("scale", [1.0, 1.1])
def test_the_states_of_a_recurrence_go_on_too(tmp_path: Path, scale: float) -> None:
    """A step that begins with a wrong state of its own is told from one that begins with golden's."""
    hybrid_caches_have_layers()
    for name in ("golden", "mine"):
        model = make_hybrid() if name == "golden" else make_hybrid().to(torch.bfloat16)
        with torch.no_grad(), register_hook(model, DumpConfig(tmp_path / name, range(2))):
            past = model(IDS, use_cache=True).past_key_values
            if name == "mine":
                past.layers[0].recurrent_states[0].mul_(scale)
            model(IDS[:, 1:2], past_key_values=past, use_cache=True)
    pairs = plan(open_dump(str(tmp_path / "golden")), open_dump(str(tmp_path / "mine"))).pairs
    recomputer = TorchRecomputer(open_dump(str(tmp_path / "mine")), pairs, make_hybrid(), LOOKING)
    found = {
        (int(pair.step), pair.mine.node.removeprefix("root.model.layers."), pair.mine.slot): one
        for number, pair in enumerate(pairs)
        if not pair.fed and (one := recomputer.of_pair(number))
    }
    state = (1, "0.mamba", "output[cache_params][recurrent_states][0]")
    assert state in found, list(found)
    wrong = {where for where, one in found.items() if one.outcome == "wrong"}
    assert wrong == ({state} if scale != 1.0 else set()), {where: found[where] for where in wrong}
    assert not [where for where, one in found.items() if not one.outcome]


def test_recurrent_layers_alone_continue_where_their_convolutions_moved_on(tmp_path: Path) -> None:
    names = iter(range(100))

    def states(*inputs: float) -> States:
        file = tmp_path / f"{next(names)}.pth"
        torch.save(torch.tensor([inputs]), file)
        return States(TensorRef(str(file)), TensorRef(str(file)))

    before = {"a": states(0.0, 1.0, 2.0)}
    assert continues(before, {"a": states(1.0, 2.0, 3.0)})
    assert not continues(before, {"a": states(5.0, 2.0, 3.0)})
    assert not continues(before, {"b": states(1.0, 2.0, 3.0)})
    assert not continues(before, {})
    assert not continues({}, before)


def test_what_a_step_left_are_the_keys_and_values_of_caches() -> None:
    key, value = TensorRef("key"), TensorRef("value")

    def left(*keys: tuple[int | str, ...]) -> list[str]:
        outputs = dict(zip(keys, (key, value)))
        return list(left_by({"root.attn": ModuleCall("root.attn", "root.attn", {}, outputs, False)}))

    assert left(("past_key_values", "key"), ("past_key_values", "value")) == ["root.attn"]
    assert left(("states", "key"), ("states", "value")) == [], "no cache"
    assert left(("past_key_values", "key")) == [], "no values"
    assert left(("cache_params", "conv_states", 0), ("cache_params", "recurrent_states", 0)) == ["root.attn"]
    assert left(("cache_params", "conv_states", 0), ("cache_params", "recurrent_states", 1)) == []
    assert left(("past_key_values", 0, "key"), ("past_key_values", 0, "value")) == []


def test_a_model_is_handed_its_cache_by_the_name_of_its_own_argument() -> None:
    class Named(nn.Module):
        def forward(self, x: Any, use_cache: bool, cache_position: Any, layer_cache: Any) -> None: ...

    class Older(nn.Module):
        def forward(self, x: Any, past_key_values: Any = None, use_cache: bool = False) -> None: ...

    assert cache_argument(Named()) == "layer_cache"
    assert cache_argument(Older()) == "past_key_values"
    assert cache_argument(nn.Linear(2, 2)) == ""
