"""A spec that no model can have is refused with a sentence that says what to change."""

from __future__ import annotations

from typing import Any

import pytest

from acc_pytest.demo import DemoSpec, Fault
from acc_pytest.errors import SettingsError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "gpt"}, "family='gpt'; choose one of llama"),
        ({"era": "E3"}, "era='E3'"),
        ({"dtype": "float8"}, "dtype='float8'"),
        ({"layers": 0}, "layers=0"),
        ({"decode_steps": -1}, "decode_steps=-1"),
        ({"hidden": 30}, "hidden=30 must be an even multiple"),
        ({"kv_heads": 3}, "must be a multiple of kv_heads=3"),
        ({"family": "bloom", "kv_heads": 2}, "bloom packs one key per query head"),
        ({"ranks": 3}, "heads=4 does not split over 3 ranks"),
        ({"description": True, "era": "atb_dump_data"}, "has no descriptions"),
        ({"ranks": 2, "models": 3}, "models=3; choose one of 1, 2"),
        ({"statistics": True, "description": True}, "exclude each other"),
        ({"fault": Fault("replica")}, "needs ranks=2 or more"),
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
