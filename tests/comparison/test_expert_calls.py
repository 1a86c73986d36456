"""expert_calls: rows of one expert are no tokens, though there be as many."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.comparison.tokens import ExpertCalls
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan

TOKENS = 12


class Experts(nn.Module):
    """Two experts, of which the first happens to have as many rows as there are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.act_fn, self.norm = nn.SiLU(), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.act_fn(x), self.act_fn(x[:5])
        made: torch.Tensor = self.norm(first) + self.norm(first + second.sum())
        return made


def test_a_module_that_ran_on_different_numbers_of_rows_ran_for_experts(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Experts())
    with register_hook(model, DumpConfig(tmp_path)), torch.no_grad():
        model(torch.randn(TOKENS, 8))
    dump = open_dump(str(tmp_path))
    planned = plan(dump, dump)
    experts = ExpertCalls(planned)
    held = {pair.mine.node for pair in planned.pairs if not pair.fed and experts.holds(pair)}
    assert held == {"root.1.act_fn", "root.1.act_fn.call1"}
    assert {"root.1.norm", "root.1.norm.call1", "root.0"} <= {pair.mine.node for pair in planned.pairs}
