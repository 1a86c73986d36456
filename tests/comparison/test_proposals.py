"""Pairs that are proposed by equal values, and the mapping file that they go into."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.cli import main
from acc_pytest.comparison.proposals import Proposal, proposals
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan

X = torch.linspace(-1, 1, 24).reshape(3, 8)


class Shift(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return (x * 1.5 + self.by).sin()


class Chain(nn.Module):
    """Modules one after the other, by their names."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        for module in self.children():
            x = module(x)
        return x


def dumped(folder: Path, model: nn.Module, dtype: torch.dtype = torch.float32) -> str:
    with torch.no_grad(), register_hook(model.to(dtype), DumpConfig(folder, run_name="run")):
        model(X.to(dtype))
    return str(folder / "run")


def proposed(golden: str, mine: str) -> list[Proposal]:
    sides = open_dump(golden), open_dump(mine)
    return proposals(*sides, plan(*sides))


def names(found: list[Proposal]) -> list[tuple[str, str]]:
    return [(each.golden[0], each.mine[0]) for each in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_values_between_pairs_that_agree_are_proposed(tmp_path: Path, dtype: torch.dtype) -> None:
    golden = dumped(tmp_path / "g", Chain(first=Shift(1), old=Shift(2), gone=Shift(3), last=Shift(4)))
    mine = dumped(tmp_path / "m", Chain(first=Shift(1), new=Shift(2), come=Shift(3), last=Shift(4)), dtype)
    found = proposed(golden, mine)
    assert names(found) == [("root.old", "root.new"), ("root.gone", "root.come")]
    assert found[0].between == ("root.first", "root.last")
    assert all(each.error <= each.allowed for each in found)


def test_other_values_are_not_proposed(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "g", Chain(first=Shift(1), old=Shift(2), last=Shift(4)))
    mine = dumped(tmp_path / "m", Chain(first=Shift(1), new=Shift(2.1), last=Shift(4)))
    assert proposed(golden, mine) == []


def test_values_that_stand_twice_are_not_proposed(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "g", Chain(first=Shift(1), old=Shift(2), copy=nn.Identity(), last=Shift(4)))
    mine = dumped(tmp_path / "m", Chain(first=Shift(1), new=Shift(2), last=Shift(4)))
    assert proposed(golden, mine) == []


def test_nothing_is_proposed_beside_a_pair_that_disagrees(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "g", Chain(first=Shift(1), old=Shift(2), last=Shift(4)))
    mine = dumped(tmp_path / "m", Chain(first=Shift(1), new=Shift(2), last=Shift(5)))
    assert proposed(golden, mine) == []


def test_nothing_is_proposed_in_another_order(tmp_path: Path) -> None:
    class Crossed(Chain):
        def forward(self, x: Tensor) -> Tensor:
            first, other, last = self.children()
            other(first(X.to(x.dtype)))
            return last(first(X.to(x.dtype)))

    golden = dumped(tmp_path / "g", Crossed(first=Shift(1), old=Shift(2), last=Shift(4)))
    mine = dumped(tmp_path / "m", Chain(new=Shift(0), first=Shift(1), last=Shift(4)))
    assert proposed(golden, mine) == []


def test_a_constant_is_no_evidence(tmp_path: Path) -> None:
    class Zeros(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros_like(x)

    golden = dumped(tmp_path / "g", Chain(first=Shift(1), old=Zeros()))
    mine = dumped(tmp_path / "m", Chain(first=Shift(1), new=Zeros()))
    assert proposed(golden, mine) == []


def test_acc_map_writes_what_it_proposes_and_a_comparison_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = dumped(tmp_path / "g", Chain(first=Shift(1), old=Shift(2), last=Shift(4)))
    mine = dumped(tmp_path / "m", Chain(first=Shift(1), new=Shift(2), last=Shift(4)))
    file = tmp_path / "op_mapping_file.json"
    file.write_text(json.dumps({"MyType": "Linear"}))
    assert main(["map", "-gp", golden, "-mp", mine, "--write", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "root.new output[0] = root.old output[0]  [values 0 apart" in printed
    assert "1 of them are in" in printed
    assert json.loads(file.read_text()) == {"root.new_output_0": ["root.old_output_0"], "MyType": ["Linear"]}
    made = plan(open_dump(golden), open_dump(mine), op_mapping_file=str(file))
    assert ("root.old", "root.new") in [(pair.golden.node, pair.mine.node) for pair in made.pairs]


def test_a_mapping_file_that_is_none_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = dumped(tmp_path / "g", Chain(first=Shift(1), old=Shift(2), last=Shift(4)))
    mine = dumped(tmp_path / "m", Chain(first=Shift(1), new=Shift(2), last=Shift(4)))
    file = tmp_path / "notes.json"
    file.write_text("[1, 2]")
    assert main(["map", "-gp", golden, "-mp", mine, "--write", str(file)]) != 0
    assert "must hold one JSON object" in " ".join(capsys.readouterr().err.split())
    assert file.read_text() == "[1, 2]"
