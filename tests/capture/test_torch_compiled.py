"""Compiled models: while hooks are on, they run eagerly, under their own names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.errors import CaptureError
from tests.slow import slow

from .models import Stack, files, tensor

pytestmark = pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="needs torch 2.6")

X = torch.ones(2, 4)


class Counting:
    """A backend that counts what it compiles and runs it as it is."""

    def __init__(self) -> None:
        self.graphs = 0
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: object) -> object:
        self.graphs += 1

        def run(*args: torch.Tensor) -> object:
            self.runs += 1
            return graph(*args)

        return run


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain_files(path: Path) -> list[str]:
    model = Stack()
    with register_hook(model, DumpConfig(path, mode=["module", "api"])) as handle:
        model(X)
    return files(handle.dump_path)


@pytest.mark.parametrize("before", [False, slow(True)], ids=["first call is dumped", "compiled before"])
@pytest.mark.parametrize("part", ["whole", "in place", "layer"])
def test_a_compiled_model_is_dumped_like_the_eager_one_and_compiled_again_after(
    tmp_path: Path, part: str, before: bool
) -> None:
    backend = Counting()
    inner = Stack()
    model: Any = inner
    if part == "whole":
        model = torch.compile(inner, backend=backend, fullgraph=True)
    elif part == "in place":
        inner.compile(backend=backend, fullgraph=True)
    else:
        compiled: Any = torch.compile(inner.layers[0], backend=backend, fullgraph=True)
        inner.layers[0] = compiled
    eager = Stack()(X)
    if before:
        assert torch.equal(model(X), eager)
        assert backend.runs == 1
    with register_hook(model, DumpConfig(tmp_path / "c", range(3), mode=["module", "api"])) as handle:
        runs = backend.runs
        for _ in range(3):
            result = model(X)
            assert torch.equal(result, eager)
        assert backend.runs == runs
    for step in range(3):
        assert files(handle.dump_path, step) == plain_files(tmp_path / str(step))
    assert torch.equal(tensor(handle.dump_path, "root/output", 2), eager)
    tree = open_dump(str(handle.dump_path)).steps[0].tree
    assert tree.model == "Stack"
    assert not any("_orig_mod" in path for path in tree.by_path)
    assert torch.equal(model(X), eager)
    assert backend.runs == runs + 1


def test_weights_of_a_compiled_model_go_by_their_own_names(tmp_path: Path) -> None:
    model: Any = torch.compile(Stack(layers=1), backend="eager")
    with register_hook(model, DumpConfig(tmp_path, dump_weight=True)) as handle:
        pass
    assert "root.layers.0.linear.weight.pth" in {
        path.name for path in (handle.dump_path / "weights").iterdir()
    }


def test_the_module_below_the_wrapper_may_be_hooked_too(tmp_path: Path) -> None:
    inner = Stack()
    compiled = torch.compile(inner, backend="eager")
    with register_hook(inner, DumpConfig(tmp_path)) as handle:
        inner(X)
    assert "root.layers.1.norm/output" in files(handle.dump_path)
    assert torch.equal(compiled(X), inner(X))


def test_an_old_torch_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.compiler, "set_stance")
    model: Any = torch.compile(Stack(), backend="eager")
    with pytest.raises(CaptureError, match=r"torch 2\.6.*not compiled"):
        register_hook(model, DumpConfig(tmp_path))
