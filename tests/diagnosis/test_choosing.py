"""What a function of a dump of modules chose, held against what it was given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.diagnosis.recomputation import LOOKING
from acc_pytest.diagnosis.recompute_torch import TorchRecomputer, function_of
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan

Choose = Callable[[torch.Tensor], Any]


class Chooses(nn.Module):
    """Hands on what it chose."""

    def __init__(self, choose: Choose) -> None:
        super().__init__()
        self.choose = choose
        self.last = nn.Identity()

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.choose(x))


def outcomes(
    path: Path, choose: Choose, device: contextlib.AbstractContextManager[Any] | None = None
) -> dict[str, tuple[str, str]]:
    """Outcome and reason of all that the choosing function gave, by slot."""
    model = Chooses(choose)
    given = torch.randn(6, 5, generator=torch.Generator().manual_seed(2))
    for side in ("golden", "mine"):
        run = (device if side == "mine" else None) or contextlib.nullcontext()
        with torch.no_grad(), run, register_hook(model, DumpConfig(path / side, run_name="r")):
            model(given)
    made = plan(open_dump(str(path / "golden")), open_dump(str(path / "mine")))
    computer = TorchRecomputer(open_dump(made.mine_root), made.pairs, nn.Module(), LOOKING)
    found = {}
    for number, pair in enumerate(made.pairs):
        if function_of(pair.mine.node) and pair.mine.slot.startswith("output"):
            outcome = computer.of_pair(number)
            found[pair.mine.slot] = outcome.outcome, outcome.why
    return found


@pytest.mark.parametrize(
    ("choose", "slots"),
    [
        (lambda x: torch.topk(x, 2).values, {"output[0]", "output[1]"}),
        (lambda x: x.topk(5, dim=0).indices, {"output[0]", "output[1]"}),
        (lambda x: x.argmax(-1), {"output[0]"}),
        (lambda x: x.max(-1).values, {"output[0]", "output[1]"}),
        (lambda x: torch.max(x, 0, keepdim=True)[0], {"output[0]", "output[1]"}),
        (lambda x: x.masked_fill(x < 0.5, -torch.inf).topk(2)[0], {"output[0]", "output[1]"}),
        (lambda x: torch.argmax(x, dim=-1, keepdim=True), {"output[0]"}),
    ],
)
def test_the_best_places_and_their_values_are_right(tmp_path: Path, choose: Choose, slots: set[str]) -> None:
    assert outcomes(tmp_path, choose) == dict.fromkeys(slots, ("right", ""))


def test_of_the_smallest_nothing_is_said(tmp_path: Path) -> None:
    """Whether they were asked for is in no dump."""
    found = outcomes(tmp_path, lambda x: x.topk(2, largest=False).values)
    assert [outcome for outcome, _ in found.values()] == ["", ""]
    assert all("chose the smallest" in why for _, why in found.values())


class Spoiled(torch.overrides.TorchFunctionMode):
    """A device whose `topk` is wrong."""

    def __init__(self, spoil: Callable[[Any], Any]) -> None:
        super().__init__()
        self._spoil = spoil

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return self._spoil(result) if func.__name__ == "topk" else result


@pytest.mark.parametrize(
    ("spoil", "slots", "said"),
    [
        (lambda made: (made[0], made[1].flip(0)), {"output[0]", "output[1]"}, "are not the best"),
        (lambda made: (made[0] + 1, made[1]), {"output[0]"}, "not those at the places"),
        (lambda made: (made[0], made[1] + 5), {"output[0]", "output[1]"}, "places that there are not"),
    ],
)
def test_other_places_and_values_are_wrong(
    tmp_path: Path, spoil: Callable[[Any], Any], slots: set[str], said: str
) -> None:
    found = outcomes(tmp_path, lambda x: x.topk(2)[0], Spoiled(spoil))
    assert {slot for slot, (outcome, _) in found.items() if outcome == "wrong"} >= slots, found
    assert any(said in why for _, why in found.values()), found


@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("root.mlp.topk", "topk"),
        ("root.mlp.topk.2", "topk"),
        ("root.argmax.11", "argmax"),
        ("root.mlp.gate", ""),
        ("root.topk.gate", ""),
        ("root.layers.2", ""),
    ],
)
def test_calls_are_known_by_their_paths(path: str, function: str) -> None:
    assert function_of(path) == function
