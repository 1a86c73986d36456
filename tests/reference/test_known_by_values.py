"""Tensors that are sums of two that were compared before: residual streams whose large values cancel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import acc_pytest
from acc_pytest import DumpConfig, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.reference.known_by_values import KnownByValues, held_against_attention
from acc_pytest.reference.recomputation import Recomputation, Recomputer
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
