"""A weight of eight bits with its scale beside it has the digest of what its codes stand for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan
from acc_pytest.reporting.row import Row
from tests.newer import torch_dtype

WIDTH, BLOCK = 64, 16


class Quantised(nn.Module):
    """A linear whose weight is codes in blocks, each with a scale."""

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype, largest: float, swapped: bool) -> None:
        super().__init__()
        blocks = weight.view(len(weight) // BLOCK, BLOCK, -1, BLOCK)
        scale = blocks.abs().amax((1, 3)) / largest
        codes = (blocks / scale[:, None, :, None]).view_as(weight)
        codes = codes.round() if dtype == torch.int8 else codes
        self.weight = nn.Parameter(codes.to(dtype), requires_grad=False)
        self.weight_scale_inv = nn.Parameter(scale.T.contiguous() if swapped else scale, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = self.weight_scale_inv.shape
        scale = self.weight_scale_inv.repeat_interleave(WIDTH // rows, 0).repeat_interleave(
            WIDTH // columns, 1
        )
        return x @ (self.weight.float() * scale).T


@pytest.fixture(params=[("int8", 127.0), ("float8_e4m3fn", 448.0)], ids=lambda param: param[0])
def kind(request: pytest.FixtureRequest) -> tuple[torch.dtype, float]:
    return torch_dtype(request.param[0]), request.param[1]


def compared(home: Path, kind: tuple[torch.dtype, float], swapped: bool) -> tuple[list[Row], Sequence[str]]:
    """The rows of the weights, and what the plan says."""
    torch.manual_seed(0)
    plain = nn.Linear(WIDTH, WIDTH, bias=False)
    weight = plain.weight.detach() * torch.logspace(0, 1, WIDTH)[:, None]
    plain.weight.data.copy_(weight)
    models = nn.Sequential(plain), nn.Sequential(Quantised(weight, *kind, swapped))
    for model, name in zip(models, ("golden", "mine")):
        with torch.no_grad(), register_hook(model, DumpConfig(str(home / name))):
            model(torch.ones(4, WIDTH))
    made = plan(open_dump(str(home / "golden")), open_dump(str(home / "mine")))
    rows, _ = run(made)
    return [row for row in rows if row.layer == "weights"], made.notes


def test_codes_meet_what_they_stand_for(tmp_path: Path, kind: tuple[torch.dtype, float]) -> None:
    (row,), notes = compared(tmp_path, kind, swapped=False)
    assert row.verdict == "pass"
    assert "scaled by weight_scale_inv; 0.0" in row.notes[0]
    assert any("what such codes round is allowed" in note for note in notes)


def test_scales_in_the_other_layout_are_another_weight(
    tmp_path: Path, kind: tuple[torch.dtype, float]
) -> None:
    (row,), _ = compared(tmp_path, kind, swapped=True)
    assert row.verdict == "fail"
