"""Tensors that are sums of two that were compared before: residual streams whose large values cancel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import acc_pytest
from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.pair import Operand, Pair, Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.views import Turned
from acc_pytest.reference.known_by_values import KnownByValues, held_against_attention
from acc_pytest.reference.recomputation import Recomputation, Recomputer
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.source import TensorSource

WIDTH = 64


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Layer(nn.Module):
    """The same block in a port of its own, which hands a position along and may weigh the stream."""

    def __init__(self) -> None:
        super().__init__()
        block = Block()
        self.n, self.w1, self.w2 = block.norm, block.up, block.down
        self.factor = 1.0

    def forward(self, x: torch.Tensor, position: int = 0) -> Any:
        return x * self.factor + self.w2(torch.relu(self.w1(self.n(x)))), position


class Net(nn.Module):
    """Blocks, the first of which makes a value that the second takes back, as massive activations of trained
    networks do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 32)
        for layer, value in ((1, 700.0), (2, -699.0)):
            bias: Any = self.layers[layer].down.bias  # type: ignore[union-attr]
            bias.data[3] += value

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Port(nn.Module):
    """The network as another team writes it, with a factor in the third block."""

    def __init__(self, net: Net, factor: float) -> None:
        super().__init__()
        self.tok, self.out = net.embed, net.head
        self.blk = nn.ModuleList(Layer() for _ in net.layers)
        for layer, block in zip(self.blk, net.layers):
            theirs: Any = block
            layer.n, layer.w1, layer.w2 = theirs.norm, theirs.up, theirs.down
        self.blk[2].factor = factor  # type: ignore[assignment]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids)
        for layer in self.blk:
            x, _ = layer(x)
        return self.out(x)


def dumped(home: Path, net: nn.Module) -> Path:
    with torch.no_grad(), register_hook(net, DumpConfig(str(home))):
        net(torch.arange(12)[None])
    return home


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(tmp_path_factory.mktemp("golden") / "dump", Net())


def port(factor: float = 1.0) -> nn.Module:
    return Port(Net(), factor).bfloat16()


def planned(golden: Path, mine: Path) -> tuple[Plan, int]:
    """The plan of two dumps, and the number of the result of the block that cancels."""
    made = plan(open_dump(str(golden)), open_dump(str(mine)))
    return made, next(
        number
        for number, pair in enumerate(made.pairs)
        if pair.golden.node == "root.layers.2" and pair.golden.slot.startswith("output")
    )


class Nothing(Recomputer):
    """A recomputer that knows nothing."""

    def of_pair(self, number: int) -> Recomputation:
        return Recomputation(why="no model")


def test_a_stream_follows_from_its_summands(tmp_path: Path, golden: Path) -> None:
    made, number = planned(golden, dumped(tmp_path / "mine", port()))
    recomputed = KnownByValues(Nothing(), made, 1 << 20).of_pair(number)
    assert recomputed.outcome == "right"
    names = {made.pairs[int(text)].golden.node for text in recomputed.sources.split()}
    assert names >= {"root.layers.2.down"}
    assert len(recomputed.sources.split()) == 2
    assert KnownByValues(Nothing(), made, 8).of_pair(number).why == "no model"  # of too many elements


def test_another_sum_is_not_known_to_be_right(tmp_path: Path, golden: Path) -> None:
    made, number = planned(golden, dumped(tmp_path / "mine", port(1.03)))
    assert KnownByValues(Nothing(), made, 1 << 20).of_pair(number).outcome == ""


def test_cancelled_rounding_is_no_fault_and_a_scaled_stream_is(tmp_path: Path, golden: Path) -> None:
    right = acc_pytest.compare(str(golden), str(dumped(tmp_path / "right", port())))
    assert right.verdict == "pass", right.summary
    wrong = acc_pytest.compare(str(golden), str(dumped(tmp_path / "wrong", port(1.05))))
    assert wrong.verdict == "fail"
    assert wrong.roots[0].name == "root.blk.2"


def attention(scale: float = 0.25, causal: bool = True) -> list[torch.Tensor]:
    """A result of torch's own attention in bfloat16, and its query, key and value: 4 heads on 2."""
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(1, heads, 10, 16, generator=generator).bfloat16() for heads in (4, 2, 2))
    result = nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), is_causal=causal, scale=scale
    )
    return [side.transpose(1, 2).flatten(2) for side in (result, query, key, value)]


@pytest.mark.parametrize(
    ("outcome", "how"), [("right", {}), ("wrong", {"scale": 0.27}), ("wrong", {"causal": False})]
)
def test_attention_is_that_of_torch(outcome: str, how: dict[str, Any]) -> None:
    result, *read = map(TensorSource, attention(**how))
    assert held_against_attention(result, read, 16).outcome == outcome


# Tensors alone: golden's are exact, mine is what bfloat16 makes of the same.


Sides = tuple[torch.Tensor, torch.Tensor]


def sides(*shape: int, seed: int) -> Sides:
    """A tensor of golden, and as mine has it in bfloat16."""
    golden = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    mine = golden.bfloat16()
    return mine.float(), mine


def known(home: Path, *tensors: Sides, turned: int = 0) -> Recomputation:
    """What values say of the last of some tensors; the first two are turned by tables of this width."""
    pairs = []
    for number, both in enumerate(tensors):
        operands = []
        for side, tensor in zip("gm", both):
            torch.save(tensor, home / f"{side}{number}.pth")
            operands.append(
                Operand(side, side, "Op", "output[0]", (TensorRef(str(home / f"{side}{number}.pth")),))
            )
        if turned and number < 2:
            width = both[0].shape[-2], turned
            for name, table in (("cos", torch.ones(width)), ("sin", torch.zeros(width))):
                torch.save(table, home / f"{name}.pth")
            tables = (TensorRef(str(home / f"{name}.pth")) for name in ("cos", "sin"))
            operands[0] = replace(operands[0], view=Turned(*tables))
        pairs.append(
            Pair(f"p{number}", 0, None, "op", "model", 0, number, "role", "", operands[0], operands[1])
        )
    parents = tuple(tuple(range(number)) for number in range(len(pairs)))
    made = Plan("g", "m", "torch", "torch", "dump", tuple(pairs), (), (), 0, 0, 0, 0, parents)
    return KnownByValues(Nothing(), made, 1 << 20).of_pair(len(pairs) - 1)


def norm(x: torch.Tensor, gain: torch.Tensor, centred: bool, epsilon: float) -> torch.Tensor:
    """The norm of rows by torch's own operators."""
    if centred:
        return nn.functional.layer_norm(x, x.shape[-1:], gain, eps=epsilon)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * gain


GAIN = torch.linspace(0.5, 2.0, 64).bfloat16().float()


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("count", "epsilon", "size"), [(1, 1e-5, 1.0), (2, 1e-5, 1e-2), (1, 1e-6, 1e-3)])
@pytest.mark.parametrize("scale", [1.0, 1.05])
def test_a_norm_of_what_came_before_is_right_but_for_rounding(
    tmp_path: Path, centred: bool, count: int, epsilon: float, size: float, scale: float
) -> None:
    read = [tuple(size * side for side in sides(6, 64, seed=seed)) for seed in range(2)]
    golden, mine = (sum(pair[side].double() for pair in read[-count:]) for side in (0, 1))
    result = [norm(side, GAIN.double(), centred, epsilon) for side in (golden, mine)]  # type: ignore[arg-type]
    outcome = known(tmp_path, *read, (result[0].float(), (scale * result[1]).bfloat16()))  # type: ignore[arg-type]
    assert outcome.outcome == ("right" if scale == 1.0 else "")
    if outcome.outcome:
        assert outcome.sources == ("0 1" if count == 2 else "1")
        assert "the norm in bfloat16 against float64" in outcome.reason


def test_a_norm_of_too_few_rows_or_another_epsilon_says_nothing(tmp_path: Path) -> None:
    for rows, epsilon, outcome in ((4, 1e-5, "right"), (3, 1e-5, ""), (6, 1e-3, "")):
        read = tuple(1e-2 * side for side in sides(rows, 64, seed=1))
        result = [norm(side.double(), GAIN.double(), False, epsilon) for side in read]
        found = known(tmp_path, read, (result[0].float(), result[1].bfloat16()))  # type: ignore[arg-type]
        assert found.outcome == outcome, (rows, epsilon)


@pytest.mark.parametrize("table", [16, 8])
def test_an_attention_of_turned_queries_and_keys_is_right_but_for_rounding(
    tmp_path: Path, table: int
) -> None:
    mine, *read = attention()
    query, key, value = (side.double().unflatten(-1, (-1, 16)).transpose(1, 2) for side in read)
    golden = nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), is_causal=True
    )
    golden, mine = golden.transpose(1, 2).flatten(2).float()[0], mine[0]
    before = [(side[0].float(), side[0]) for side in read]
    assert known(tmp_path, *before, (golden, mine), turned=table).sources == "0 1 2"
    assert known(tmp_path, *before, (golden, 1.05 * mine), turned=table).outcome == ""
    assert known(tmp_path, *before, (golden.flip(-2), mine), turned=table).outcome == ""
    assert known(tmp_path, *before, (golden, mine)).outcome == "", "of no positions"
    assert known(tmp_path, *before, (golden, mine), turned=4).outcome == "", "heads of 4 and of 8"
