"""Weights of a dump are described without being dumped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.capture.torch_hooks import model as module
from acc_pytest.capture.torch_hooks import recorder
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.torch_model import digests, weights_of
from acc_pytest.errors import DumpConfigError
from acc_pytest.tensors.digest import digest

from .models import Stack


def dumped(model: nn.Module, path: Path, calls: int = 1, **options: Any) -> Path:
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
    home = dumped(nn.Sequential(buffered), tmp_path)
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
    home = dumped(Stack(), tmp_path, layer_name="root.head", dump_statistics_mode=1, tensor_part=1)
    assert "root.layers.1.norm.bias" in digests(home)


def test_tied_weights_are_described_once_with_their_aliases(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model.append(model[2])
    found = weights_of(dumped(model, tmp_path))
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
    found = weights_of(dumped(model, tmp_path))
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

    home = dumped(Feeds(), tmp_path)
    entry = next(
        entry
        for entry in json.loads((home / "0" / "manifest.json").read_text())["tensors"]
        if entry["file"] == "root.inner/input_0.pth"
    )
    buffer = weights_of(home)["root.table"]
    assert (entry["storage"], entry["offset"]) == (buffer.storage, 1)
    assert buffer.offset == 0


def test_digests_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "digest", lambda tensor: pytest.fail("a weight was read"))
    home = dumped(Stack(), tmp_path, weight_digest=False)
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
        home = dumped(Stack(), tmp_path)
    assert (home / "0" / "root" / "output.pth").is_file()
