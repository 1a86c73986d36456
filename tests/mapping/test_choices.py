"""Pairs of what operators chose know the tensors that were chosen from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest.capture.torch_hooks.config import DumpConfig
from acc_pytest.capture.torch_hooks.register import register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.choices import with_choices
from acc_pytest.mapping.pair import Pair
from acc_pytest.mapping.planner import plan


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Pairs of GE against FX by their ids, of the second step."""
    paths = make_torchair_demo(tmp_path_factory.mktemp("ge"), TorchairSpec(tokens=(3,), steps=2))
    made = plan(open_dump(str(paths.golden)), open_dump(str(paths.mine)))
    return {pair.id: pair for pair in made.pairs if pair.step == 1}


@pytest.mark.parametrize("name", ["TopKV2[1]", "Cast_2[in0]", "Cast_2"])
def test_indices_and_what_hands_them_on_know_the_values_of_their_own_step(
    pairs: dict[str, Pair], name: str
) -> None:
    pair, values = pairs[name], pairs["TopKV2[in0]"]
    assert pair.golden.chosen_from[0].open().equal(values.golden.refs[0].open())
    assert pair.mine.chosen_from == values.mine.refs


def test_values_and_all_other_tensors_have_none(pairs: dict[str, Pair]) -> None:
    found = {name for name, pair in pairs.items() if pair.golden.chosen_from or pair.mine.chosen_from}
    assert found == {"TopKV2[1]", "Cast_2[in0]", "Cast_2"}


class Chooses(nn.Module):
    """Functions that choose, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.up(x)
        return torch.topk(y, 2).indices, y.argmax(-1), torch.sort(y).indices, y.max(-1).values.long()


def test_functions_of_torch_that_choose(tmp_path: Path) -> None:
    model = Chooses()
    for side in ("golden", "mine"):
        with register_hook(model, DumpConfig(tmp_path / side, mode="api")):
            model(torch.eye(4))
    made = plan(open_dump(str(tmp_path / "golden")), open_dump(str(tmp_path / "mine")))
    found = [pair.id.split(".")[-1] for pair in made.pairs if pair.mine.chosen_from]
    assert found == ["topk[1]", "argmax", "sort[1]", "max[1]"]


class Router(nn.Module):
    """A module that returns what it chose, and what from."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = nn.functional.linear(x, self.weight)
        return logits, torch.topk(logits, 2).indices


@pytest.mark.parametrize("chooses", [True, False])
def test_what_a_module_chose_from_may_be_any_other_of_its_tensors(tmp_path: Path, chooses: bool) -> None:
    """Where neither side is known to choose, an integer is an integer."""
    router = Router()
    with register_hook(router, DumpConfig(tmp_path, mode=["module", "api"])):
        logits = router(torch.eye(4))[0]
    dump = open_dump(str(tmp_path))
    made = plan(dump, dump)
    (function,) = [pair for pair in made.pairs if pair.mine.op_type == "topk" and pair.mine.chosen_from]
    (module,) = [pair for pair in made.pairs if pair.mine.slot == "output[1]" and pair is not function]
    mine = function.mine if chooses else module.mine
    golden = replace(module.golden, chosen_from=())
    mixed = with_choices(replace(made, pairs=(replace(module, golden=golden, mine=mine),)), dump, dump)
    found = [ref.open().tolist() for ref in mixed.pairs[0].golden.chosen_from]
    assert (logits.tolist() in found) is chooses
