"""Weights of a golden on one rank and of a port on two, by digests: shares of rows and columns; replicas."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, compare, register_hook
from acc_pytest.diagnosis.evidence import PairState
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan
from tests.slow import slow

WIDTH, INNER = 48, 64


class Network(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, inner, bias=False), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return made


def golden() -> Network:
    torch.manual_seed(0)
    network = Network(INNER)
    network.norm.weight.data.normal_(1.0, 0.2)
    return network


def rank_of(network: Network, rank: int) -> Network:
    half = Network(INNER // 2)
    rows = slice(rank * INNER // 2, (rank + 1) * INNER // 2)
    half.norm = copy.deepcopy(network.norm)
    half.up.weight.data = network.up.weight.data[rows].clone()
    half.down.weight.data = network.down.weight.data[:, rows].clone()
    return half


def dump(networks: Sequence[nn.Module], home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for rank, network in enumerate(networks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(len(networks)))
        config = DumpConfig(home, run_name="run", process_name=f"npu{rank}_{40 + rank}")
        with torch.no_grad(), register_hook(network, config):
            x = torch.linspace(-1, 1, 5 * WIDTH).reshape(5, WIDTH)
            network(x.to(next(network.parameters()).dtype))
    return str(home)


def wrong_share(ranks: list[Network]) -> None:
    ranks[1].up.weight.data = ranks[0].up.weight.data.clone()


def stale_share(ranks: list[Network]) -> None:
    ranks[1].down.weight.data.normal_()


def other_gain(ranks: list[Network]) -> None:
    ranks[1].norm.weight.data *= 1.5


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda ranks: None, ""),
        (wrong_share, "rows 32-63 of root.up.weight are on no rank (rank 0 has 0-31, rank 1 has 0-31)"),
        (
            stale_share,
            "columns 32-63 of root.down.weight are on no rank (rank 0 has 0-31)",
        ),
        (other_gain, "root cause: weight of norm differs"),
    ],
)
def test_each_rank_has_its_share_of_a_golden_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[Network]], None], line: str
) -> None:
    network = golden()
    ranks = [rank_of(network, rank) for rank in range(2)]
    change(ranks)
    paths = dump([network], tmp_path / "golden", monkeypatch), dump(ranks, tmp_path / "mine", monkeypatch)
    result = compare(*paths)
    weights = [row for row in result.rows if row.mine.op_type == "Parameter"]
    red = [row for row in weights if row.red]
    assert line in " ".join(result.summary.split())
    assert bool(red) == (change is other_gain)
    if not line:
        assert len(weights) == 8
        assert "weights:" not in result.summary


def test_shares_that_a_rank_has_rounded_are_as_near_as_one_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = golden()
    ranks = [rank_of(network, rank).bfloat16() for rank in range(2)]
    paths = dump([network], tmp_path / "golden", monkeypatch), dump(ranks, tmp_path / "mine", monkeypatch)
    shares = [row for row in compare(*paths).rows if row.fed == "weight"]
    assert {(row.golden.dtype, row.mine.dtype) for row in shares} == {("torch.float32", "torch.bfloat16")}
    states = [PairState.of(row, row.number or 0) for row in shares]
    assert all(state.near for state in states)
    assert sum(bool(state.error) for state in states) == 4


HEAD, HEADS = 8, 4
Tensors = dict[str, torch.Tensor]


class Layer(nn.Module):
    """Linears of these weights and biases, by name, each of which reads what the layer reads."""

    def __init__(self, state: Tensors) -> None:
        super().__init__()
        for name in {name.rpartition(".")[0]: None for name in state}:
            rows, bias = state[f"{name}.weight"], state.get(f"{name}.bias")
            linear = nn.Linear(rows.shape[1], len(rows), bias=bias is not None)
            linear.weight.data = rows.clone()
            if bias is not None:
                linear.bias.data = bias.clone()
            self.add_module(name, linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([linear(x[..., : linear.in_features]) for linear in self.children()], -1)


class Layers(nn.Module):
    def __init__(self, states: Sequence[Tensors]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, states))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(x) for layer in self.layers], -1)


def drawn(kv_heads: int = HEADS) -> list[Tensors]:
    """Three layers of attention and a gated pair of linears."""
    torch.manual_seed(0)
    rows = {"q": HEADS * HEAD, "k": kv_heads * HEAD, "v": kv_heads * HEAD, "gate": INNER, "up": INNER}
    state: dict[str, tuple[int, ...]] = {f"{name}.weight": (count, WIDTH) for name, count in rows.items()}
    state |= {f"{name}.bias": (rows[name],) for name in "qkv"} | {"o.weight": (WIDTH, HEADS * HEAD)}
    return [{name: torch.randn(shape) for name, shape in state.items()} for _ in range(3)]


def share(state: Tensors, name: str, rank: int, ranks: int) -> torch.Tensor:
    """The rows that a rank has: whole heads, of which several ranks have one where these are fewer."""
    values = state[name]
    heads = values.reshape(-1, HEAD, *values.shape[1:])
    copies = max(1, ranks // len(heads))
    return heads.tensor_split(ranks // copies)[rank // copies].flatten(0, 1)


def packed(states: Sequence[Tensors], ranks: int, of: Sequence[int] = ()) -> list[list[Tensors]]:
    """The weights of each rank, which packs its shares; `of` are the ranks whose shares they have."""
    return [
        [
            {
                **{
                    f"{pack}.{end}": torch.cat([share(state, f"{n}.{end}", rank, ranks) for n in parts])
                    for pack, parts, ends in (
                        ("qkv", "qkv", ("weight", "bias")),
                        ("gate_up", ("gate", "up"), ("weight",)),
                    )
                    for end in ends
                },
                "o.weight": share({"o": state["o.weight"].T}, "o", rank, ranks).T,
            }
            for state in states
        ]
        for rank in (of or range(ranks))
    ]


def of_weights(
    home: Path, monkeypatch: pytest.MonkeyPatch, golden: list[Tensors], ranks: list[list[Tensors]]
) -> tuple[str, list[str], int]:
    """The note on weights, those that are red, and how many pairs there are."""
    networks = {"golden": [Layers(golden)], "mine": [Layers(states) for states in ranks]}
    dumps = [open_dump(dump(of, home / side, monkeypatch)) for side, of in networks.items()]
    made = plan(*dumps)
    pairs = [pair for pair in made.pairs if pair.policy == "weights"]
    rows, _ = run(replace(made, pairs=tuple(pairs)))
    notes = [note.removeprefix("weights: ") for note in made.notes if note.startswith("weights: ")]
    return "".join(notes), [f"{row.golden.name}|{row.rank}" for row in rows if row.red], len(pairs)


@pytest.mark.parametrize(("ranks", "kv_heads"), [(2, 4), slow(3, 4), slow(4, 2), (4, 1), slow(2, 1)])
def test_shares_that_ranks_pack_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, kv_heads: int
) -> None:
    states = drawn(kv_heads)
    note, red, count = of_weights(tmp_path, monkeypatch, states, packed(states, ranks))
    assert (note, red, count) == ("", [], ranks * len(states) * 9)


Ranks = list[list[Tensors]]


def twice(ranks: Ranks) -> None:
    ranks[1][2]["qkv.weight"][16:32] = ranks[0][2]["qkv.weight"][16:32]


def zero_bias(ranks: Ranks) -> None:
    ranks[1][0]["qkv.bias"][16:32] = 0


def no_bias(ranks: Ranks) -> None:
    del ranks[1][0]["qkv.bias"]


def stale(ranks: Ranks) -> None:
    ranks[0][1]["gate_up.weight"][32:].normal_()


def swapped(ranks: Ranks) -> None:
    first, second = ranks[0][1], ranks[1][1]
    first["gate_up.weight"], second["gate_up.weight"] = second["gate_up.weight"], first["gate_up.weight"]


def other_rows(ranks: Ranks) -> None:
    rows = ranks[1][1]["gate_up.weight"]
    rows[:32] = rows[:32].roll(16, 0)


def all_swapped(ranks: Ranks) -> None:
    ranks.reverse()


def apart(ranks: Ranks) -> None:
    """Of a gate and a linear that golden may pack, each in its own."""
    for state in (state for of_rank in ranks for state in of_rank):
        state["up.weight"], state["gate.weight"] = state.pop("gate_up.weight").split(INNER // 2)


@pytest.mark.parametrize(
    ("change", "note", "red"),
    [
        (
            twice,
            "rows 16-31 of root.layers.2.k.weight, root.layers.2.k.bias are on no rank (rank 0 has 0-15, "
            "rank 1 has 0-15)",
            ["root.layers.2.k.bias|1"],
        ),
        slow(zero_bias, "", ["root.layers.0.k.bias|1"]),
        (no_bias, "rank 1: no weight of mine holds root.layers.0.q.bias, root.layers.0.k.bias", []),
        (stale, "rank 0: no weight of golden has rows 32-63 of root.layers.1.gate_up.weight; ", []),
        slow(stale, "; rows 0-31 of root.layers.1.up.weight are on no rank (rank 1 has 32-63)", []),
        (
            swapped,
            "rows lie in the order of ranks 0, 1 in most weights, but not in root.layers.1.gate.weight, "
            "root.layers.1.up.weight (rank 0 has 32-63, rank 1 has 0-31)",
            [],
        ),
        (
            other_rows,
            "rank 1: gate lies in another order of rows in root.layers.1.gate_up.weight: "
            "rows 0-15 lie at 16-31, rows 16-31 lie at 0-15",
            ["root.layers.1.gate.weight|1"],
        ),
        slow(all_swapped, "", []),
        (apart, "", []),
    ],
)
def test_what_a_rank_packs_wrongly_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Ranks], None],
    note: str,
    red: list[str],
) -> None:
    states = drawn()
    ranks = packed(states, 2)
    change(ranks)
    text, names, _ = of_weights(tmp_path, monkeypatch, states, ranks)
    assert note in text
    assert bool(note) == bool(text)
    assert names == red


def test_golden_may_pack_what_ranks_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states, (golden,) = drawn(), packed(drawn(), 1)
    for change, count in ((lambda ranks: None, 24), (apart, 30)):
        ranks = packed(states, 2)
        change(ranks)
        assert of_weights(tmp_path / str(count), monkeypatch, golden, ranks) == ("", [], count)
