"""A network that chooses among experts in its own code: the choice is a pair, made of the router's logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.errors import NoPayload
from acc_pytest.mapping.pair import Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.mapping.views import TopPlaces

TOKENS, EXPERTS = 12, 4


class Block(nn.Module):
    """The best `best` of 4 experts for each token; with `negated` the worst."""

    def __init__(self, best: int, negated: bool = False) -> None:
        super().__init__()
        self.best, self.sign = best, -1.0 if negated else 1.0
        self.gate = nn.Linear(8, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, chosen = (self.sign * self.gate(x)).softmax(-1).topk(self.best, -1)
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                made.index_add_(0, rows, expert(x[rows]) * shares[rows, places, None])
        return made


class Network(nn.Module):
    """A block with experts between two layers of a list that has more."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.layers = nn.ModuleList((nn.Linear(8, 8), block, nn.Linear(8, 8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        for layer in self.layers:
            x = x + layer(x)
        return x


def network(best: int = 2, **options: Any) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Network(Block(best, **options))


def dumped(
    module: nn.Module, path: Path, tokens: int = TOKENS, dtype: torch.dtype = torch.float32, **options: Any
) -> Path:
    """The process folder of a run on values that bfloat16 holds; by default without what functions chose, as
    older dumps are."""
    options = {"choices": False, **options}
    given = torch.randn(tokens, 8, generator=torch.Generator().manual_seed(tokens)).bfloat16().to(dtype)
    with torch.no_grad(), register_hook(module, DumpConfig(path, **options)) as handle:
        module(given)
    return handle.dump_path


def planned(golden: Path, mine: Path) -> Plan:
    return plan(open_dump(str(golden)), open_dump(str(mine)))


def choices(made: Plan) -> list[Pair]:
    return [pair for pair in made.pairs if isinstance(pair.mine.view, TopPlaces)]


@pytest.mark.parametrize(("best", "tokens"), [(1, TOKENS), (2, TOKENS), (3, TOKENS), (1, 1), (2, 1)])
def test_the_largest_logits_are_a_pair(tmp_path: Path, best: int, tokens: int) -> None:
    """Also of one token, where each expert that ran had one row."""
    module = network(best)
    made = planned(*(dumped(module, tmp_path / name, tokens) for name in ("golden", "mine")))
    (choice,) = choices(made)
    assert (choice.mine.node, choice.mine.slot) == ("root.layers.1", "chosen")
    opened = open_pair(choice)
    logits = made.pairs[choice.order - 1].mine.refs[0].open()
    read = opened.mine.read(0, tokens * best).reshape(tokens, best)
    assert torch.equal(read, logits.topk(best, -1).indices)


def test_all_that_the_block_made_of_its_logits_depends_on_it(tmp_path: Path) -> None:
    """And nothing else; every pair still has the parents that it had."""
    module = network()
    dumps = [dumped(module, tmp_path / name) for name in ("golden", "mine")]
    made = planned(*dumps)
    (choice,) = choices(made)
    assert [pair.order for pair in made.pairs] == list(range(len(made.pairs)))
    names = [pair.mine.node for pair in made.pairs]
    assert {names[one] for one in made.parents[choice.order]} == {"root.layers.1.gate"}
    below = {names[number] for number, above in enumerate(made.parents) if choice.order in above}
    assert "root.layers.1" in below
    assert below <= {"root.layers.1", *(f"root.layers.1.experts.{number}" for number in range(EXPERTS))}
    for number, above in enumerate(made.parents):
        assert all(parent < number for parent in above), names[number]
    assert made.gaps[choice.order].module == "root.layers.1"


def test_a_list_of_layers_is_none_of_experts(tmp_path: Path) -> None:
    """Also where some of them were not dumped: two of three ran on all rows, of values wide enough."""
    dense = network()
    dense.layers[1] = nn.Identity()
    options: dict[str, Any] = {"module_list": [nn.Linear]}
    made = planned(*(dumped(dense, tmp_path / name, **options) for name in ("golden", "mine")))
    assert len(made.pairs) > 3
    assert not choices(made)


def test_experts_that_ran_on_other_values_are_not_judged_by_these(tmp_path: Path) -> None:
    """They were the worst: how often each was chosen gives it away."""
    module = network(1, negated=True)
    made = planned(*(dumped(module, tmp_path / name) for name in ("golden", "mine")))
    (choice,) = choices(made)
    with pytest.raises(NoPayload, match="did not run on the largest"):
        open_pair(choice)


def test_sides_that_chose_other_numbers_of_experts_have_no_common_choice(tmp_path: Path) -> None:
    made = planned(dumped(network(1), tmp_path / "golden"), dumped(network(2), tmp_path / "mine"))
    assert not choices(made)
