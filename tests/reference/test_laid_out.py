"""Tensors of mine in the places of golden's: what golden's code makes of them, whatever mine is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest.mapping.pair import Plan
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings

from .test_modules_outlined import Dumps, Maker, by_model, network, outlined


class MergedColumnParallelLinear(nn.Linear):
    """A product that engines pack."""


class PackedMlp(nn.Module):
    """The MLP of a layer with one product for gate and up; what is between is `factor` times what it should
    be."""

    def __init__(self, mlp: Any, factor: float) -> None:
        super().__init__()
        self.factor = factor
        parts = mlp.gate_proj.weight, mlp.up_proj.weight
        self.gate_up_proj = MergedColumnParallelLinear(parts[0].shape[1], 2 * len(parts[0]), bias=False)
        self.gate_up_proj.weight.data = torch.cat([part.data for part in parts])
        self.down_proj = mlp.down_proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        made: torch.Tensor = self.down_proj(nn.functional.silu(gate) * up * self.factor)
        return made


def packed(factor: float) -> Any:
    def change(module: Any) -> None:
        for layer in module.model.layers:
            layer.mlp = PackedMlp(layer.mlp, factor)

    return change


def planned(golden: Path, mine: Path) -> Plan:
    return make_plan(Settings.from_values({"golden": str(golden), "mine": str(mine)}))


@pytest.mark.parametrize("by", [outlined, by_model])
@pytest.mark.parametrize(("factor", "outcome"), [(1.0, "right"), (1.01, ""), (1.03, "wrong")])
def test_the_code_of_a_packed_mlp_makes_what_goldens_does(
    tmp_path: Path, by: Maker, factor: float, outcome: str
) -> None:
    dumps = Dumps(tmp_path, network)
    golden = dumps.dump("golden", dtype=torch.float32)
    plan = planned(golden, dumps.dump("mine", packed(factor)))
    numbers = {pair.id: number for number, pair in enumerate(plan.pairs)}
    recomputed = by(plan, golden).of_pair(numbers["mlp.down_proj[in0]"])
    if by is by_model and not outcome:  # its own module has all weights, and no doubts
        outcome = "wrong"
    assert recomputed.outcome == outcome
    if outcome and by is outlined:
        read = [plan.pairs[int(number)].id for number in recomputed.reads.split()]
        assert {"mlp.gate_up_proj.gate", "mlp.gate_up_proj.up"} <= {*read}
