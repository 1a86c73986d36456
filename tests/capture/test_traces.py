"""`module_traces.json`: what the code of each module computed, written while it runs."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.base import older_torch
from acc_pytest.capture.torch_hooks import trace
from acc_pytest.capture.torch_hooks.values import Storages
from acc_pytest.dumps.torch_manifest import SavedTensor, step_manifest
from acc_pytest.dumps.torch_model import StepTraces, traces_of
from tests.newer import caches_have_layers, indexing_is_shown

from .models import Layer, Stack, files


class Gated(nn.Module):
    """A linear layer with a gate; `scale` multiplies what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4, bias=False)
        self.act = nn.ReLU()
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, scale: float, where: Any = None) -> torch.Tensor:
        return self.act(self.up(x * scale)) * self.gain


class Network(nn.Module):
    """Two of them with one gain, and a third that raises if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Gated() for _ in range(2))
        self.table = torch.arange(4.0)
        self.raises = False

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        for part in self.parts:
            x = part(x, 0.5, where=object())
        if self.raises:
            raise RuntimeError("it was told to")
        return x + self.table, {"shape": x.shape, "dtype": x.dtype, "more": [x[..., None, 1:], None]}


def run(path: Path, model: nn.Module, calls: int = 1, **options: Any) -> Path:
    """The process folder of a dump of a few calls."""
    config = DumpConfig(path, range(calls), **options)
    with torch.no_grad(), register_hook(model, config) as handle:
        for _ in range(calls):
            model(torch.ones(2, 4))
    return handle.dump_path


def traces(home: Path, step: str = "0") -> StepTraces:
    found = traces_of(str(home), step)
    assert found is not None
    return found


def test_a_trace_has_functions_and_modules_in_their_order(tmp_path: Path) -> None:
    found = traces(run(tmp_path, Network()))
    parts = found.modules["root.parts.0"]
    assert found.modules == {
        "root.parts.0.act": [0], "root.parts.0": [1], "root.parts.1.act": [0], "root.parts.1": parts,
        "root": [2],
    }  # fmt: skip
    assert found.dtype == "float32"
    given, calls, result = (found.traces[1][key] for key in ("given", "calls", "result"))
    assert given == [[[0], [2, 4]]]
    assert [call["name"] for call in calls] == [
        "torch.Tensor.mul",
        "module up",
        "module act",
        "torch.Tensor.mul",
    ]
    assert calls[0]["args"] == [{"given": [0]}, 0.5]
    assert calls[1]["args"] == [{"of": [0, []]}]
    assert calls[3] == {
        "name": "torch.Tensor.mul",
        "args": [{"of": [2, []]}, {"own": "gain"}],
        "kwargs": {},
        "made": [[[], [2, 4]]],
    }
    assert result == {"of": [3, []]}


def test_the_root_has_its_table_and_the_form_of_its_result(tmp_path: Path) -> None:
    found = traces(run(tmp_path, Network()))
    root = found.traces[2]
    assert root["calls"][0]["kwargs"] == {"where": None}, "what is no value is left to the module inside"
    assert root["calls"][2]["args"] == [{"of": [1, []]}, {"kept": "0"}]
    assert torch.equal(found.tensors["0"].open(), torch.arange(4.0))
    more = [["more", {"list": [{"of": [3, []]}, None]}]]
    form = {"dict": [["shape", [2, 4]], ["dtype", {"dtype": "float32"}], *more]}
    assert root["result"] == [{"of": [2, []]}, form]
    assert root["calls"][3]["args"][1] == [{"dots": 0}, None, {"slice": [1, None, None]}]


def test_every_step_has_its_own(tmp_path: Path) -> None:
    home = run(tmp_path, Network(), calls=2)
    assert traces(home).traces == traces(home, "1").traces
    assert traces_of(str(home), "2") is None


@pytest.mark.parametrize("options", [{"outline": False}, {"dump_last_logits": True}, {"mode": "api"}])
def test_without_an_outline_nothing_is_traced(tmp_path: Path, options: dict[str, Any]) -> None:
    home = run(tmp_path, Network(), **options)
    assert not list(home.rglob("module_traces*"))


def test_a_model_of_transformers_has_a_configuration_instead(tmp_path: Path) -> None:
    caches_have_layers()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=16
    )
    kind: Any = LlamaForCausalLM
    model = kind(config).eval()
    with torch.no_grad(), register_hook(model, DumpConfig(tmp_path)) as handle:
        model(torch.arange(4)[None])
    assert (handle.dump_path / "model_outline.json").exists()
    assert not list(handle.dump_path.rglob("module_traces*"))


def test_a_step_that_raised_has_none(tmp_path: Path) -> None:
    model = Network()
    model.raises = True
    with pytest.raises(RuntimeError, match="told to"):
        run(tmp_path, model)
    assert not list(tmp_path.rglob("module_traces*"))
    model.raises = False
    assert traces(run(tmp_path, model)).modules


def test_an_error_that_the_code_catches_makes_its_trace_void(tmp_path: Path) -> None:
    class Catching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Network()
            self.inner.raises = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                self.inner(x)
            except RuntimeError:
                return x + 1
            raise AssertionError

    found = traces(run(tmp_path, Catching()))
    voids = {name for name, numbers in found.modules.items() if "void" in found.traces[numbers[0]]}
    assert voids == {"root", "root.inner"}


def test_what_goes_wrong_in_writing_is_void_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("nobody foresaw it")

    monkeypatch.setattr(trace, "written_value", refuse)
    found = traces(run(tmp_path, Network()))
    said = "writing it down raised ZeroDivisionError: nobody foresaw it"
    assert {json.dumps(one) for one in found.traces} == {json.dumps({"void": said})}


class Stepping(nn.Module):
    """Keeps keys in a buffer, as a static cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: torch.Tensor
        self.register_buffer("keys", torch.zeros(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys[:2].copy_(x)
        return F.softmax(x @ self.keys.T, -1)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_trace_is_void_where_old_torch_hides_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before torch 2.4 that is `x[i]`; scripted code, which every release hides, stands for it here."""
    monkeypatch.setattr(older_torch, "release_of", lambda _: (2, 3))
    model = Network()
    hidden: Any = torch.jit.trace(lambda x: -x, torch.ones(1))
    monkeypatch.setattr(model.parts[1], "forward", lambda x, *_, **__: hidden(x))
    found = traces(run(tmp_path, model))
    void = {name: found.traces[numbers[0]].get("void", "") for name, numbers in found.modules.items()}
    assert {name for name, reason in void.items() if reason} == {"root.parts.1"}
    assert "does not show what calls aten.neg.default; from 2.4 on it does" in void["root.parts.1"]


def test_a_cache_in_a_buffer_is_no_constant(tmp_path: Path) -> None:
    indexing_is_shown()
    home = run(tmp_path, Stepping(), calls=2)
    for step in ("0", "1"):
        (root,) = traces(home, step).traces
        assert "stays from call to call" in root["void"] or "written to from call to call" in root["void"]


def test_tensors_are_not_kept_alive(tmp_path: Path) -> None:
    """A trace must not double the memory that a run needs."""
    import weakref

    alive: list[weakref.ref[torch.Tensor]] = []

    class Large(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = x @ x.T
            alive.append(weakref.ref(scores))
            shares = scores.softmax(-1)
            del scores
            assert alive[-1]() is None
            return shares @ x

    assert "void" not in traces(run(tmp_path, Large())).traces[0]
    assert alive


# Which memory a dumped tensor showed, and which module began when: evidence of what came from what.


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
