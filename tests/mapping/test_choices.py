"""Pairs of what operators chose know the tensors that were chosen from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from acc_pytest.capture.torch_hooks.config import DumpConfig
from acc_pytest.capture.torch_hooks.register import register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.errors import NoPayload
from acc_pytest.lab.demo.torchair import TorchairSpec, make_torchair_demo
from acc_pytest.mapping.choices import ChoicesAbove, ReachingChoices, with_choices
from acc_pytest.mapping.pair import Gap, Operand, Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from acc_pytest.mapping.views import TopPlaces
from acc_pytest.tensors.ref import TensorRef


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


# Which choices lie above a pair, and whether a tie there reaches one token, later ones, or later steps.


def pair(
    node: str,
    op_type: str,
    *,
    slot: str = "output[0]",
    step: int = 0,
    golden: tuple[str, str] = ("", "output[0]"),
) -> Pair:
    chosen = (TensorRef("values"),) if op_type == "TopK" else ()
    mine = Operand(node, node, op_type, slot, (), chosen_from=chosen)
    other = Operand(node, node, golden[0] or op_type, golden[1], (), chosen_from=chosen)
    return Pair(node, step, None, "op", "model", 0, 0, "name", "", other, mine)


def above(
    *pairs: Pair, parents: tuple[tuple[int, ...], ...] = (), gaps: dict[int, Gap] | None = None
) -> list[ReachingChoices]:
    """What is above each of these; by default each is computed from the one before."""
    chain = parents or ((), *((number,) for number in range(len(pairs) - 1)))
    plan = Plan("", "", "torch", "torch", "", pairs, (), (), 0, 0, 0, 0, parents=chain, gaps=gaps or {})
    found = ChoicesAbove(plan)
    return [found.of(number) for number in range(len(pairs))]


def test_a_tie_stays_with_its_token_until_attention() -> None:
    same = ReachingChoices(same=(0,))
    later = ReachingChoices(later=(0,))
    found = above(
        pair("l0.gate", "TopK"),
        pair("l0.experts", "Qwen3MoeExperts"),
        pair("l0.mlp", "Qwen3MoeSparseMoeBlock"),
        pair("l1.input_layernorm", "Qwen3MoeRMSNorm"),
        pair("l1.self_attn.c_attn", "Conv1D"),
        pair("l1.self_attn.o_proj", "Linear", slot="input[0]"),
        pair("l1.self_attn.o_proj", "Linear"),
        pair("l1.mlp.down_proj", "Linear"),
        gaps={5: Gap("l1.self_attn", ("q_proj",), "o_proj")},
    )
    assert found == [ReachingChoices(), same, same, same, same, later, later, later]


def test_the_layer_of_the_router_gives_its_own_token_and_the_layer_before_all_later_ones() -> None:
    pairs = (pair("l.0.mlp.gate", "TopK"), pair("l.0", "MoeDecoderLayer"), pair("l.1", "MoeDecoderLayer"))
    assert above(*pairs) == [ReachingChoices(), ReachingChoices(same=(0,)), ReachingChoices(later=(0,))]


@pytest.mark.parametrize(
    "op_type", ["SelfAttentionOperation", "PagedAttentionOperation", "BatchMatMul", "Unheard"]
)
def test_what_mine_computes_decides_and_not_what_reads_it_in_golden(op_type: str) -> None:
    attention = pair("2_Layer/4_x", op_type, golden=("Linear", "input[0]"))
    assert above(pair("2_Layer/1_TopK", "TopK"), attention)[1] == ReachingChoices(later=(0,))


def test_later_steps_are_reached_as_a_whole_and_a_choice_hides_what_is_above_it() -> None:
    found = above(
        pair("gate", "TopK"),
        pair("k_proj", "Linear"),
        pair("self_attn", "Attention", step=1),
        pair("other_gate", "TopK", step=1),
        pair("experts", "Experts", step=1),
    )
    assert found[2:] == [ReachingChoices(every=(0,)), ReachingChoices(every=(0,)), ReachingChoices(same=(3,))]


def test_a_plan_without_choices_has_nothing_above() -> None:
    assert above(pair("a", "Linear"), pair("b", "Attention")) == [ReachingChoices(), ReachingChoices()]


# A network that chooses among experts in its own code: the choice is a pair, made of the router's logits.


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
