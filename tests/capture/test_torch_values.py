"""Arguments and results of every shape: where each tensor goes, and what cannot be saved is told."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.capture.torch_hooks import model as module
from acc_pytest.capture.torch_hooks import recorder
from acc_pytest.capture.torch_hooks.values import in_cache, is_cache, snapshot
from acc_pytest.dumps import Slot, open_dump
from acc_pytest.dumps.torch_model import weights_of
from acc_pytest.errors import DumpConfigError
from acc_pytest.tensors.digest import digest

from ..dumps.trees import digests
from .models import Named, Output, Returns, Stack, entries, files, tensor

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


# Weights of a dump are described without being dumped.


def dumped_weights(model: nn.Module, path: Path, calls: int = 1, **options: Any) -> Path:
    with register_hook(model, DumpConfig(path, range(calls), **options)) as handle:
        for _ in range(calls):
            model(torch.ones(1, 4))
    return handle.dump_path


class Buffered(nn.Module):
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


def test_every_parameter_and_buffer_has_a_digest_under_its_full_name(tmp_path: Path) -> None:
    buffered = Buffered()
    home = dumped_weights(nn.Sequential(buffered), tmp_path)
    found = weights_of(home)
    assert {name: saved.kind for name, saved in found.items()} == {
        "root.0.linear.weight": "parameter",
        "root.0.linear.bias": "parameter",
        "root.0.scale": "buffer",
        "root.0.table": "buffer",
    }
    assert digests(home)["root.0.linear.weight"] == digest(buffered.linear.weight)
    assert digests(home)["root.0.table"] == digest(buffered.table)
    assert not (home / "weights").exists()
    assert open_dump(str(home)).notes == ()


def test_a_dump_whose_filters_leave_all_out_still_describes_the_weights(tmp_path: Path) -> None:
    home = dumped_weights(Stack(), tmp_path, layer_name="root.head", dump_statistics_mode=1, tensor_part=1)
    assert "root.layers.1.norm.bias" in digests(home)


def test_tied_weights_are_described_once_with_their_aliases(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model.append(model[2])
    found = weights_of(dumped_weights(model, tmp_path))
    assert found["root.0.weight"].aliases == ("root.1.weight",)
    assert found["root.2.bias"].aliases == ("root.3.bias",)
    assert "root.1.weight" not in found


def test_weights_are_those_of_the_first_step_not_of_the_registration(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    with register_hook(model, DumpConfig(tmp_path, [1, 2])) as handle:
        model(torch.ones(1, 4))
        assert weights_of(handle.dump_path) == {}
        with torch.no_grad():
            model.weight.fill_(3)
        model(torch.ones(1, 4))
        with torch.no_grad():
            model.weight.fill_(4)
        model(torch.ones(1, 4))
        assert digests(handle.dump_path)["root.weight"].max == 3
        handle.reset()
        handle.token_id = 1
        model(torch.ones(1, 4))
    assert digests(handle.dump_path)["root.weight"].max == 4


@pytest.mark.parametrize("inference", [False, True])
def test_a_model_of_inference_mode_computes_the_same_bits(tmp_path: Path, inference: bool) -> None:
    x = torch.randn(2, 4)
    with torch.inference_mode(inference):
        model = Stack()
        plain = model(x)
        with register_hook(model, DumpConfig(tmp_path)) as handle:
            hooked = model(x)
    assert torch.equal(plain, hooked)
    assert len(digests(handle.dump_path)) == 10
    with torch.enable_grad():  # what was cached in there is of use outside
        digest(torch.ones(3, requires_grad=True))


def test_weights_without_values_say_why(tmp_path: Path) -> None:
    class Refuses(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # torch calls it with a class
            raise NotImplementedError(func)

    model = nn.Linear(4, 4)
    model.register_buffer("sparse", torch.eye(4).to_sparse())
    model.register_buffer("meta", torch.empty(4, device="meta"))
    model.register_buffer("wrapped", torch.Tensor._make_subclass(Refuses, torch.ones(3)))
    found = weights_of(dumped_weights(model, tmp_path))
    reasons = {name: saved.reason for name, saved in found.items() if saved.digest is None}
    assert reasons == {
        "root.sparse": "TypeError: a sparse tensor has no digest",
        "root.meta": "TypeError: a meta tensor has no digest",
        "root.wrapped": "TypeError: a Refuses has no digest",
    }


def test_an_input_in_the_memory_of_a_buffer_is_seen(tmp_path: Path) -> None:
    class Feeds(nn.Module):
        table: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(4))
            self.inner = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(self.table[1:]) + x[:, 1:]

    home = dumped_weights(Feeds(), tmp_path)
    entry = next(
        entry
        for entry in json.loads((home / "0" / "manifest.json").read_text())["tensors"]
        if entry["file"] == "root.inner/input_0.pth"
    )
    buffer = weights_of(home)["root.table"]
    assert (entry["storage"], entry["offset"]) == (buffer.storage, 1)
    assert buffer.offset == 0


def test_digests_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "described", lambda *_: pytest.fail("a weight was read"))
    home = dumped_weights(Stack(), tmp_path, weight_digest=False)
    assert not (home / "weights.json").exists()
    assert weights_of(home) == {}
    assert digests(home) == {}
    with pytest.raises(DumpConfigError, match="weight_digest must be True or False, got 'no'"):
        DumpConfig(weight_digest="no")  # type: ignore[arg-type]  # it is refused


def test_a_file_that_cannot_be_written_is_an_error_of_the_step(tmp_path: Path) -> None:
    model = Stack()
    handle = register_hook(model, DumpConfig(tmp_path))
    (handle.dump_path / "weights.json").mkdir()
    with pytest.raises(Exception, match=r"step 0 is incomplete: .*weights\.json"):
        model(torch.ones(1, 4))
    handle.remove()
    assert (handle.dump_path / "0" / "root.head" / "output.pth").is_file()
    assert (handle.dump_path / "0" / "manifest.json").is_file()


def test_a_step_that_fails_at_once_leaves_the_digests(tmp_path: Path) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self) -> None:
            raise ZeroDivisionError

    handle = register_hook(Fails(), DumpConfig(tmp_path, range(2)))
    with pytest.raises(ZeroDivisionError):
        handle._model()
    handle.remove()
    assert list(digests(handle.dump_path)) == ["root.weight"]


def test_what_goes_wrong_while_weights_are_described_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(content: object, storages: object) -> None:
        raise RuntimeError("cannot schedule new futures")

    monkeypatch.setattr(recorder, "weight_digests", refuses)
    with pytest.warns(UserWarning, match="weights are not described: RuntimeError: cannot schedule"):
        home = dumped_weights(Stack(), tmp_path)
    assert (home / "0" / "root" / "output.pth").is_file()
