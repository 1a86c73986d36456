"""`module_traces.json`: what the code of each module computed, written while it runs."""

from __future__ import annotations

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
from acc_pytest.dumps.torch_model import StepTraces, traces_of
from tests.newer import caches_have_layers, indexing_is_shown


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
    monkeypatch.setattr(older_torch, "_release", lambda: (2, 3))
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
