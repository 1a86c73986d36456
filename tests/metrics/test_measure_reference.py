"""The streaming kernel agrees with the definitions to 1e-6 relative, whatever the dtype and the data."""

from __future__ import annotations

import pytest
import torch

from acc_pytest.metrics import kernel, python_blocks
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import COLUMN_METRICS
from acc_pytest.metrics.native.library import VARIABLE
from acc_pytest.tensors.source import TensorSource
from tests.metrics.metric_reference import SEVEN, close, measured, reference

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def pair(dtype: torch.dtype, kind: str, n: int = 70_001) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of more than one block."""
    torch.manual_seed(sum(map(ord, kind)))
    g = torch.randn(n, dtype=torch.float64)
    noise = torch.randn(n, dtype=torch.float64)
    made = {
        "close": (g, g + 1e-3 * noise),
        "unrelated": (g, noise),
        "scaled": (g, 1.1 * g),
        "shifted": (g, g + 1 + 1e-2 * noise),
        "half zero": (g.relu(), g.relu() + 1e-3 * noise),
        "tiny": (1e-6 * g, 1e-6 * g + 1e-8 * noise),
        "large": (300 * g, 300 * g + noise),
        "far below zero": (g - 50, g - 50 + 1e-2 * noise),
        "outlier": (g, torch.where(torch.arange(n) == 69_999, g + 7, g)),
        "late": (g, torch.where(torch.arange(n) >= 66_000, g + 3, g)),
    }[kind]
    return made[0].to(dtype), made[1].to(dtype)


def test_the_catalogue_holds_the_seven_columns_in_order() -> None:
    assert COLUMN_METRICS == SEVEN


KINDS = ["close", "unrelated", "scaled", "shifted", "half zero", "tiny"]
KINDS += ["large", "far below zero", "outlier", "late"]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_random_pairs_agree_with_the_definitions(dtype: torch.dtype, kind: str) -> None:
    golden, mine = pair(dtype, kind)
    result, wanted = measured(golden, mine), reference(golden, mine)
    wrong = {
        name: (getattr(result, name), value)
        for name, value in wanted.items()
        if not close(getattr(result, name), value) and name != "kl_divergence"
    }
    assert not wrong
    # The definition itself loses digits in long double when differences of logs are far below 1.
    assert result.kl_divergence == pytest.approx(wanted["kl_divergence"], rel=1e-6, abs=1e-17)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_constant_tensors_gather_no_one_sided_rounding(dtype: torch.dtype) -> None:
    golden, mine = torch.full((200_000,), 0.1, dtype=dtype), torch.full((200_000,), 0.11, dtype=dtype)
    result, wanted = measured(golden, mine), reference(golden, mine)
    for name in set(wanted) - {"kl_divergence"}:
        assert close(getattr(result, name), wanted[name]), name
    assert result.kl_divergence == 0.0
    assert close(result.golden_mean, float(golden[0]))
    assert close(result.mean_error, float(mine[0].double() - golden[0].double()))


@pytest.mark.parametrize("noise", [1e-3, 1e-4, 1e-5, 1e-6])
def test_what_cosine_misses_to_one_keeps_its_digits(noise: float) -> None:
    """1 - cosine is noise^2 / 2: computed from products with mine it would be rounding."""
    torch.manual_seed(0)
    golden = torch.randn(100_000, dtype=torch.float64)
    mine = golden + noise * torch.randn(100_000, dtype=torch.float64)
    wanted = 1 - reference(golden, mine)["cosine_similarity"]
    exact = measured(golden, mine).cosine_similarity
    assert exact is not None
    assert 1 - exact == pytest.approx(wanted, abs=3e-16)
    single = measured(golden.float(), mine.float()).cosine_similarity
    assert single is not None
    assert single <= 1.0


@pytest.mark.parametrize("dtypes", [(torch.float16, torch.float32), (torch.bfloat16, torch.float64)], ids=str)
def test_dtypes_may_differ(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    torch.manual_seed(3)
    golden = torch.randn(1000, dtype=torch.float64).to(dtypes[0])
    mine = (golden.double() + 1e-2 * torch.randn(1000, dtype=torch.float64)).to(dtypes[1])
    result, wanted = measured(golden, mine), reference(golden, mine)
    assert all(close(getattr(result, name), wanted[name]) for name in wanted)
    assert not measured(golden, golden.to(dtypes[1])).identical


def test_both_ways_of_doing_a_block_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    golden, mine = pair(torch.float16, "half zero")
    single = measured(golden, mine)
    monkeypatch.setenv(VARIABLE, "python")
    monkeypatch.setattr(python_blocks, "FITTING", frozenset())
    double = measured(golden, mine)
    for name in (*SEVEN, "golden_mean", "mine_mean", "golden_rms", "max_scaled_error"):
        assert close(getattr(single, name), getattr(double, name)), name
    same = ("near_zero", "beyond_tolerance", "worst", "golden_max", "mine_min", "mismatches", "compared")
    assert all(getattr(single, name) == getattr(double, name) for name in same)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("block", [1, 7, 64])
def test_the_block_size_does_not_show(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, block: int
) -> None:
    torch.manual_seed(5)
    golden = torch.cat([torch.zeros(3), 1e-9 * torch.randn(40), torch.randn(300)]).to(dtype)
    mine = (
        golden
        + 1e-2 * torch.randn(343).to(dtype)
        + torch.where(torch.arange(343) % 50 == 0, 5.0, 0.0).to(dtype)
    )
    whole = measured(golden, mine)
    monkeypatch.setattr(kernel, "BLOCK", block)
    pieces = measured(golden, mine)
    assert all(close(getattr(pieces, name), getattr(whole, name)) for name in (*SEVEN, "max_scaled_error"))
    assert pieces.near_zero == whole.near_zero == 43
    assert pieces.worst == whole.worst
    assert pieces.beyond_tolerance == whole.beyond_tolerance


def test_the_pass_uses_one_thread_and_restores_the_setting() -> None:
    class Watching(TensorSource):
        def read(self, start: int, stop: int) -> torch.Tensor:
            seen.add(torch.get_num_threads())
            return super().read(start, stop)

    seen: set[int] = set()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        measure(Watching(torch.ones(3)), Watching(torch.ones(3)))
        assert (seen, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
