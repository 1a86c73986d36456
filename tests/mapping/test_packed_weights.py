"""Weights that one side packs are found by their rows and compared; what a loader did is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.packed_weights import _nearest
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan

H = 64


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(H, H), nn.Linear(H, 32), nn.Linear(H, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.q(x), self.k(x), self.v(x)), -1)


class Packed(nn.Module):
    def __init__(self, apart: Apart, bias: bool = True) -> None:
        super().__init__()
        self.qkv = nn.Linear(H, 2 * H, bias=bias)
        parts = (apart.q, apart.k, apart.v)
        with torch.no_grad():
            self.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            if bias:
                self.qkv.bias.copy_(torch.cat([part.bias for part in parts]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.qkv(x)
        return out


class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)[..., :H]
        return x


def dumped(model: nn.Module, home: Path) -> str:
    with torch.no_grad(), register_hook(model, DumpConfig(str(home))):
        x = torch.randn(1, 5, H, generator=torch.Generator().manual_seed(1))
        model(x.to(next(model.parameters()).dtype))
    return str(home)


def both(home: Path, change: Callable[[Packed], None] = lambda _: None, bias: bool = True) -> Plan:
    torch.manual_seed(0)
    golden = [Apart() for _ in range(2)]
    mine = [Packed(layer, bias) for layer in golden]
    with torch.no_grad():
        change(mine[1])
    directories = dumped(Stack([*golden]), home / "golden"), dumped(Stack([*mine]), home / "mine")
    return plan(*map(open_dump, directories))


def weights(made: Plan) -> dict[str, str]:
    """The verdicts of the pieces of packed weights, by golden's name."""
    rows, _ = run(made)
    return {row.golden.name.removeprefix("root."): row.verdict for row in rows if row.layer == "weights"}


def test_pieces_are_found_and_compared(tmp_path: Path) -> None:
    verdicts = weights(both(tmp_path))
    names = {f"layers.{n}.{m}.{p}" for n in (0, 1) for m in "qkv" for p in ("weight", "bias")}
    assert verdicts == dict.fromkeys(names, "pass")


def test_pieces_may_be_rounded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = Apart()
    mine = Stack([Packed(layer)]).bfloat16()
    made = plan(open_dump(dumped(Stack([layer]), tmp_path / "g")), open_dump(dumped(mine, tmp_path / "m")))
    assert set(weights(made).values()) == {"pass"}
    assert len(weights(made)) == 6


def test_rows_of_another_capture_tell_nothing(tmp_path: Path) -> None:
    made = both(tmp_path)
    assert len(weights(made)) == 12
    (golden,) = (tmp_path / "golden").rglob("weight_rows.npz")
    (mine,) = (tmp_path / "mine").rglob("weight_rows.npz")
    golden.write_bytes(mine.read_bytes())
    made = plan(open_dump(str(tmp_path / "golden")), open_dump(str(tmp_path / "mine")))
    assert not weights(made)


def test_golden_may_be_the_packed_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = Apart()
    sides = Stack([Packed(layer)]), Stack([layer])
    made = plan(*(open_dump(dumped(side, tmp_path / str(n))) for n, side in enumerate(sides)))
    rows, _ = run(made)
    assert [row.verdict for row in rows if row.layer == "weights"] == ["pass"] * 6


def test_a_piece_that_is_wrong_lies_in_the_gap_and_fails(tmp_path: Path) -> None:
    def change(layer: Packed) -> None:
        layer.qkv.weight[H : H + 32] = torch.randn(32, H)

    verdicts = weights(both(tmp_path, change))
    assert [name for name, verdict in verdicts.items() if verdict == "fail"] == ["layers.1.k.weight"]


def test_rows_in_another_order_are_told(tmp_path: Path) -> None:
    def change(layer: Packed) -> None:
        layer.qkv.weight[:H] = layer.qkv.weight[:H].roll(32, 0).clone()

    made = both(tmp_path, change)
    failing = [name for name, verdict in weights(made).items() if verdict == "fail"]
    assert failing == ["layers.1.q.weight"], "an order of half of the layers is no convention"
    (note,) = [note for note in made.notes if "another order" in note]
    assert "q lies in another order of rows in root.layers.1.qkv.weight" in note
    assert "rows 0-31 lie at 32-63, rows 32-63 lie at 0-31" in note


def test_a_bias_that_is_lost_is_told(tmp_path: Path) -> None:
    (note,) = [note for note in both(tmp_path, bias=False).notes if "no weight of mine holds" in note]
    assert "root.layers.0.q.bias, root.layers.0.k.bias, root.layers.0.v.bias and 3 more" in note


def test_a_bias_of_a_pack_that_is_lost_is_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = Apart()
    packed = Packed(layer)
    layer.k = nn.Linear(H, 32, bias=False)
    sides = Stack([packed]), Stack([layer])
    made = plan(*(open_dump(dumped(side, tmp_path / str(n))) for n, side in enumerate(sides)))
    (note,) = [note for note in made.notes if "no weight of mine holds" in note]
    assert "root.layers.0.qkv.bias" in note


def test_weights_that_are_one_are_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    golden = Stack([nn.Linear(H, H) for _ in range(3)])
    mine = Stack([nn.Linear(H, H) for _ in range(3)])
    state = golden.state_dict()
    mine.load_state_dict({**state, "layers.2.weight": state["layers.0.weight"]})
    made = plan(open_dump(dumped(golden, tmp_path / "g")), open_dump(dumped(mine, tmp_path / "m")))
    sentence = "root.layers.0.weight and root.layers.2.weight of mine are one weight"
    assert any(sentence in note for note in made.notes)


class Scaled(nn.Module):
    """Two gains and a constant one, under names of choice."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, gain in zip(names, (torch.randn(H), torch.randn(H), torch.ones(H))):
            self.register_parameter(name, nn.Parameter(gain))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for gain in self.parameters():
            x = x * gain
        return x


def test_a_gain_is_its_twin_under_another_name(tmp_path: Path) -> None:
    sides = Stack([Scaled(["first", "second", "third"])]), Stack([Scaled(["a", "b", "c"])])
    made = plan(*(open_dump(dumped(side, tmp_path / str(n))) for n, side in enumerate(sides)))
    names = [(pair.golden.name, pair.mine.name) for pair in made.pairs if pair.policy == "weights"]
    assert names == [("root.layers.0.first", "root.layers.0.a"), ("root.layers.0.second", "root.layers.0.b")]


@pytest.mark.parametrize("near", [0.1, 0.5, math.inf])
def test_the_nearest_row_is_what_all_distances_say(near: float) -> None:
    torch.manual_seed(2)
    target = torch.randn(3000, 8) * (0.1 + torch.rand(3000, 1))
    target[7], target[1500] = 0, target[11]
    of_target = torch.randint(len(target), (700,))
    of_target[:3] = torch.tensor((7, 1500, 11))
    rows = torch.cat([target[of_target], torch.randn(300, 8)])
    rows[3:] *= 1 + 0.03 * torch.randn(997, 8)
    distances, places = (rows.double()[:, None] - target.double()).norm(dim=2).min(1)
    places[distances > near * rows.double().norm(dim=1)] = -1
    if near == math.inf:
        places[0] = 7
    assert _nearest(rows, target, near).tolist() == places.tolist()
    assert _nearest(rows[:5], target, near).tolist() == places[:5].tolist()
