"""Modules of several ranks computed again, each as its own rank of golden outlines them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.diagnosis.recomputation import Recomputation
from acc_pytest.mapping.pair import Plan
from acc_pytest.running.causes import outlines_for, recomputer_for
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings
from tests.mapping.data_parallel import FAULTY, Run

Found = dict[tuple[str, "int | None"], Recomputation]
"""What is found of the result of each module, by its name and rank."""
RUN = "msit_dump_20250101_000000"


def planned(golden: str, mine: str, **options: Any) -> tuple[Settings, Plan]:
    settings = Settings.from_values({"golden": golden, "mine": mine, **options})
    return settings, make_plan(settings)


def results(plan: Plan) -> dict[int, tuple[str, int | None]]:
    return {
        number: (pair.mine.node.removeprefix("root."), pair.rank)
        for number, pair in enumerate(plan.pairs)
        if not pair.fed and pair.mine.slot == "output[0]"
    }


def found(golden: str, mine: str, **options: Any) -> Found:
    settings, plan = planned(golden, mine, **options)
    computer = recomputer_for(settings, plan, outlines_for(settings, plan))
    return {place: computer.of_pair(number) for number, place in results(plan).items()}


def test_a_result_of_one_rank_that_is_a_tenth_too_large_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = Run(ranks=2, faulty=1, factor=1.1).dumped(tmp_path, monkeypatch)
    outcomes = found(*dumps)
    wrong = {place: one.error for place, one in outcomes.items() if one.outcome == "wrong"}
    assert wrong == {(FAULTY, 1): pytest.approx(0.1, abs=2**-8)}, "and a rounding of bfloat16"
    assert {module for (module, _), one in outcomes.items() if not one.outcome} == {"embed"}
    alone = found(*dumps, rank="1")
    assert {module for (module, _), one in alone.items() if one.outcome == "wrong"} == {FAULTY}


def test_each_rank_is_held_to_weights_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = found(*Parallel().dumped(tmp_path, monkeypatch))
    assert {one.outcome for (module, _), one in outcomes.items() if module != "down"} == {"right"}
    assert {rank for _, rank in outcomes} == {0, 1}


def test_weights_of_another_rank_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = found(*Parallel(order=(0, 0)).dumped(tmp_path, monkeypatch))
    assert {place for place, one in outcomes.items() if one.outcome == "wrong"} == {("up", 1), ("down", 1)}


def test_a_sum_over_ranks_is_not_computed_again(
    group: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = found(*Parallel().dumped(tmp_path, monkeypatch))
    for rank in (0, 1):
        assert outcomes["down", rank].outcome == ""
        assert "the code of root.down cannot be run again" in outcomes["down", rank].why


def test_what_several_ranks_make_up_is_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, plan = planned(*Run(ranks=2, faulty=1).dumped(tmp_path, monkeypatch))
    outlines = outlines_for(settings, plan)
    both = [number for number, (module, _) in results(plan).items() if module == "head"]
    first, second = (plan.pairs[number] for number in both)
    together = replace(first.golden, refs=(*first.golden.refs, *second.golden.refs))
    joined = replace(plan, pairs=(replace(first, golden=together),))
    unknown = recomputer_for(settings, joined, outlines).of_pair(0)
    assert unknown == Recomputation(why="it is compared with what several ranks of golden make up")
    assert outlines_for(settings, joined) == ()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Parallel:
    """Two ranks, each with weights of its own; those of mine have the weights of the ranks in `order`."""

    def __init__(self, order: tuple[int, int] = (0, 1)) -> None:
        self._order = order

    def dumped(self, home: Path, patch: pytest.MonkeyPatch) -> tuple[str, str]:
        x = torch.randn(12, 8, generator=torch.Generator().manual_seed(3)).bfloat16()
        for side, dtype, order in (("golden", torch.float32, (0, 1)), ("mine", torch.bfloat16, self._order)):
            for rank, share in enumerate(order):
                patch.setenv("RANK", str(rank))
                patch.setenv("WORLD_SIZE", "2")
                torch.manual_seed(share)
                config = DumpConfig(str(home / side), run_name=RUN, process_name=f"cpu_{rank + 1}")
                model = Layer().bfloat16().to(dtype)
                with torch.no_grad(), register_hook(model, config):
                    model(x.to(dtype))
        return str(home / "golden"), str(home / "mine")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), RowParallel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.down(self.act(self.up(x)))
        return made


class RowParallel(nn.Module):
    """A summand on each rank, added up at once where ranks can talk."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = nn.functional.linear(x, self.weight)
        if dist.is_initialized():
            dist.all_reduce(made)
        return made
