"""States that a model returned and is called with again, computed again with the step that returned them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.diagnosis.recomputation import LOOKING, Recomputation
from acc_pytest.diagnosis.recompute_outlined import OutlinedRecomputer
from acc_pytest.dumps.torch_outline import outline_of
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings


class Recurrence(nn.Module):
    """Hands its state on; `scale` is 1 in a right one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 32, bias=False)
        self.scale = 1.0

    def forward(self, x: torch.Tensor, state: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        kept = torch.zeros_like(x) if state is None else state
        made = torch.tanh(self.gate(x)) + 0.5 * kept
        return {"shares": made.softmax(-1), "state": made * self.scale}


def dump(path: Path, dtype: torch.dtype, *, scale: float = 1.0, fed: float = 1.0) -> Path:
    """The process folder of two steps; the state of the first is `fed` times itself at the second."""
    model = Recurrence()
    generator = torch.Generator().manual_seed(6)
    model.gate.weight.data = torch.randn(32, 32, generator=generator).bfloat16().float()
    model.scale = scale
    x = torch.randn(12, 32, generator=generator).bfloat16().to(dtype)
    model = model.to(dtype)
    with torch.no_grad(), register_hook(model, DumpConfig(path, range(2))) as handle:
        model(x, state=model(x)["state"] * fed)
    return handle.dump_path


def of_state(golden: Path, mine: Path) -> Recomputation:
    """What is found of the state that the second step was called with."""
    plan = make_plan(Settings.from_values({"golden": str(golden), "mine": str(mine)}))
    (number,) = (number for number, pair in enumerate(plan.pairs) if pair.fed == "cache")
    assert plan.pairs[number].mine.slot == "input[state]"
    outline = outline_of(golden)
    assert outline is not None
    return OutlinedRecomputer(plan, outline, replace(LOOKING, measured=True)).of_pair(number)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("golden"), torch.float32)


def test_it_is_as_right_as_what_returned_it(golden: Path, tmp_path: Path) -> None:
    assert of_state(golden, dump(tmp_path / "right", torch.bfloat16)).outcome == "right"
    wrong = of_state(golden, dump(tmp_path / "wrong", torch.bfloat16, scale=1.02))
    assert wrong.outcome == "wrong"
    assert wrong.error == pytest.approx(0.02, abs=2**-8), "and a rounding of bfloat16"


def test_of_another_state_nothing_is_known(golden: Path, tmp_path: Path) -> None:
    found = of_state(golden, dump(tmp_path / "other", torch.bfloat16, fed=2.0))
    assert (found.outcome, found.why) == ("", "it is what the run was fed")
