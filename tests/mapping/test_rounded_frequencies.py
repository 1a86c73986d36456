"""rounded_frequencies: what `model.half()` does to position tables is explained, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, register_hook
from acc_pytest.base.older_torch import half_on_cpu

from .toy_model import Verdicts, compared

FIRST = 700
"""Where the sequence begins: far enough for the rounding of frequencies to be seen."""


class RotaryEmbedding(nn.Module):
    """Tables of cos and sin in float32, as transformers makes them."""

    inv_freq: torch.Tensor

    def __init__(self, base: float) -> None:
        super().__init__()
        self.register_buffer("inv_freq", base ** -(torch.arange(16) / 16), persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].float() * self.inv_freq.float()
        return angles.cos(), angles.sin()


class Model(nn.Module):
    """One attention of all tokens to all, by the distance between them."""

    def __init__(self, base: float) -> None:
        super().__init__()
        self.embed, self.rotary_emb, self.head = nn.Embedding(8, 32), RotaryEmbedding(base), nn.Linear(32, 8)

    def forward(self, ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        cos, sin = self.rotary_emb(x, position_ids)
        first, second = x.float().chunk(2, -1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
        weights = (turned @ turned.transpose(-1, -2) / 32**0.5).softmax(-1)
        return self.head(weights @ x)


def dump(path: Path, dtype: torch.dtype, *, buffers: bool = False, base: float = 1e4) -> Path:
    """A run of a prompt; `buffers` converts the frequencies as well."""
    torch.manual_seed(4)
    model = Model(base)
    kept = model.rotary_emb.inv_freq
    model.to(dtype)
    if not buffers:
        model.rotary_emb.inv_freq = kept
    with torch.no_grad(), half_on_cpu(), register_hook(model, DumpConfig(path)):
        model(torch.arange(64)[None] % 8, position_ids=torch.arange(FIRST, FIRST + 64)[None])
    return path


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("golden"), torch.float32)


def explained(verdicts: Verdicts) -> dict[str, float]:
    return {pair.id: pair.rounded_frequencies for pair in verdicts.plan.pairs if pair.rounded_frequencies > 0}


def test_tables_of_rounded_frequencies_pass(golden: Path, tmp_path: Path) -> None:
    verdicts = compared(golden, dump(tmp_path, torch.float16, buffers=True))
    assert explained(verdicts).keys() == {"rotary_emb", "rotary_emb[1]"}
    assert {row.verdict for row in verdicts.rows} == {"pass"}


def test_the_explained_error_is_that_of_the_formula(golden: Path, tmp_path: Path) -> None:
    verdicts = compared(golden, dump(tmp_path, torch.float16, buffers=True))
    frequencies = 1e4 ** -(torch.arange(16) / 16)
    rms = float(frequencies.square().mean().sqrt())
    assert explained(verdicts)["rotary_emb"] == pytest.approx((FIRST + 63) * rms * 2.0**-11 / 3)


@pytest.mark.parametrize("seed", range(3))
def test_it_covers_what_rounding_does_and_little_more(seed: int) -> None:
    """In float64: tables of positions up to P are off by at most twice P rms(f) u / 3, and near that."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.rand(64, generator=generator, dtype=torch.float64)
    positions = torch.arange(400, dtype=torch.float64)[:, None]
    error = (positions * frequencies.half().double()).cos() - (positions * frequencies).cos()
    relative = float(error.norm() / (positions * frequencies).cos().norm())
    formula = 399 * float(frequencies.square().mean().sqrt()) * 2.0**-11 / 3
    assert formula / 4 < relative < 2 * formula


def test_without_rounded_frequencies_nothing_is_explained(golden: Path, tmp_path: Path) -> None:
    assert explained(compared(golden, dump(tmp_path, torch.float16))) == {}


def test_another_base_is_another_buffer_and_red(golden: Path, tmp_path: Path) -> None:
    verdicts = compared(golden, dump(tmp_path, torch.float16, buffers=True, base=1.1e4))
    assert explained(verdicts) == {}
    assert verdicts.roots[0] == "root.rotary_emb.inv_freq"


def test_of_caches_keys_are_rotated_and_values_are_not(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    for name, dtype in (("golden", torch.float32), ("mine", torch.bfloat16)):
        torch.manual_seed(4)
        config = transformers.LlamaConfig(vocab_size=32, num_key_value_heads=1, **sizes)
        model = transformers.LlamaForCausalLM(config).to(dtype)
        with torch.no_grad(), register_hook(model, DumpConfig(tmp_path / name)):
            model(torch.arange(24)[None])
    names = explained(compared(tmp_path / "golden", tmp_path / "mine")).keys()
    assert any("key" in name.rpartition("[")[2] for name in names)
    assert not any("value" in name.rpartition("[")[2] for name in names)
