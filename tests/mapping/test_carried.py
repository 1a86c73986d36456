"""carried: the state that a model is called with again was computed by the step before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook

from .toy_model import Verdicts, compared

STEPS = 3


class Cell(nn.Module):
    """A recurrent layer in the dtype of its weights, whose state is kept in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.decay = 0.5

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for token in self.into(x).float().unbind(1):
            state = self.decay * state + token
        return self.out(state.to(x.dtype)), state


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(32, 16), Cell(), nn.Linear(16, 32)

    def forward(self, ids: torch.Tensor, state: torch.Tensor) -> dict[str, torch.Tensor]:
        x, state = self.cell(self.embed(ids), state)
        return {"logits": self.head(x), "state": state}


def dump(path: Path, dtype: torch.dtype, decay: float = 0.5, lost: bool = False) -> Path:
    """A run of three steps; `lost` forgets the state before the second."""
    torch.manual_seed(4)
    model = Recurrent()
    model.cell.decay = decay
    model.to(dtype)
    state = torch.zeros(1, 16)
    with torch.no_grad(), register_hook(model, DumpConfig(path, range(STEPS))):
        for step in range(STEPS):
            if lost and step == 1:
                state = torch.zeros(1, 16)
            state = model(torch.arange(5)[None] + step, state=state)["state"]
    return path


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("golden"), torch.float32)


def states(verdicts: Verdicts) -> dict[object, str]:
    """The verdicts of the states that steps are called with, by step."""
    return {
        pair.step: row.verdict
        for pair, row in zip(verdicts.plan.pairs, verdicts.rows)
        if pair.mine.slot == "input[state]"
    }


def test_a_state_in_float32_has_the_rounding_of_the_step_that_made_it(golden: Path, tmp_path: Path) -> None:
    verdicts = compared(golden, dump(tmp_path, torch.bfloat16))
    assert {row.verdict for row in verdicts.rows} == {"pass"}
    computed_in = {
        pair.step: pair.computed_in for pair in verdicts.plan.pairs if pair.fed in ("input", "cache")
    }
    assert computed_in == {0: "float32", 1: "bfloat16", 2: "bfloat16"}


def test_a_wrong_state_is_no_other_input_but_follows_from_the_step_before(
    golden: Path, tmp_path: Path
) -> None:
    verdicts = compared(golden, dump(tmp_path, torch.bfloat16, decay=0.8))
    assert states(verdicts) == {0: "pass", 1: "inherited", 2: "inherited"}
    assert set(verdicts.roots) == {"root.cell"}


def test_a_state_that_was_lost_between_steps_is_told(golden: Path, tmp_path: Path) -> None:
    verdicts = compared(golden, dump(tmp_path, torch.bfloat16, lost=True))
    assert states(verdicts) == {0: "pass", 1: "fail", 2: "pass"}  # which a third step has forgotten
    assert verdicts.roots[0] == "root"
