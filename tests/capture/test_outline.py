"""A dump outlines its model: what a comparison needs to compute modules again without the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.capture.torch_hooks import model as module
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.modules import ModuleDump
from acc_pytest.dumps.torch_model import Outline, outline_of
from acc_pytest.errors import DumpConfigError
from acc_pytest.tensors.projection import projection


class Mixed(nn.Module):
    """A large linear layer, a tied head, a norm, a buffer, a slender weight, and one of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.up = nn.Linear(32, 48)
        self.gate = nn.Linear(48, 4, bias=False)
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(32, 40, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("frequencies", torch.arange(8.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        return self.gate(self.norm(self.up(hidden))).sum() + self.head(hidden)


def dumped(model: nn.Module, path: Path, **options: Any) -> Path:
    with torch.no_grad(), register_hook(model, DumpConfig(path, **options)) as handle:
        model(torch.arange(6)[None])
    return handle.dump_path


def outlined(model: nn.Module, path: Path) -> Outline:
    found = outline_of(dumped(model, path))
    assert found is not None
    return found


def test_small_tensors_are_whole_and_linear_layers_projected(tmp_path: Path) -> None:
    mixed = Mixed()
    found = outlined(mixed, tmp_path)
    assert found.weights.keys() == {
        "root.up.bias",
        "root.gate.weight",
        "root.norm.weight",
        "root.norm.bias",
        "root.frequencies",
    }
    assert found.outputs == {"root.up": 48, "root.gate": 4, "root.head": 40}
    assert found.projections.keys() == found.outputs.keys()
    assert found.numbers == {"root.embed": {"norm_type": 2.0}, "root.norm": {"eps": 1e-05}}
    assert torch.equal(found.weights["root.gate.weight"].open(), mixed.gate.weight.detach())
    for name, linear in (("root.up", mixed.up), ("root.head", mixed.head)):
        assert torch.equal(found.projections[name].open(), projection(linear.weight))
    assert not found.model
    assert not found.config


class Reading(nn.Module):
    """The code of `reads` multiplies by the weight of a layer that it never calls; `idle` does not run."""

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.called, self.read = nn.Linear(32, 48), nn.Linear(48, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.called(x) @ self.read.weight.T

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.reads, self.idle = nn.Embedding(40, 32), self.Reads(), self.Reads()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.reads(self.embed(ids))
        return result


def test_a_weight_that_another_module_reads_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Reading()
    found = outlined(model, tmp_path / "whole")
    assert [name for name in found.weights if name.endswith("weight")] == ["root.reads.read.weight"]
    assert torch.equal(found.weights["root.reads.read.weight"].open(), model.reads.read.weight.detach())
    monkeypatch.setattr(module, "_MOST_ELEMENTS", 48 * 32 - 1)
    found = outlined(model, tmp_path / "left out")
    assert not [name for name in found.weights if name.endswith("weight")]


class Experts(nn.Module):
    """Three weights that no linear layer has, of 6,144 elements each, and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 32)
        self.up, self.down = (nn.Parameter(torch.randn(4, 48, 32)) for _ in range(2))
        self.picture = nn.Conv1d(32, 64, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = torch.einsum("eoh,bth->bto", self.up, self.table(ids))
        back: torch.Tensor = torch.einsum("eoh,bto->bht", self.down, hidden)
        return self.picture(back)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, ["root.up", "root.down", "root.picture.weight"]),
        ({"_MOST_ELEMENTS": 6143}, []),
        ({"_MOST_ELEMENTS_OF_ALL": 2 * 6144}, ["root.up", "root.down"]),
    ],
)
def test_weights_of_other_modules_are_whole_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], kept: list[str]
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(module, name, value)
    model = Experts()
    found = outlined(model, tmp_path)
    assert [name for name in found.weights if not name.endswith("bias")] == kept
    for name in kept:
        assert torch.equal(found.weights[name].open(), model.get_parameter(name.removeprefix("root.")))


def test_it_is_that_of_the_first_step_and_of_each_dump(tmp_path: Path) -> None:
    mixed = Mixed()
    with torch.no_grad(), register_hook(mixed, DumpConfig(tmp_path, range(2))) as handle:
        mixed(torch.arange(6)[None])
        mixed.norm.weight.data += 1
        mixed(torch.arange(6)[None])
        first = handle.dump_path
        handle.reset()
        mixed(torch.arange(6)[None])
        second = handle.dump_path
    for home, value in ((first, 1.0), (second, 2.0)):
        found = outline_of(home)
        assert found is not None
        assert float(found.weights["root.norm.weight"].open()[0]) == value


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    mixed = Mixed()
    homes = [dumped(mixed, tmp_path / name) for name in ("one", "other")]
    for name in ("model_outline.json", "model_outline.pt"):
        assert (homes[0] / name).read_bytes() == (homes[1] / name).read_bytes()


def test_a_dump_may_be_without_one(tmp_path: Path) -> None:
    home = dumped(Mixed(), tmp_path, outline=False)
    assert outline_of(home) is None
    assert not list(home.glob("model_outline*"))
    with pytest.raises(DumpConfigError, match="outline must be True or False, got 'yes'"):
        DumpConfig(tmp_path, outline="yes")  # type: ignore[arg-type]


def test_weights_without_values_of_their_own_are_left_out(tmp_path: Path) -> None:
    odd = nn.Sequential(nn.Embedding(40, 32), nn.Linear(32, 32))
    with torch.device("meta"):
        odd.add_module("meta", nn.Linear(32, 32))
    odd.add_module("sparse", nn.Linear(32, 32))
    odd.get_submodule("sparse").weight = nn.Parameter(torch.eye(32).to_sparse())
    odd.forward = lambda ids: odd[1](odd[0](ids))  # type: ignore[method-assign]
    found = outlined(odd, tmp_path)
    assert found.outputs == {"root.1": 32}
    assert found.weights.keys() == {"root.1.bias", "root.sparse.bias"}


def test_a_model_that_cannot_be_outlined_is_dumped_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(weight: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no memory is left")

    monkeypatch.setattr(module, "projection", refuse)
    with pytest.warns(UserWarning, match="modules are not described: RuntimeError: no memory is left"):
        home = dumped(Mixed(), tmp_path)
    assert outline_of(home) is None
    assert (home / "weights.json").exists()


def test_a_model_of_transformers_is_known_by_class_and_configuration(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=40
    )
    home = dumped(transformers.LlamaForCausalLM(config), tmp_path)
    dump = open_dump(str(tmp_path))
    assert isinstance(dump, ModuleDump)
    found = dump.outline(dump.ranks[0])
    assert found == outline_of(home)
    assert found is not None
    assert found.model == "LlamaForCausalLM"
    assert found.config["num_attention_heads"] == 2
    assert "root.model.rotary_emb.inv_freq" in found.weights
    assert json.loads((home / "model_outline.json").read_bytes())["schema"] == 1
