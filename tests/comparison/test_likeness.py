"""Kinds of differences that the values tell: of one root, and of most of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from acc_pytest import DumpConfig, compare, register_hook
from acc_pytest.running.direct import Outcome
from tests.slow import slow

Tensor = torch.Tensor
Change = Callable[[Tensor], Tensor]
Spoil = Callable[["Network"], None]


class Layer(nn.Module):
    """Attention of two heads and an MLP, each with a norm before it; `stored` is what becomes of results."""

    def __init__(self, stored: Change) -> None:
        super().__init__()
        self.stored = stored
        self.norm, self.mlp_norm = nn.LayerNorm(64), nn.LayerNorm(64)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, nn.Linear(64, 64, bias=False))
        self.up_proj, self.down_proj = nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (
            self.get_submodule(f"{name}_proj")(y).unflatten(-1, (2, 32)).transpose(1, 2) for name in "qkv"
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.stored(x + self.get_submodule("o_proj")(self.stored(attended.transpose(1, 2).flatten(-2))))
        return self.stored(x + self.down_proj(self.stored(functional.silu(self.up_proj(self.mlp_norm(x))))))


class Network(nn.Module):
    def __init__(self, stored: Change = torch.Tensor.contiguous) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = nn.Embedding(100, 64)
        self.layers = nn.ModuleList(Layer(stored) for _ in range(3))
        self.lm_head = nn.Linear(64, 100, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.lm_head(x)
        return logits

    @property
    def linears(self) -> list[nn.Linear]:
        return [module for module in self.modules() if isinstance(module, nn.Linear)]


def dump_of(network: Network, home: Path) -> Path:
    ids = torch.randint(0, 100, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), register_hook(network, DumpConfig(dump_path=str(home))):
        network(ids)
    return home


Compared = Callable[[Spoil], Outcome]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump_of(Network(), tmp_path_factory.mktemp("golden"))


@pytest.fixture
def compared(golden: Path, tmp_path: Path) -> Compared:
    """Compare a network that was spoilt."""

    def run(spoil: Spoil) -> Outcome:
        network = Network()
        spoil(network)
        return compare(golden, dump_of(network, tmp_path / "mine"))

    return run


def gives(module: str, change: Change) -> Spoil:
    """A network whose module gives something else."""

    def spoil(network: Network) -> None:
        network.get_submodule(module).register_forward_hook(lambda _, __, made: change(made))

    return spoil


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda y: y * 1.277, "it is golden times 1.277, but for "),
        slow(lambda y: -y, "it is golden times -1"),
        slow(lambda y: y.roll(1, 1), "each row is golden's row before it"),
        (lambda y: torch.cat([y[:, 1:], y[:, :1]], 1), "each row is golden's row after it"),
        (
            lambda y: torch.cat([y[..., 32:], y[..., :32]], -1),
            "its columns are golden's in another order, 32 at a time: number 0 is golden's 1",
        ),
        (
            lambda y: y.flip(1),
            "its rows are golden's in another order, 1 at a time: number 0 is golden's 23",
        ),
    ],
)
def test_a_root_is_said_to_be_golden_but_for_what_differs(
    change: Change, sentence: str, compared: Compared
) -> None:
    outcome = compared(gives("layers.1.q_proj", change))
    (root,) = outcome.roots
    assert root.name == "root.layers.1.q_proj"
    assert sentence in root.sentence
    assert sentence in root.row.note
    assert "precision:" not in outcome.summary


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y + 0.05 * y.roll(7, -1),
        slow(lambda y: y * torch.linspace(0.8, 1.2, 64)),
        slow(torch.zeros_like),
        lambda y: y.roll(1, 1) + 0.5 * y.flip(-1),
    ],
)
def test_other_differences_are_none_of_these(change: Change, compared: Compared) -> None:
    outcome = compared(gives("layers.1.q_proj", change))
    assert "golden times" not in outcome.summary
    assert "golden's " not in outcome.summary
    assert "precision:" not in outcome.summary


def rounded(x: Tensor, bits: int) -> Tensor:
    """A float32 tensor with so many bits behind the point."""
    low = 23 - bits
    return (((x.view(torch.int32) + (1 << (low - 1))) >> low) << low).view(torch.float32)


def products_of(bits: int) -> Spoil:
    product = functional.linear

    def spoil(network: Network) -> None:
        for linear in network.linears:
            linear.forward = lambda x, w=linear.weight: product(rounded(x, bits), rounded(w, bits))  # type: ignore[method-assign, misc]

    return spoil


def weights_of(bits: int) -> Spoil:
    def spoil(network: Network) -> None:
        for linear in network.linears:
            groups = linear.weight.data.unflatten(-1, (-1, 32))
            step = groups.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
            linear.weight.data = (groups / step).round().mul(step).flatten(-2)

    return spoil


def narrow(dtype: torch.dtype) -> Spoil:
    def spoil(network: Network) -> None:
        for module in network.modules():
            module.register_forward_hook(lambda _, __, made: made.to(dtype).float())
            if isinstance(module, Layer):
                module.stored = lambda made: made.to(dtype).float()

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            products_of(10),
            "19 of 19 linear layers are off on their own inputs, by 0.00027 alike, as products",
        ),
        slow(
            products_of(7), "19 of 19 linear layers are off on their own inputs, by 0.0021 alike, as products"
        ),
        slow(weights_of(8), "19 of 19 weights are off, by 0.0038 alike, as weights quantised to int8 are"),
        (weights_of(4), "19 of 19 weights are off, by 0.066 alike, as weights quantised to int4 are"),
        (narrow(torch.bfloat16), "the values of mine fit bfloat16 in "),
        slow(narrow(torch.float16), "the values of mine fit float16 in "),
    ],
    ids=["TF32", "bfloat16 products", "int8", "int4", "bfloat16 values", "float16 values"],
)
def test_a_run_whose_tensors_fail_alike_says_how(spoil: Spoil, words: str, compared: Compared) -> None:
    outcome = compared(spoil)
    assert outcome.verdict == "fail"
    assert outcome.summary.startswith(f"precision: {words}")


def test_what_is_advised_for_values_that_fit_bfloat16_makes_the_run_green(tmp_path: Path) -> None:
    network = Network()
    narrow(torch.bfloat16)(network)
    dumps = dump_of(Network(), tmp_path / "golden"), dump_of(network, tmp_path / "mine")
    assert "state it with --acc-mine-dtype bf16" in compare(*dumps).summary
    outcome = compare(*dumps, mine_dtype="bf16")
    assert outcome.verdict == "pass"
    assert "precision:" not in outcome.summary


def test_few_layers_that_fail_alike_say_nothing_of_a_run(compared: Compared) -> None:
    def spoil(network: Network) -> None:
        network.layers[1].load_state_dict({k: v * 1.01 for k, v in network.layers[1].state_dict().items()})

    assert "precision:" not in compared(spoil).summary
