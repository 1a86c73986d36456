"""`dump_golden`: golden and its profile, and a model that is afterwards what it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, dump_golden, register_hook
from acc_pytest.base.vocabulary import NOISE_PROFILE
from acc_pytest.capture.golden import noise_copy
from acc_pytest.capture.torch_hooks import model as module
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.modules import ModuleDump
from acc_pytest.dumps.torch_model import Outline, outline_of
from acc_pytest.errors import CaptureError, DumpConfigError
from acc_pytest.noise.profile import Profile, read_profile
from acc_pytest.tensors.projection import projection
from tests.newer import computes_half


class Rotated(nn.Module):
    """Tied weights, and two buffers of which a state dict holds one."""

    table: torch.Tensor
    frequencies: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.rand(8))
        self.register_buffer("frequencies", torch.rand(8), persistent=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.norm(self.embed(ids) * self.table * self.frequencies.to(self.table.dtype))
        logits: torch.Tensor = self.head(hidden)
        return logits if mask is None else logits + mask


@pytest.fixture
def model() -> Rotated:
    torch.manual_seed(5)
    return Rotated().eval()


def decode(model: nn.Module) -> None:
    """Prompt and two greedy steps. The choices in lower precision may be others."""
    ids = torch.arange(5)[None]
    for _ in range(3):
        ids = model(ids)[:, -1:].argmax(-1)


def profile_of(golden: Path) -> Profile:
    return read_profile(str(golden / NOISE_PROFILE))


def test_the_model_is_what_it_was_and_nothing_else_is_left_on_disk(model: Rotated, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict(keep_vars=True).items()}
    golden = dump_golden(model, decode, tmp_path / "dumps", dtype=torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in model.state_dict().items()} == dict.fromkeys(
        before, torch.float32
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    hooks = [(module._forward_hooks, module._forward_pre_hooks) for module in model.modules()]
    assert not any(kept for both in hooks for kept in both)
    assert [path.name for path in (tmp_path / "dumps").iterdir()] == [golden.name]
    assert sorted(path.name for path in golden.iterdir()) == [NOISE_PROFILE, "torch_tensors"]


def test_every_tensor_of_every_step_is_in_the_profile(model: Rotated, tmp_path: Path) -> None:
    golden = dump_golden(model, decode, tmp_path, dtype=torch.bfloat16)
    files = {str(path.relative_to(golden)) for path in golden.rglob("*.pth")}
    assert set(profile_of(golden).tensors) == files
    assert {file.split("/")[2] for file in files} == {"0", "1", "2"}
    results = [
        tensor.errors for key, tensor in profile_of(golden).tensors.items() if "root.head/output" in key
    ]
    assert results[0].runs == 2, "the copies are off by something else"


def test_the_copies_are_fed_the_tokens_of_golden(model: Rotated, tmp_path: Path) -> None:
    """Whatever they choose themselves: a run over other tokens would be refused."""
    computes_half()
    number = iter(range(100))

    def astray(fed: nn.Module) -> None:
        for _ in range(2):
            fed(torch.full((1, 4), next(number) % 16))

    golden = dump_golden(model, astray, tmp_path, dtype=torch.float16)
    errors = [
        tensor.errors for key, tensor in profile_of(golden).tensors.items() if "root.head/output" in key
    ]
    assert len(errors) == 2
    assert all(0 < (each.relative or 0) < 0.01 for each in errors)


def test_calls_of_other_shapes_are_one_sentence(model: Rotated, tmp_path: Path) -> None:
    lengths = iter((4, 5, 6))

    def longer(fed: nn.Module) -> None:
        fed(torch.zeros(1, next(lengths), dtype=torch.long))

    with pytest.raises(
        CaptureError, match=r"with 0 of shape \[1, 5\] where golden had \[1, 4\]; let it call"
    ):
        dump_golden(model, longer, tmp_path, dtype=torch.half)
    assert not list(tmp_path.glob(".acc*"))


def test_a_run_given_as_a_config_is_dumped_by_it(model: Rotated, tmp_path: Path) -> None:
    config = DumpConfig(tmp_path, token_range=[1], module_list=[nn.LayerNorm], dump_weight=True)
    golden = dump_golden(model, decode, config, dtype=torch.bfloat16)
    keys = set(profile_of(golden).tensors)
    assert {key.split("/")[2] for key in keys} == {"1"}
    assert any("root.norm/output.pth" in key for key in keys)
    assert not any("root.embed/output" in key or "weights" in key for key in keys)


def test_masks_of_floats_are_not_perturbed_beyond_numbers(model: Rotated, tmp_path: Path) -> None:
    mask = torch.tensor([0.0] * 15 + [torch.finfo(torch.float32).min])

    def masked(fed: nn.Module) -> None:
        fed(torch.arange(5)[None], mask=mask)

    golden = dump_golden(model, masked, tmp_path, dtype=torch.bfloat16)
    assert not any(tensor.errors.new_nonfinite for tensor in profile_of(golden).tensors.values())


@pytest.mark.parametrize(("cast_buffers", "kept"), [(False, torch.float32), (True, torch.bfloat16)])
def test_a_copy_is_what_loading_with_a_type_gives_or_what_to_gives(
    model: Rotated, cast_buffers: bool, kept: torch.dtype
) -> None:
    copied = noise_copy(model, torch.bfloat16, cast_buffers=cast_buffers)
    assert isinstance(copied, Rotated)
    assert copied.head.weight is copied.embed.weight, "tied weights stay tied"
    assert copied.embed.weight.dtype == copied.table.dtype == torch.bfloat16
    assert copied.frequencies.dtype == kept
    assert model.frequencies.dtype == model.embed.weight.dtype == torch.float32


def test_a_model_that_cannot_be_copied_is_one_sentence_with_the_other_way(
    model: Rotated, tmp_path: Path
) -> None:
    model.lock = (number for number in range(3))  # type: ignore[assignment]
    with pytest.raises(CaptureError, match=r"cannot be copied .* `acc noise-profile GOLDEN NOISE_DUMP`"):
        dump_golden(model, decode, tmp_path, dtype=torch.bfloat16)


def test_a_type_that_is_none_of_floats_is_refused(model: Rotated, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"must be a float type such as torch\.bfloat16, got torch\.int8"):
        dump_golden(model, decode, tmp_path, dtype=torch.int8)


# A dump outlines its model: what a comparison needs to compute modules again without the weights.


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
    assert json.loads((home / "model_outline.json").read_bytes())["version"] == 1


# What the code of modules chose stands in a dump of modules, where it was not asked for functions.


class Routed(nn.Module):
    """Chooses twice with `topk`, once each with `argmax` and `max`, and calls other functions."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        first, second = shares.topk(2).indices, torch.topk(shares, 3, dim=0).values
        best, which = shares.max(-1)
        return first.sum() + second.sum() + shares.argmax(-1).sum() + (best / shares.max() + which).sum()


def dumped_choices(path: Path, **options: Any) -> ModuleDump:
    with torch.no_grad(), register_hook(nn.Sequential(Routed()), DumpConfig(path, **options)) as handle:
        handle._model(torch.randn(5, 4))
    found = open_dump(str(handle.dump_path))
    assert isinstance(found, ModuleDump)
    return found


CALLS = ["root.0.topk", "root.0.topk.1", "root.0.argmax", "root.0.max"]


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({}, CALLS),
        ({"choices": False}, []),
        ({"module_list": [nn.Linear]}, []),
        ({"module_list": [Routed]}, CALLS),
        ({"layer_name": "root.0"}, CALLS),
        ({"dump_last_logits": True}, []),
        ({"mode": ["module", "api"], "api_list": ["softmax"], "choices": False}, ["root.0.softmax"]),
    ],
)
def test_choices_of_dumped_modules_are_dumped(
    tmp_path: Path, options: dict[str, Any], calls: list[str]
) -> None:
    found = dumped_choices(tmp_path, **options)
    nodes = [node.path for node in found.steps[0].tree.walk()]
    assert sorted(set(nodes) - {"root", "root.0", "root.0.gate"}) == sorted(calls)
    assert found.choices(found.ranks[0]) == {path for path in calls if "softmax" not in path}


def test_of_a_dump_of_functions_none_is_unasked(tmp_path: Path) -> None:
    found = dumped_choices(tmp_path, mode=["module", "api"])
    assert any(node.path == "root.0.topk" for node in found.steps[0].tree.walk())
    assert not found.choices(found.ranks[0])


def test_what_was_chosen_from_and_what_are_in_it(tmp_path: Path) -> None:
    found = dumped_choices(tmp_path)
    step, rank = found.steps[0], found.ranks[0]
    node = step.tree.by_path["root.0.topk"]
    tensors = {str(slot): ref.open() for slot, ref in found.tensors(step, rank, node).items()}
    shares, values, places = (tensors[name] for name in ("input[0]", "output[0]", "output[1]"))
    assert torch.equal(shares.gather(-1, places), values)
    assert places.shape == (5, 2)
