"""Sizes that no model can have are refused with what to change; the others say what a rank holds."""

from __future__ import annotations

from typing import Any

import pytest

from acc_pytest.errors import SettingsError
from acc_pytest.lab.atb import ModelSpec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "gpt"}, "model: family must be one of llama,.*, got 'gpt'"),
        ({"dtype": "int8"}, "model: dtype must be one of float16, bfloat16, float32, got 'int8'"),
        ({"models": 3}, "model: models must be one of 1, 2, got 3"),
        ({"layers": 0}, "model: layers must be >= 1, got 0"),
        ({"tokens": 0}, "model: tokens must be >= 1, got 0"),
        ({"kv_heads": 3}, "model: heads must be a multiple of kv_heads=3, got 4"),
        ({"family": "bloom", "kv_heads": 2}, "bloom packs one key per query head"),
        (
            {"experts": 4, "experts_per_token": 5},
            "model: experts_per_token must be from 1 to experts=4, got 5",
        ),
        ({"rotary_size": 3}, "model: rotary_size must be even and at most head_size=8, got 3"),
        ({"rotary_size": 10}, "model: rotary_size must be even and at most head_size=8, got 10"),
        ({"ranks": 0}, "model: ranks must be >= 1, got 0"),
        ({"ranks": 3}, "heads=4 does not split over 3 ranks"),
        ({"ranks": 4, "intermediate": 34}, "intermediate=34 does not split over 4 ranks"),
        ({"ranks": 6, "heads": 12, "kv_heads": 4}, "kv_heads=4 does not split over 6 ranks; one of the two"),
    ],
)
def test_an_impossible_model_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ModelSpec(**options)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "own"),
    [(8, 8, 1, (8, 8)), (8, 4, 2, (4, 2)), (8, 2, 2, (4, 1)), (8, 2, 4, (2, 1)), (8, 1, 8, (1, 1))],
)
def test_heads_are_split_and_the_last_key_head_is_shared(
    heads: int, kv_heads: int, ranks: int, own: tuple[int, int]
) -> None:
    spec = ModelSpec(heads=heads, kv_heads=kv_heads, ranks=ranks, intermediate=64)
    assert (spec.own_heads, spec.own_kv_heads) == own


@pytest.mark.parametrize(("tokens", "blocks", "positions"), [(1, 2, 16), (16, 2, 16), (17, 3, 24)])
def test_the_cache_has_room_for_the_tokens(tokens: int, blocks: int, positions: int) -> None:
    spec = ModelSpec(tokens=tokens)
    assert (spec.blocks, spec.positions) == (blocks, positions)


@pytest.mark.parametrize(
    ("models", "phases", "first", "later"),
    [(1, ("both",), "both", "both"), (2, ("prefill", "decode"), "prefill", "decode")],
)
def test_a_step_runs_in_the_model_of_its_phase(
    models: int, phases: tuple[str, ...], first: str, later: str
) -> None:
    spec = ModelSpec(models=models)
    assert (spec.phases, spec.phase_of(0), spec.phase_of(7)) == (phases, first, later)
