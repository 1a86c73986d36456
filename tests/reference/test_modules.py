"""Modules of torch computed again by the golden model's, each on what the one of mine was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn

from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.pair import Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.reference.modules import TorchRecomputer
from acc_pytest.reference.recomputation import LOOKING, Recomputation, RecomputeBudget
from acc_pytest.running.causes import outlines_for, recomputer_for
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings
from tests.mapping.data_parallel import FAULTY, Run
from tests.newer import gloo_sums_bfloat16

WIDTH = 32
IDS = torch.arange(12).reshape(1, 12) * 5 % 17
Spoil = Callable[[Any], object]


class Norm(nn.Module):
    """Its type of weights is its own, and so is that of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, WIDTH))
        self.register_buffer("eps", torch.tensor(1e-6))
        self.eps: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * wide).to(x.dtype)


class Weigh(nn.Module):
    """No tensor of its own; it is handed a pair, a mask by name and a flag, and gives a tuple with a hole."""

    def forward(
        self,
        queries: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        *,
        mask: torch.Tensor | None = None,
        causal: bool = False,
    ) -> tuple[torch.Tensor, None, torch.Tensor]:
        turned = queries * rotation[0] + queries.roll(1, -1) * rotation[1]
        scores = turned @ turned.transpose(1, 2) / WIDTH
        if causal:
            assert mask is not None
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        return weights @ queries, None, weights


class Layer(nn.Module):
    """One projection that is called twice, a norm, and a module with a result of several."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.weigh = Norm(), Weigh()
        self.project, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.scale = 1.0

    def forward(self, x: torch.Tensor, mask: torch.Tensor, rotation: Any) -> dict[str, torch.Tensor]:
        queries = self.project(self.norm(x))
        found, _, weights = self.weigh(queries, rotation, mask=mask, causal=True)
        x = x + self.project(found) * self.scale
        return {"hidden": x + self.down(x), "weights": weights}


class Model(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, WIDTH)
        self.layers: Any = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 17, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(input_ids)
        length = input_ids.shape[1]
        angles = torch.arange(length)[:, None] / torch.arange(1, WIDTH + 1)
        rotation = angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        for layer in self.layers:
            hidden = layer(hidden, mask, rotation)["hidden"]
        return self.head(hidden)


def make(layers: int = 2) -> Model:
    """Weights that bfloat16 holds exactly."""
    torch.manual_seed(3)
    model = Model(layers)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return model.eval()


def no_change(model: Model) -> None: ...


@dataclass
class Dumps:
    """Golden, and runs of mine in bfloat16 with or without a mistake."""

    directory: Path

    def dump(
        self, name: str, spoil: Spoil = no_change, dtype: torch.dtype = torch.bfloat16, **how: Any
    ) -> Path:
        model = make().to(dtype)
        spoil(model)
        with torch.no_grad(), register_hook(model, DumpConfig(self.directory / name, **how)):
            model(IDS)
        return self.directory / name

    def recomputed(
        self, mine: Path, model: nn.Module | None = None, budget: RecomputeBudget = LOOKING
    ) -> Recomputed:
        """The recomputer of a dump of mine, and the pairs by their names."""
        pairs = plan(open_dump(str(self.directory / "golden")), open_dump(str(mine))).pairs
        return Recomputed(TorchRecomputer(open_dump(str(mine)), pairs, model or make(), budget), pairs)


class Recomputed(NamedTuple):
    recomputer: TorchRecomputer
    pairs: Sequence[Pair]

    def number(self, node: str, slot: str = "output[0]") -> int:
        names = [(pair.mine.node, pair.mine.slot) for pair in self.pairs]
        return names.index((f"root.{node}", slot))

    def of(self, node: str, slot: str = "output[0]") -> Recomputation:
        return self.recomputer.of_pair(self.number(node, slot))

    def all(self) -> Mapping[str, Recomputation]:
        """The outcome of every tensor that the run was not fed."""
        return {
            f"{pair.mine.node.removeprefix('root.')} {pair.mine.slot}": self.recomputer.of_pair(number)
            for number, pair in enumerate(self.pairs)
            if not pair.fed
        }

    def wrong(self) -> list[str]:
        return [name for name, found in self.all().items() if found.outcome == "wrong"]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Dumps:
    dumps = Dumps(tmp_path_factory.mktemp("modules"))
    dumps.dump("golden", dtype=torch.float32)
    dumps.dump("right")
    return dumps


def test_of_a_right_port_every_tensor_is_right(dumps: Dumps) -> None:
    found = dumps.recomputed(dumps.directory / "right").all()
    assert {one.outcome for one in found.values()} == {"right"}, found
    assert {"layers.1.project output[0]", "layers.1.project.call1 output[0]"} <= found.keys()
    assert {"layers.0 output[hidden]", "layers.0 output[weights]"} <= found.keys()
    of_weigh = found["layers.0.weigh output[0]"]
    assert of_weigh.noise is not None
    assert of_weigh.allowed is not None
    assert 0 < of_weigh.noise < of_weigh.allowed < 0.05
    assert "golden's module in bfloat16 against float32" in of_weigh.reason


FAULTS: Mapping[str, tuple[Spoil, str]] = {
    "a weight": (lambda model: model.layers[1].down.weight.data.mul_(1.02), "layers.1.down output[0]"),
    "code": (lambda model: setattr(model.layers[0], "scale", 1.04), "layers.0.down input[0]"),
    "a module": (
        lambda model: model.layers[1].weigh.register_forward_hook(_scaled), "layers.1.weigh output[0]",
    ),
    "a type": (
        lambda model: model.layers[1].norm.register_forward_hook(_rounded), "layers.1.norm output[0]",
    ),
}  # fmt: skip


def _scaled(module: object, given: object, result: Any) -> Any:
    return result[0] * 1.04, result[1], result[2]


def _rounded(module: object, given: object, result: torch.Tensor) -> torch.Tensor:
    return (result * 8).round() / 8


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_where_it_is_and_nowhere_else(name: str, dumps: Dumps) -> None:
    spoil, place = FAULTS[name]
    wrong = dumps.recomputed(dumps.dump(name, spoil, weight_digest=False)).wrong()
    assert wrong[:1] == [place]
    assert all(other.startswith(place.partition(" ")[0].rpartition(".")[0]) for other in wrong)


def test_what_a_call_is_given_is_made_by_the_call_around_it(dumps: Dumps) -> None:
    """Both calls of a projection are told apart, and an input is as right as the code that hands it on."""

    def spoil(model: Any) -> None:
        model.layers[1].scale = 1.04

    mine = dumps.recomputed(dumps.dump("handed", spoil))
    assert mine.wrong() == ["layers.1.down input[0]", "layers.1 output[hidden]"]
    assert mine.of("layers.1.project.call1").outcome == "right"


def test_all_outputs_of_a_module_are_asked_for_at_once(dumps: Dumps) -> None:
    mine = dumps.recomputed(dumps.dump("outputs", FAULTS["a module"][0]))
    number = mine.number("layers.0.weigh")
    assert mine.recomputer.of_operator(number, "root.layers.1.weigh").outcome == "wrong"
    assert mine.recomputer.of_operator(number, "root.layers.1.weigh") == mine.of("layers.1.weigh")
    assert mine.recomputer.of_operator(number, "root.layers.0.weigh").outcome == "right"
    assert mine.recomputer.of_operator(number, "root.nowhere").why == "root.nowhere did not run"
    assert mine.recomputer.of_golden(number) == Recomputation("right", 0.0)
    assert mine.recomputer.unlike(number, "root.layers.1.weigh") == ""


def test_what_the_run_was_fed_is_not_computed(dumps: Dumps) -> None:
    mine = dumps.recomputed(dumps.directory / "right")
    fed = [number for number, pair in enumerate(mine.pairs) if pair.fed]
    assert fed
    assert {mine.recomputer.of_pair(number).why for number in fed} == {"it is what the run was fed"}
    pairs = [replace(pair, fed="") for pair in mine.pairs]
    unsaid = TorchRecomputer(open_dump(str(dumps.directory / "right")), pairs, make(), LOOKING)
    said = {unsaid.of_pair(number).why for number in fed}
    assert "input[0] of root is what the run was fed" in said
    assert any(why.endswith("is no tensor of a module") for why in said), "weights"


def test_weights_and_buffers_are_rounded_as_those_of_mine_are(dumps: Dumps) -> None:
    """A norm in float32 inside of a model in bfloat16: its weight is no number of bfloat16."""

    def spoil(model: Any) -> None:
        for layer in model.layers:
            layer.norm.float()

    golden = make()
    for layer in golden.layers:
        layer.norm.weight.data = torch.linspace(0.501, 1.999, WIDTH)

    def with_weights(model: Any) -> None:
        spoil(model)
        for mine, layer in zip(model.layers, golden.layers):
            mine.norm.weight.data = layer.norm.weight.data.clone()

    mine = dumps.recomputed(dumps.dump("norms", with_weights), golden)
    assert mine.wrong() == []
    own = mine.of("layers.0.norm")
    assert own.noise == pytest.approx(2**-9, rel=0.7), "only its result is rounded"


def test_a_product_in_two_rounded_halves_is_right(dumps: Dumps) -> None:
    """Halves that nearly cancel: rounding each of them is far more than rounding their sum."""

    def cancelling(model: Any) -> None:
        with torch.no_grad():
            for layer in model.layers:
                half = WIDTH // 2
                layer.norm.weight[half:] = layer.norm.weight[:half]
                layer.project.weight[:, half:] = -layer.project.weight[:, :half] * 1.03125

    def in_halves(module: nn.Linear, given: Any, result: object) -> torch.Tensor:
        half = module.in_features // 2
        parts = given[0][..., :half], given[0][..., half:]
        weights = module.weight[:, :half], module.weight[:, half:]
        return sum(
            (part @ weight.T for part, weight in zip(parts, weights)), torch.zeros((), dtype=parts[0].dtype)
        )

    def spoil(model: Any) -> None:
        cancelling(model)
        model.layers[0].project.register_forward_hook(in_halves)

    golden = make()
    cancelling(golden)
    found = dumps.recomputed(dumps.dump("halves", spoil), golden).of("layers.0.project")
    assert found.outcome == "right"


# ---- what keeps a module from being computed --------------------------------------------------------


def test_a_module_that_the_model_lacks_or_calls_less_often_is_said(dumps: Dumps) -> None:
    mine = dumps.directory / "right"
    smaller = dumps.recomputed(mine, make(1))
    said = smaller.of("layers.1", "output[hidden]").why
    assert "golden's model has no module root.layers.1" in said
    assert smaller.of("layers.0", "output[hidden]").outcome == "right"

    def once(self: Any, x: torch.Tensor, mask: torch.Tensor, rotation: Any) -> dict[str, torch.Tensor]:
        found, _, weights = self.weigh(self.project(self.norm(x)), rotation, mask=mask, causal=True)
        return {"hidden": x + self.down(x + found), "weights": weights}

    other = make()
    other.layers[0].forward = once.__get__(other.layers[0])
    found = dumps.recomputed(mine, other)
    said = "the model of --acc-model does not call root.layers.0.project.call1 there"
    assert said in found.of("layers.0.project.call1").why
    assert found.of("layers.0", "output[hidden]").outcome == "wrong"


def test_a_model_that_calls_a_module_more_often_is_said(dumps: Dumps) -> None:
    other = make()
    layer = other.layers[0]
    forward = layer.forward

    def twice(*args: Any, **kwargs: Any) -> Any:
        layer.norm(args[0])
        return forward(*args, **kwargs)

    layer.forward = twice
    said = dumps.recomputed(dumps.directory / "right", other).of("layers.0", "output[hidden]").why
    assert (
        "the model of --acc-model calls root.layers.0.norm in root.layers.0 more often than mine did" in said
    )
    assert layer.forward is twice, "the model is left as it was"


def test_an_input_that_was_not_dumped_is_said(dumps: Dumps) -> None:
    mine = dumps.recomputed(dumps.dump("outputs alone", tensor_part=1))
    assert mine.of("layers.0.norm").why == "input[2][1] of root.layers.0 was not dumped"
    assert mine.of("layers.0.norm").outcome == ""


def test_inputs_that_nobody_hands_on_are_bound_by_name(dumps: Dumps) -> None:
    """Of a module that is dumped alone, golden's code tells nothing: its inputs have to be enough."""
    alone = dumps.recomputed(dumps.dump("alone", module_list=["Norm"]))
    assert alone.wrong() == []
    assert alone.of("layers.1.norm").outcome == "right"
    more = dumps.recomputed(dumps.dump("alone too", module_list=["Norm"], tensor_part=1))
    assert more.of("layers.1.norm").why == "input[0] of root.layers.1.norm was not dumped"


def test_a_module_of_too_many_elements_is_left_out(dumps: Dumps) -> None:
    mine = dumps.recomputed(dumps.directory / "right", budget=RecomputeBudget(2 * IDS.numel() * WIDTH - 1))
    assert mine.of("layers.0.down").why == (
        "it has 768 elements, and of more than 767 none is computed again"
    )
    enough = dumps.recomputed(dumps.directory / "right", budget=RecomputeBudget(2 * IDS.numel() * WIDTH))
    assert enough.of("layers.0.down").outcome == "right"


def test_where_golden_fails_only_modules_that_take_just_what_was_dumped_are_computed(dumps: Dumps) -> None:
    """`weigh` has four parameters and four dumped tensors, but two of these are one argument, and no tensor
    says what the fourth was."""
    other = make()
    other.layers[0].weigh.forward = lambda *args, **kwargs: 1 / 0
    found = dumps.recomputed(dumps.directory / "right", other)
    for layer in range(2):
        assert "ZeroDivisionError" in found.of(f"layers.{layer}.weigh").why
        assert found.of(f"layers.{layer}.norm").outcome == "right"


def test_what_golden_called_before_it_failed_is_computed(dumps: Dumps) -> None:
    """A network that ran without its last part (a pooler) is outlined with it."""
    other: Any = make()
    forward = other.forward
    other.forward = lambda input_ids: forward(input_ids).missing
    assert dumps.recomputed(dumps.directory / "right", other).of("layers.1.weigh").outcome == "right"


# Modules of several ranks computed again, each as its own rank of golden outlines them.


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
    gloo_sums_bfloat16()
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
                model = ShardedLayer().bfloat16().to(dtype)
                with torch.no_grad(), register_hook(model, config):
                    model(x.to(dtype))
        return str(home / "golden"), str(home / "mine")


class ShardedLayer(nn.Module):
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
