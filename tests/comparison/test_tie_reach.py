"""What comes after a tie of a router is not judged, and everything else is: a network with a forced tie."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from torch import nn
from torch.nn import functional

from acc_pytest.capture.torch_hooks import DumpConfig, register_hook
from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.mapping.planner import plan
from acc_pytest.reporting.row import Row
from acc_pytest.reporting.view import Diagnosis
from tests.newer import computes_half
from tests.slow import slow

WIDTH, EXPERTS, LENGTH, TIED = 64, 4, 12, 5
SHARP = 20.0
"""A factor of scores that lets a token look at a few others only."""
"""`TIED` is the token that another expert is forced on."""


class Weights(nn.Module):
    """What each token looks at, `[batch, 1, length, length]`."""

    sharpness = 1.0

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = self.sharpness * (q @ k.transpose(-1, -2)).float() / WIDTH**0.5
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1).to(q.dtype)[:, None]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.weights = Weights()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.weights(self.q_proj(x), self.k_proj(x))
        made: torch.Tensor = self.o_proj(weights[:, 0] @ self.v_proj(x))
        return made


class Router(nn.Module):
    """The first two experts have nearly the same logits, and are always chosen from first."""

    swapped: tuple[int, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = functional.linear(x, self.weight)
        values, chosen = logits.topk(1)
        for token in self.swapped:
            chosen[token] = 1 - chosen[token] if chosen[token, 0] < 2 else 0
        return logits, values.sigmoid(), chosen


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 8)

    def forward(self, x: torch.Tensor, index: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        return torch.einsum("tw,tow->to", x, self.weight[index[:, 0]]) * share


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = Router(), Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, WIDTH)
        _, share, index = self.gate(flat)
        made: torch.Tensor = self.experts(flat, index, share)
        return made.reshape(x.shape)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.self_attn, self.post_norm = (
            nn.LayerNorm(WIDTH),
            Attention(),
            nn.LayerNorm(WIDTH),
        )
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_norm(x))
        made: torch.Tensor = x + self.mlp(self.post_norm(x))
        return made


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.lm_head = nn.Linear(WIDTH, 32)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        made: torch.Tensor = self.lm_head(x)
        return made


@dataclass(frozen=True)
class Compared:
    rows: dict[str, Row]
    diagnosis: Diagnosis

    @property
    def red(self) -> list[str]:
        return [name for name, row in self.rows.items() if row.red]

    @property
    def roots(self) -> list[str]:
        return [root.name for root in self.diagnosis.roots]


Compare = Callable[..., Compared]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Golden against the same network in float16, in whose first layer `tied` tokens get another expert."""

    def compared(
        spoil: Callable[[Network], None] = lambda _: None,
        *,
        tied: tuple[int, ...] = (TIED,),
        near: float = 1e-4,
        batch: int = 1,
    ) -> Compared:
        computes_half()
        torch.manual_seed(2)
        golden = Network().eval()
        for parameter in golden.parameters():
            parameter.data = parameter.data.half().float()
        for layer in golden.layers:
            assert isinstance(layer, Layer)
            weight = layer.mlp.gate.weight.data
            weight[1] = weight[0] * (1 + near)
            weight[2:] *= 0.01
            weight.copy_(weight.half())
        mine = copy.deepcopy(golden).half()
        first = mine.layers[0]
        assert isinstance(first, Layer)
        first.mlp.gate.swapped = tied
        spoil(mine)
        ids = torch.arange(batch * LENGTH).reshape(batch, LENGTH) % 32
        paths = [Path(mkdtemp(dir=tmp_path)) for _ in range(2)]
        for path, network in zip(paths, (golden, mine)):
            with register_hook(network, DumpConfig(path)), torch.no_grad():
                network(ids)
        dump = open_dump(str(paths[0]))
        rows, diagnosis = run(plan(dump, open_dump(str(paths[1]), golden=dump)))
        named = {f"{row.mine.node} {row.mine.slot}": row for row in rows}
        return Compared(named, diagnosis)

    return compared


def layer_of(network: Network, number: int) -> Layer:
    layer = network.layers[number]
    assert isinstance(layer, Layer)
    return layer


def scaled(module: nn.Module, factor: float, *tokens: int) -> None:
    """From now on what the module gives is larger, for some tokens `[sequence, token]` or all."""

    def larger(_module: nn.Module, _given: object, made: torch.Tensor) -> torch.Tensor:
        made = made.clone()
        rows = made.reshape(-1, made.shape[-1])
        rows[list(tokens) or slice(None)] *= factor
        return rows.reshape(made.shape)

    module.register_forward_hook(larger)


def test_a_forced_tie_makes_nothing_red_and_the_rows_say_what_was_not_judged(compare: Compare) -> None:
    compared = compare()
    assert compared.red == []
    index = compared.rows["root.layers.0.mlp.gate output[2]"]
    assert index.verdict == "tie"
    experts = compared.rows["root.layers.0.mlp.experts output[0]"]
    assert (experts.verdict, experts.notes) == (
        "pass",
        ("1 of 12 tokens come after a tie and are not judged",),
    )
    assert (experts.context["tokens_after_tie"], experts.context["tokens"]) == (1, 12)
    assert experts.counts["elements"] == 11 * WIDTH
    assert compared.rows["root.layers.0.self_attn.o_proj output[0]"].context.get("tokens_after_tie") is None


def test_without_near_values_another_expert_is_the_root(compare: Compare) -> None:
    compared = compare(near=0.5)
    assert compared.roots == ["root.layers.0.mlp.gate"]


@pytest.mark.parametrize(
    ("name", "root"),
    [
        ("mlp.experts", "root.layers.0.mlp.experts"),
        slow("self_attn.o_proj", "root.layers.0.self_attn.o_proj"),
        slow("post_norm", "root.layers.0.post_norm"),
    ],
)
def test_a_fault_of_all_tokens_in_the_layer_of_the_tie_is_the_first_root(
    compare: Compare, name: str, root: str
) -> None:
    compared = compare(lambda network: scaled(layer_of(network, 0).get_submodule(name), 1.3))
    assert compared.roots[0] == root


@pytest.mark.parametrize(
    ("tied", "name"),
    [
        (TIED, "mlp.experts"), slow(TIED, "self_attn.o_proj"), (TIED, "input_norm"), slow(TIED, "mlp"),
        (0, "mlp.experts"), slow(0, "input_norm"), slow(0, "mlp"),
    ],
)  # fmt: skip
def test_a_fault_below_a_tie_is_still_the_first_root(compare: Compare, tied: int, name: str) -> None:
    """Also where the tie is at the first token, so that it reaches all others."""
    compared = compare(lambda network: scaled(layer_of(network, 1).get_submodule(name), 1.3), tied=(tied,))
    assert compared.roots[0] == f"root.layers.1.{name}"


@pytest.mark.parametrize("token", [slow(0), TIED - 1, slow(TIED + 1)])
def test_a_fault_at_another_token_is_still_the_first_root(compare: Compare, token: int) -> None:
    compared = compare(lambda network: scaled(layer_of(network, 1).self_attn.o_proj, -1.0, token))
    assert compared.roots[0] == "root.layers.1.self_attn.o_proj"


def test_a_fault_at_the_tied_token_itself_is_red_where_no_tie_is_that_large(compare: Compare) -> None:
    compared = compare(lambda network: scaled(layer_of(network, 1).input_norm, 1000.0, TIED))
    assert compared.roots[0] == "root.layers.1.input_norm"


def test_the_key_of_a_tied_token_is_not_judged_where_others_hardly_look_at_it(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Weights, "sharpness", SHARP)
    compared = compare()
    weights = compared.rows["root.layers.1.self_attn.weights output[0]"]
    assert (compared.red, weights.verdict) == ([], "pass")
    after_tie, tokens = weights.context["tokens_after_tie"], weights.context["tokens"]
    assert isinstance(after_tie, int)
    assert isinstance(tokens, int)
    assert 0 < after_tie < LENGTH - TIED  # some after it are judged
    assert weights.counts["elements"] == (tokens - after_tie) * (tokens - after_tie)


def test_a_row_that_is_off_at_the_key_of_a_tied_token_is_judged_with_all_keys(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token before the tied one looks at it, as no mask lets it."""
    monkeypatch.setattr(Weights, "sharpness", SHARP)

    def spoil(network: Network) -> None:
        def ahead(_module: nn.Module, _given: object, made: torch.Tensor) -> torch.Tensor:
            made = made.clone()
            made[..., 1, TIED] += 0.2
            return made

        layer_of(network, 1).self_attn.weights.register_forward_hook(ahead)

    assert compare(spoil).roots[0] == "root.layers.1.self_attn.weights"


def test_another_sequence_of_the_batch_is_judged_as_ever(compare: Compare) -> None:
    clean = compare(batch=2)
    assert clean.red == []
    spoiled = compare(
        lambda network: scaled(layer_of(network, 1).self_attn.o_proj, -1.0, LENGTH + TIED + 2), batch=2
    )
    assert spoiled.roots[0] == "root.layers.1.self_attn.o_proj"
    note = "1 of 24 tokens come after a tie and are not judged"
    assert note in clean.rows["root.layers.0.mlp.experts output[0]"].notes


def test_a_wrong_choice_at_another_token_is_the_root(compare: Compare) -> None:
    def spoil(network: Network) -> None:
        layer_of(network, 1).mlp.gate.weight.data[3] *= 1000

    compared = compare(spoil)
    assert compared.roots[0] in ("root.layers.1.mlp.gate", "gate.weight", "root.layers.1.mlp.gate.weight")
