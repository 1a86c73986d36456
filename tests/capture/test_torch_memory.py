"""Which memory a dumped tensor showed, and which module began when: evidence of what came from what."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.capture.torch_hooks.values import Storages
from acc_pytest.dumps.torch_manifest import SavedTensor, step_manifest

from .models import Layer, Stack, files


def dumped(model: nn.Module, path: Path, *inputs: torch.Tensor, **options: Any) -> Path:
    with register_hook(model, DumpConfig(path, range(len(inputs)), **options)) as handle:
        for x in inputs:
            model(x)
    return handle.dump_path


def memory(saved: SavedTensor) -> tuple[object, ...]:
    return saved.storage, saved.offset, saved.shape, saved.stride


@pytest.mark.parametrize("inference", [False, True])
def test_an_output_and_the_input_it_becomes_are_seen_in_one_memory(tmp_path: Path, inference: bool) -> None:
    with torch.inference_mode(inference):
        home = dumped(Stack(), tmp_path, torch.randn(1, 4))
    found = step_manifest(str(home / "0")).entries
    assert set(found) == {f"{name}.pth" for name in files(home)}
    norm, linear = found["root.layers.0.norm/output.pth"], found["root.layers.0.linear/input_0.pth"]
    assert memory(norm) == memory(linear)
    assert norm.storage is not None
    assert norm.crc32 == linear.crc32
    assert norm.storage != found["root.layers.0.norm/input_0.pth"].storage
    assert found["root.layers.0/output.pth"].storage == found["root.layers.1/input_0.pth"].storage


def test_a_change_in_place_is_another_version_of_one_memory(tmp_path: Path) -> None:
    found = step_manifest(str(dumped(Stack(), tmp_path, torch.randn(1, 4)) / "0")).entries
    before, after = (found[f"root.layers.0.act/{name}.pth"] for name in ("input_0", "output"))
    assert memory(before) == memory(after)
    assert (before.version, after.version) == (0, 1)


def test_in_inference_mode_nothing_is_said_of_changes_in_place(tmp_path: Path) -> None:
    with torch.inference_mode():
        found = step_manifest(str(dumped(Stack(), tmp_path, torch.randn(1, 4)) / "0")).entries
    before, after = (found[f"root.layers.0.act/{name}.pth"] for name in ("input_0", "output"))
    assert memory(before) == memory(after)
    assert before.version is after.version is None


def test_views_of_one_tensor_share_a_storage_and_have_their_own_offsets(tmp_path: Path) -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.inner(part) for part in x.chunk(2, dim=-1)], -1)

    found = step_manifest(str(dumped(Cut(), tmp_path, torch.arange(8.0)) / "0")).entries
    first, second = (found[f"root.inner{call}/input_0.pth"] for call in ("", ".call1"))
    assert first.storage == second.storage == found["root/input_0.pth"].storage
    assert (first.offset, second.offset) == (0, 4)
    assert first.numel == 4


def test_memory_that_is_used_again_has_another_number() -> None:
    storages, seen = Storages(), set()
    for _ in range(50):
        seen.add(storages.memory_of(torch.empty(1000))["storage"])
        storages.forget_dead()
    assert seen == set(range(50))
    kept = torch.empty(3)
    numbers = {storages.memory_of(view)["storage"] for view in (kept, kept[1:], kept.detach())}
    storages.forget_dead()
    assert numbers == {50} == {storages.memory_of(kept)["storage"]}


def test_nothing_is_kept_alive() -> None:
    storages = Storages()
    tensor = torch.empty(1000)
    storages.memory_of(tensor)
    (reference, _number), *_ = storages._numbers.values()
    assert not reference.expired()
    del tensor
    gc.collect()
    assert reference.expired()


def test_tensors_without_memory_of_their_own_have_no_number() -> None:
    storages = Storages()
    sparse = torch.eye(3).to_sparse()
    meta = torch.empty(3, device="meta")
    twice = torch.func.vmap(lambda x: (storages.memory_of(x), x)[1])
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
    for tensor in (sparse, meta, fake):
        assert set(storages.memory_of(tensor)) == {"version"}
    twice(torch.ones(2, 2))


def test_inputs_of_functions_are_seen_where_they_lay_before_the_call(tmp_path: Path) -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.exp(x)
            y.add_(1)
            return torch.sigmoid(y)

    found = step_manifest(str(dumped(Adds(), tmp_path, torch.ones(2), mode="api") / "0")).entries
    made, taken, changed, read = (
        found[f"root.{name}.pth"] for name in ("exp/output", "add_/input_0", "add_/output", "sigmoid/input_0")
    )
    assert memory(made) == memory(taken) == memory(changed) == memory(read)
    assert [saved.version for saved in (made, taken, changed, read)] == [0, 0, 1, 1]
    assert taken.crc32 == made.crc32 != changed.crc32 == read.crc32


def test_the_order_in_which_modules_begin_is_kept_beside_that_in_which_they_end(tmp_path: Path) -> None:
    home = dumped(Stack(layers=1), tmp_path, torch.ones(1, 4), layer_name="*.norm")
    assert step_manifest(str(home / "0")).started == (
        "root",
        "root.layers.0",
        "root.layers.0.norm",
        "root.layers.0.linear",
        "root.layers.0.act",
        "root.head",
    )


def test_repeated_calls_and_functions_have_their_place_in_that_order(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(torch.tanh(self.norm(x)))

    home = dumped(Twice(), tmp_path, torch.ones(1, 4), mode=["module", "api"])
    assert step_manifest(str(home / "0")).started == (
        *("root", "root.norm", "root.norm.layer_norm", "root.tanh"),
        *("root.norm.call1", "root.norm.layer_norm.1"),
    )


def test_the_bits_of_a_model_do_not_depend_on_being_looked_at(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Layer(4), torch.randn(3, 4, requires_grad=True)
    plain = model(x)
    (gradient,) = torch.autograd.grad(plain.square().sum(), x)
    with register_hook(model, DumpConfig(tmp_path, mode=["module", "api"])):
        hooked = model(x)
        (hooked_gradient,) = torch.autograd.grad(hooked.square().sum(), x)
    assert torch.equal(plain, hooked)
    assert torch.equal(gradient, hooked_gradient)
