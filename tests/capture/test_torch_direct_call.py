"""Models whose `forward` is called directly, as SGLang's workers do."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.dumps import open_dump


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        if scale == 0:
            raise ValueError("nothing to scale")
        result: torch.Tensor = self.norm(self.linear(x)) * scale
        return result


def files(dump: Path) -> list[str]:
    return sorted(str(path.relative_to(dump)) for path in dump.rglob("*.pth"))


def dumped(folder: Path, model: nn.Module, *, direct: bool) -> Path:
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    with register_hook(model, DumpConfig(folder, range(2), run_name="run", process_name="cpu_0")) as handle:
        call = model.forward if direct else model
        call(x, scale=2.0)
        call(x + 1)
    return handle.dump_path


def test_a_direct_call_is_dumped_as_a_call_of_the_model_is(tmp_path: Path) -> None:
    model = Scaled()
    called = dumped(tmp_path / "called", model, direct=False)
    direct = dumped(tmp_path / "direct", model, direct=True)
    assert files(direct) == files(called)
    assert {"0/root.linear/output.pth", "1/root/output.pth"} <= set(files(direct))
    for name in files(direct):
        assert torch.equal(*(torch.load(dump / name, weights_only=True) for dump in (called, direct))), name
    manifests = [(dump / "0" / "manifest.json").read_text() for dump in (called, direct)]
    assert ["started" in text for text in manifests] == [True, True]
    assert [len(open_dump(str(dump.parents[1])).steps) for dump in (called, direct)] == [2, 2]


def test_a_direct_call_that_raises_ends_its_step(tmp_path: Path) -> None:
    model = Scaled()
    config = DumpConfig(tmp_path, range(3), run_name="run", process_name="cpu_0")
    with register_hook(model, config) as handle:
        with pytest.raises(ValueError, match="nothing to scale"):
            model.forward(torch.ones(1, 4), scale=0)
        model.forward(torch.ones(1, 4))
    assert not (handle.dump_path / "0" / "root" / "output.pth").exists()
    assert (handle.dump_path / "1" / "root" / "output.pth").exists()


def test_the_model_has_its_own_forward_back(tmp_path: Path) -> None:
    model = Scaled()
    signature = inspect.signature(model.forward)
    with register_hook(model, DumpConfig(tmp_path)):
        assert inspect.signature(model.forward) == signature
    assert "forward" not in vars(model)

    def other(x: torch.Tensor) -> torch.Tensor:
        return x

    model.forward = other  # type: ignore[assignment]
    with register_hook(model, DumpConfig(tmp_path)):
        assert torch.equal(model(torch.ones(2)), torch.ones(2))
    assert model.forward is other


def test_two_handles_dump_one_direct_call_each(tmp_path: Path) -> None:
    model = Scaled()
    first = register_hook(model, DumpConfig(tmp_path, run_name="first"))
    second = register_hook(model, DumpConfig(tmp_path, run_name="second"))
    model.forward(torch.ones(1, 4))
    first.remove()
    second.remove()
    assert files(first.dump_path) == files(second.dump_path) != []
    model.forward(torch.ones(1, 4))
    assert (first.token_id, second.token_id) == (1, 1)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_call_their_own_forward(tmp_path: Path, copied) -> None:  # type: ignore[no-untyped-def]
    model = Scaled()
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        other = copied(model)
        with torch.no_grad():
            other.linear.weight.zero_()
            other.linear.bias.zero_()
        assert torch.equal(other.forward(torch.ones(1, 4)), torch.zeros(1, 4))
        assert handle.token_id == 0
