"""Arguments and results of every shape: where each tensor goes, and what cannot be saved is told."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.capture.torch_hooks.values import in_cache, is_cache, snapshot
from acc_pytest.dumps import Slot, open_dump

from .models import Named, Output, Returns, entries, files, tensor

A, B, C = (torch.full((2,), float(n)) for n in range(3))


def dumped(path: Path, value: Any, *args: Any, **kwargs: Any) -> Path:
    model = Returns(value)
    with register_hook(model, DumpConfig(path)) as handle:
        model(*args, **kwargs)
    return handle.dump_path


def slots(home: Path, node: str = "root") -> list[str]:
    dump = open_dump(str(home))
    step = dump.steps[0]
    return [str(slot) for slot in dump.tensors(step, dump.ranks[0], step.tree.by_path[node])]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (A, ["output"]),
        ((A, B), ["output_0", "output_1"]),
        ((A, [B, (C, None, 3)]), ["output_0", "output_1_0", "output_1_1_0"]),
        ([A], ["output_0"]),
        (Named(A, B), ["output_0", "output_1"]),
        (torch.max(torch.eye(2), 0), ["output_0", "output_1"]),
        ({"logits": A, "odd key/": (B, C)}, ["output_logits", "output_odd_key__0", "output_odd_key__1"]),
        ({0: A, "0": B}, ["output_0", "output_0_2"]),
        ({"a": {"b": A}, "a_b": B}, ["output_a_b", "output_a_b_2"]),
        (Output(A, (B, C)), ["output_hidden_0", "output_hidden_1", "output_logits"]),
        (Output(A), ["output_logits"]),
        (None, []),
        ("text", []),
    ],
    ids=repr,
)
def test_every_container_is_walked(tmp_path: Path, value: Any, names: list[str]) -> None:
    home = dumped(tmp_path, value)
    assert files(home) == [f"root/{name}" for name in names]


def test_keyword_arguments_are_inputs_by_name(tmp_path: Path) -> None:
    home = dumped(tmp_path, A, A, 3, mask=B, states=[A, {"k": C}], none=None)
    assert [name for name in files(home) if "input" in name] == [
        "root/input_0",
        "root/input_mask",
        "root/input_states_0",
        "root/input_states_1_k",
    ]
    assert torch.equal(tensor(home, "root/input_states_1_k"), C)
    assert slots(home) == ["input[0]", "input[mask]", "input[states][0]", "input[states][1][k]", "output[0]"]


def test_names_that_read_two_ways_are_told_apart_by_the_manifest(tmp_path: Path) -> None:
    home = dumped(tmp_path, {"a": {"b": A}, "a_b": B, "hidden_0": C, "hidden": [A]})
    expected = {
        Slot("output", ("a", "b")): A,
        Slot("output", ("a_b",)): B,
        Slot("output", ("hidden", 0)): A,
        Slot("output", ("hidden_0",)): C,
    }
    dump = open_dump(str(home))
    step = dump.steps[0]
    found = dump.tensors(step, dump.ranks[0], step.tree.root)
    assert list(found) == sorted(expected)
    for slot, value in expected.items():
        assert torch.equal(found[slot].open(), value)
    (home / "0" / "manifest.json").unlink()
    assert len(slots(home)) == 4


class ToyLayer:
    def __init__(self, value: float) -> None:
        self.keys = torch.full((1, 1, 2, 2), value)
        self.values = -self.keys
        self.is_initialized = True


class ToyCache:
    """As a cache of transformers looks, 4.54 and later."""

    def __init__(self, layers: int) -> None:
        self.layers = [ToyLayer(float(n)) for n in range(layers)]


class OldCache:
    """As it looked before."""

    def __init__(self) -> None:
        self.key_cache = [A, B]
        self.value_cache = [C, C]


class BothCache:
    def __init__(self) -> None:
        self.self_attention_cache = ToyCache(1)
        self.cross_attention_cache = OldCache()


class Attention(nn.Module):
    def __init__(self, layer_idx: int | None) -> None:
        super().__init__()
        if layer_idx is not None:
            self.layer_idx = layer_idx

    def forward(self, x: torch.Tensor, past_key_values: ToyCache) -> torch.Tensor:
        if hasattr(self, "layer_idx"):
            past_key_values.layers[self.layer_idx].keys += 10
        return x


class Block(nn.Module):
    def __init__(self, layer_idx: int | None) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.attention = Attention(layer_idx)

    def forward(self, x: torch.Tensor, past_key_values: ToyCache) -> torch.Tensor:
        return self.attention(x, past_key_values=past_key_values)


class Cached(nn.Module):
    def __init__(self, owners: list[int | None]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(owner) for owner in owners)

    def forward(self, x: torch.Tensor, past_key_values: ToyCache) -> dict[str, Any]:
        for block in self.blocks:
            x = block(x, past_key_values)
        return {"x": x, "past_key_values": past_key_values}


def test_a_cache_is_saved_once_by_the_innermost_module_that_owns_a_layer_after_it_ran(tmp_path: Path) -> None:
    model = Cached([0, 1])
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        model(A, past_key_values=ToyCache(2))
    home = handle.dump_path
    assert [name for name in files(home) if "past" in name] == [
        f"root.blocks.{n}.attention/output_past_key_values_{part}"
        for n in (0, 1)
        for part in ("key", "value")
    ]
    keys = tensor(home, "root.blocks.1.attention/output_past_key_values_key")
    assert torch.equal(keys, torch.full((1, 1, 2, 2), 11.0))
    assert "output[past_key_values][key]" in slots(home, "root.blocks.1.attention")


def test_layers_that_no_module_owns_are_saved_by_the_root(tmp_path: Path) -> None:
    model = Cached([0, None])
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        model(A, past_key_values=ToyCache(3))
    assert [name for name in files(handle.dump_path) if "past" in name] == [
        "root.blocks.0.attention/output_past_key_values_key",
        "root.blocks.0.attention/output_past_key_values_value",
        "root/output_past_key_values_1_key",
        "root/output_past_key_values_1_value",
        "root/output_past_key_values_2_key",
        "root/output_past_key_values_2_value",
    ]


def test_a_cache_given_by_position_is_called_cache(tmp_path: Path) -> None:
    model = Attention(1)
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        model(A, ToyCache(2))
    assert [name for name in files(handle.dump_path) if "cache" in name] == [
        f"root/output_cache_{n}_{part}" for n in (0, 1) for part in ("key", "value")
    ]
    assert "output[cache][1][key]" in slots(handle.dump_path)


def test_a_cache_does_not_take_the_file_of_an_output(tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, cache: ToyCache) -> dict[str, Any]:
            return {"cache_0_key": A, "cache": cache}

    model = Both()
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        model(cache=ToyCache(1))
    assert files(handle.dump_path) == [
        "root/output_cache_0_key", "root/output_cache_0_key_2", "root/output_cache_0_value"
    ]  # fmt: skip
    assert torch.equal(tensor(handle.dump_path, "root/output_cache_0_key"), A)
    assert slots(handle.dump_path) == [
        "output[cache][0][key]",
        "output[cache][0][value]",
        "output[cache_0_key]",
    ]


def test_caches_of_all_ages_are_recognised() -> None:
    assert [(n, key) for n, key, _ in in_cache(OldCache())] == [
        *((0, ("key",)), (1, ("key",)), (0, ("value",)), (1, ("value",)))
    ]
    assert [(n, key) for n, key, _ in in_cache(BothCache())] == [
        *((0, ("self_attention_cache", "key")), (0, ("self_attention_cache", "value"))),
        *((n, ("cross_attention_cache", part)) for part in ("key", "value") for n in (0, 1)),
    ]
    assert not is_cache(SimpleNamespace(layers=[]))
    assert not is_cache({})


def test_objects_that_nobody_looks_into_are_listed(tmp_path: Path) -> None:
    home = dumped(tmp_path, A, SimpleNamespace(x=A), callback=print)
    odd = [entry for entry in entries(home) if entry["status"] != "written"]
    assert [(entry["key"], entry["status"], entry["note"]) for entry in odd] == [
        ([0], "not looked into", "a SimpleNamespace")
    ]


class Unreadable(dict[str, torch.Tensor]):
    def __getitem__(self, key: str) -> torch.Tensor:
        raise OSError("not now")


def test_objects_that_refuse_to_be_read_are_listed_and_harm_nothing(tmp_path: Path) -> None:
    home = dumped(tmp_path, (A, Unreadable(x=A)))
    assert files(home) == ["root/output_0"]
    assert entries(home)[-1]["note"] == "a Unreadable that raised OSError"


def test_what_contains_itself_ends(tmp_path: Path) -> None:
    loop: list[Any] = [A]
    loop.append(loop)
    assert "root/output_0" in files(dumped(tmp_path, loop))


class Tagged(torch.Tensor):
    """A subclass without anything of its own; saved as it is, it could not be loaded with weights_only."""


@pytest.mark.parametrize(
    ("value", "expected", "note"),
    [
        (A.as_subclass(Tagged), A, "was a Tagged"),
        (torch.eye(3).to_sparse(), torch.eye(3), "was sparse (sparse_coo)"),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), ""),
        (torch.tensor([1 + 2j]).conj().imag, torch.tensor([-2.0]), ""),  # a negative view
        (nn.Parameter(A.clone()), A, ""),
        (torch.arange(4.0).expand(3, 4), torch.arange(4.0).expand(3, 4), ""),
        (torch.zeros(0, 3), torch.zeros(0, 3), ""),
        (torch.tensor(True), torch.tensor(True), ""),
    ],
    ids=str,
)
def test_every_kind_of_tensor_becomes_a_plain_one(
    tmp_path: Path, value: torch.Tensor, expected: torch.Tensor, note: str
) -> None:
    home = dumped(tmp_path, value)
    saved = tensor(home, "root/output")
    assert type(saved) is torch.Tensor
    assert saved.is_contiguous()
    assert torch.equal(saved, expected)
    assert entries(home)[0].get("note", "") == note


def test_quantised_tensors_are_saved_as_what_they_stand_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop them
        quantised = torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.qint8)
    copy, note = snapshot(quantised)
    assert copy is not None
    assert copy.tolist() == [0.5, 1.0]
    assert note == "was quantized"


def test_a_tensor_without_values_is_told_once_and_listed_and_harms_nothing(tmp_path: Path) -> None:
    model = Returns((torch.empty(3, device="meta"), A, torch.empty(2, device="meta")))
    with (
        pytest.warns(UserWarning, match="root: output .0. is not saved: has no values") as caught,
        register_hook(model, DumpConfig(tmp_path)) as handle,
    ):
        model()
    assert len(caught) == 1
    assert files(handle.dump_path) == ["root/output_1"]
    assert [entry["status"] for entry in entries(handle.dump_path)] == ["failed", "written", "failed"]
    assert "2 not saved: cannot be read (has no values (device meta))" in str(handle.report)


def test_a_snapshot_never_raises_and_never_shares() -> None:
    class Stubborn(torch.Tensor):
        @property
        def device(self) -> None:  # type: ignore[override]  # it raises
            raise RuntimeError("no\n  device")

    copy, note = snapshot(torch.zeros(1).as_subclass(Stubborn))
    assert copy is None
    assert note == "RuntimeError: no device"
    value = torch.arange(4.0)
    copy, _ = snapshot(value)
    value += 1
    assert copy is not None
    assert copy.tolist() == [0, 1, 2, 3]
