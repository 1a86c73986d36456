"""A spec that no model can have is refused with a sentence that says what to change."""

from __future__ import annotations

from typing import Any

import pytest

from acc_pytest.errors import SettingsError
from acc_pytest.lab.demo import DemoSpec, Fault


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "gpt"}, "demo: family must be one of llama, bloom,.*, got 'gpt'"),
        (
            {"era": "E3"},
            "demo: era must be one of ait_dump, ait_dump_ts, msit_dump_ts, atb_dump_data, got 'E3'",
        ),
        ({"dtype": "float8"}, "model: dtype must be one of float16, bfloat16, float32, got 'float8'"),
        ({"layers": 0}, "model: layers must be >= 1, got 0"),
        ({"decode_steps": -1}, "demo: decode_steps must be >= 0, got -1"),
        ({"hidden": 30}, "demo: hidden must be an even multiple of heads=4, got 30"),
        ({"kv_heads": 3}, "must be a multiple of kv_heads=3"),
        ({"family": "bloom", "kv_heads": 2}, "bloom packs one key per query head"),
        ({"ranks": 3}, "heads=4 does not split over 3 ranks"),
        ({"description": True, "era": "atb_dump_data"}, "has no descriptions"),
        ({"ranks": 2, "models": 3}, "model: models must be one of 1, 2, got 3"),
        ({"statistics": True, "description": True}, "exclude each other"),
        ({"fault": Fault("replica")}, "demo: fault 'replica' needs ranks >= 2, got 1"),
    ],
)
def test_an_impossible_spec_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
        DemoSpec(**options)


@pytest.mark.parametrize(("family", "models"), [("llama", 2), ("moe", 2), ("bloom", 1), ("chatglm", 1)])
def test_models_and_warmup_default_to_the_familys_habit(family: str, models: int) -> None:
    spec = DemoSpec(family=family).resolved()
    assert (spec.models, spec.warmup) == (models, models == 2)


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 2), (14, 2), (20, 3), (40, 6)])
def test_the_cache_holds_the_whole_run(tokens: int, blocks: int) -> None:
    spec = DemoSpec(prompt_length=tokens, decode_steps=1).model
    assert spec.blocks == blocks
    assert spec.positions >= tokens + 1
