"""What comes from the step before: states that a model returned and is called with again, and caches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps.torch_model import outline_of
from acc_pytest.reference.golden_model.calls import ModuleCall, starts_at_zero
from acc_pytest.reference.modules import OutlinedRecomputer
from acc_pytest.reference.recomputation import LOOKING, Recomputation
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings
from acc_pytest.tensors.ref import TensorRef


class Recurrence(nn.Module):
    """Hands its state on; `scale` is 1 in a right one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 32, bias=False)
        self.scale = 1.0

    def forward(self, x: torch.Tensor, state: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        kept = torch.zeros_like(x) if state is None else state
        made = torch.tanh(self.gate(x)) + 0.5 * kept
        return {"shares": made.softmax(-1), "state": made * self.scale}


def dump(path: Path, dtype: torch.dtype, *, scale: float = 1.0, fed: float = 1.0) -> Path:
    """The process folder of two steps; the state of the first is `fed` times itself at the second."""
    model = Recurrence()
    generator = torch.Generator().manual_seed(6)
    model.gate.weight.data = torch.randn(32, 32, generator=generator).bfloat16().float()
    model.scale = scale
    x = torch.randn(12, 32, generator=generator).bfloat16().to(dtype)
    model = model.to(dtype)
    with torch.no_grad(), register_hook(model, DumpConfig(path, range(2))) as handle:
        model(x, state=model(x)["state"] * fed)
    return handle.dump_path


def of_state(golden: Path, mine: Path) -> Recomputation:
    """What is found of the state that the second step was called with."""
    plan = make_plan(Settings.from_values({"golden": str(golden), "mine": str(mine)}))
    (number,) = (number for number, pair in enumerate(plan.pairs) if pair.fed == "cache")
    assert plan.pairs[number].mine.slot == "input[state]"
    outline = outline_of(golden)
    assert outline is not None
    return OutlinedRecomputer(plan, outline, replace(LOOKING, measured=True)).of_pair(number)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("golden"), torch.float32)


def test_it_is_as_right_as_what_returned_it(golden: Path, tmp_path: Path) -> None:
    assert of_state(golden, dump(tmp_path / "right", torch.bfloat16)).outcome == "right"
    wrong = of_state(golden, dump(tmp_path / "wrong", torch.bfloat16, scale=1.02))
    assert wrong.outcome == "wrong"
    assert wrong.error == pytest.approx(0.02, abs=2**-8), "and a rounding of bfloat16"


def test_of_another_state_nothing_is_known(golden: Path, tmp_path: Path) -> None:
    found = of_state(golden, dump(tmp_path / "other", torch.bfloat16, fed=2.0))
    assert (found.outcome, found.why) == ("", "it is what the run was fed")


class Layer:
    keys: torch.Tensor
    values: torch.Tensor


class GrowingCache:
    """A cache as transformers has them: its layer has keys and values, which grow."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.layers:
            self.layers.append(Layer())
            self.layers[0].keys, self.layers[0].values = keys, values
        else:
            layer = self.layers[0]
            layer.keys = torch.cat([layer.keys, keys], 0)
            layer.values = torch.cat([layer.values, values], 0)
        return self.layers[0].keys, self.layers[0].values


class Attention(nn.Module):
    """`scale` is 1 in a right one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_idx = 0
        self.key, self.value = (nn.Linear(32, 32, bias=False) for _ in range(2))
        self.scale = 1.0

    def forward(self, x: torch.Tensor, past_key_values: GrowingCache) -> torch.Tensor:
        keys, values = past_key_values.update(self.key(x), self.value(x).tanh() * self.scale)
        return (x @ keys.T).softmax(-1) @ values


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        generator = torch.Generator().manual_seed(9)
        for one in (self.attention.key, self.attention.value):
            one.weight.data = torch.randn(32, 32, generator=generator).bfloat16().float()

    def forward(self, x: torch.Tensor, past_key_values: GrowingCache) -> torch.Tensor:
        made: torch.Tensor = x + self.attention(x, past_key_values=past_key_values)
        return made


def decoded(path: Path, dtype: torch.dtype, *, scale: float = 1.0) -> Path:
    """The process folder of a prompt and a decode step."""
    model = Decoder().to(dtype)
    x = torch.randn(12, 32, generator=torch.Generator().manual_seed(3)).bfloat16().to(dtype)
    cache = GrowingCache()
    with torch.no_grad(), register_hook(model, DumpConfig(path, range(2))) as handle:
        model(x, past_key_values=cache)
        model.attention.scale = scale
        model(x[:1], past_key_values=cache)
    return handle.dump_path


def test_a_decode_step_is_computed_with_the_cache_that_mine_had(tmp_path: Path) -> None:
    """One value of thirteen is 3 % too large: the result, which hardly looks at it, shows nothing."""
    golden = decoded(tmp_path / "golden", torch.float32)
    outline = outline_of(golden)
    assert outline is not None
    for name, scale in (("right", 1.0), ("wrong", 1.03)):
        mine = decoded(tmp_path / name, torch.bfloat16, scale=scale)
        plan = make_plan(Settings.from_values({"golden": str(golden), "mine": str(mine)}))
        computer = OutlinedRecomputer(plan, outline, replace(LOOKING, measured=True))
        found = {
            (pair.step, pair.mine.slot): computer.of_pair(number).outcome
            for number, pair in enumerate(plan.pairs)
            if pair.mine.node == "root.attention" and pair.mine.slot.startswith("output")
        }
        keys, values = "output[past_key_values][key]", "output[past_key_values][value]"
        assert found == {
            (0, "output[0]"): "right", (0, keys): "right", (0, values): "right",
            (1, keys): "right", (1, values): name, (1, "output[0]"): "right",
        }  # fmt: skip


# What a step of mine began with, as far as its dump tells.


@pytest.mark.parametrize(
    ("name", "values", "fresh"),
    [
        ("position_ids", torch.arange(4), True),
        ("cache_position", torch.arange(3, 7), False),
        ("position_embeddings", torch.zeros(4), False),
        ("positions", torch.arange(0), False),
        ("hidden_states", torch.arange(4), False),
    ],
)
def test_positions_from_zero_say_that_nothing_came_before(
    tmp_path: Path, name: str, values: torch.Tensor, fresh: bool
) -> None:
    torch.save(values, tmp_path / "x.pth")
    given: dict[tuple[int | str, ...], TensorRef] = {(name,): TensorRef(str(tmp_path / "x.pth"))}
    assert starts_at_zero({"root": ModuleCall("root", "root", given, {}, False)}) == fresh
