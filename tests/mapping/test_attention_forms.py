"""One encoder-decoder, with attention that gives its weights on one side and none on the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest import DumpConfig, register_hook
from acc_pytest.session import make_plan
from acc_pytest.settings import Settings
from tests.newer import scaled_attention


def dumped(path: Path, implementation: str) -> str:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        f"{side}_{what}": size
        for side in ("encoder", "decoder")
        for what, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))
    }
    config = transformers.BartConfig(d_model=16, vocab_size=40, **sizes, attn_implementation=implementation)
    torch.manual_seed(1)
    model = transformers.BartModel(config).eval()
    ids = torch.arange(12)[None]
    with torch.no_grad(), register_hook(model, DumpConfig(path)):
        model(input_ids=ids, decoder_input_ids=ids[:, :5])
    return str(path)


@pytest.mark.parametrize("sides", [("eager", "sdpa"), ("sdpa", "eager")])
def test_modules_of_one_model_meet_by_name(tmp_path: Path, sides: tuple[str, str]) -> None:
    scaled_attention()
    golden, mine = (dumped(tmp_path / side, side) for side in sides)
    plan = make_plan(Settings.from_values({"golden": golden, "mine": mine}))
    others = {(pair.golden.node, pair.mine.node) for pair in plan.pairs if pair.golden.node != pair.mine.node}
    assert not others
    assert sum(pair.golden.node.endswith("encoder_attn.out_proj") for pair in plan.pairs) > 1
