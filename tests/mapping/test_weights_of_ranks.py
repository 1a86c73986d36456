"""Weights of a golden on one rank and of a port on two, by digests: shares of rows and columns; replicas."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, compare, register_hook

WIDTH, INNER = 48, 64


class Packed(nn.Module):
    """Both linears of a gate in one weight, as each rank of an engine has its share of them."""

    def __init__(self, network: Gated, rank: int) -> None:
        super().__init__()
        rows = slice(rank * INNER // 2, (rank + 1) * INNER // 2)
        self.gate_up = nn.Linear(WIDTH, INNER, bias=False)
        self.gate_up.weight.data = torch.cat([network.gate.weight.data[rows], network.up.weight.data[rows]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return torch.relu(gate) * up


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.gate(x)) * self.up(x)


class Network(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, inner, bias=False), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return made


def golden() -> Network:
    torch.manual_seed(0)
    network = Network(INNER)
    network.norm.weight.data.normal_(1.0, 0.2)
    return network


def rank_of(network: Network, rank: int) -> Network:
    half = Network(INNER // 2)
    rows = slice(rank * INNER // 2, (rank + 1) * INNER // 2)
    half.norm = copy.deepcopy(network.norm)
    half.up.weight.data = network.up.weight.data[rows].clone()
    half.down.weight.data = network.down.weight.data[:, rows].clone()
    return half


def dump(networks: Sequence[nn.Module], home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for rank, network in enumerate(networks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(len(networks)))
        config = DumpConfig(home, run_name="run", process_name=f"npu{rank}_{40 + rank}")
        with torch.no_grad(), register_hook(network, config):
            network(torch.linspace(-1, 1, 5 * WIDTH).reshape(5, WIDTH))
    return str(home)


def wrong_share(ranks: list[Network]) -> None:
    ranks[1].up.weight.data = ranks[0].up.weight.data.clone()


def stale_share(ranks: list[Network]) -> None:
    ranks[1].down.weight.data.normal_()


def other_gain(ranks: list[Network]) -> None:
    ranks[1].norm.weight.data *= 1.5


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda ranks: None, ""),
        (wrong_share, "rows 32-63 of root.up.weight are on no rank (rank 0 has 0-31, rank 1 has 0-31)"),
        (
            stale_share,
            "columns 32-63 of root.down.weight are on no rank (rank 0 has 0-31)",
        ),
        (other_gain, "root cause: weight of norm differs"),
    ],
)
def test_each_rank_has_its_share_of_a_golden_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[Network]], None], line: str
) -> None:
    network = golden()
    ranks = [rank_of(network, rank) for rank in range(2)]
    change(ranks)
    paths = dump([network], tmp_path / "golden", monkeypatch), dump(ranks, tmp_path / "mine", monkeypatch)
    result = compare(*paths)
    weights = [row for row in result.rows if row.mine.op_type == "Parameter"]
    red = [row for row in weights if row.red]
    assert line in " ".join(result.summary.split())
    assert bool(red) == (change is other_gain)
    if not line:
        assert len(weights) == 8
        assert "weights:" not in result.summary


def test_shares_that_a_rank_packs_are_not_taken_for_wrong_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    network = Gated()
    ranks = [Packed(network, rank) for rank in range(2)]
    paths = dump([network], tmp_path / "golden", monkeypatch), dump(ranks, tmp_path / "mine", monkeypatch)
    result = compare(*paths)
    assert not [row.name for row in result.rows if row.red]
    assert "weights: 2 of golden and 1 of mine are not compared" in " ".join(result.summary.split())
    assert "no weight of mine holds" not in result.summary
