"""Dumps whose modules are called otherwise, as those of a family that no table knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from acc_pytest.dumps.modules import Record

from .served import Recorded, Recorder, records_of

GOLDEN = {
    "embed_tokens": "lookup",
    "layers": "blocks",
    "self_attn": "mixer",
    "q_proj": "a",
    "k_proj": "b",
    "v_proj": "c",
    "o_proj": "merge",
    "input_layernorm": "before",
    "post_attention_layernorm": "between",
    "mlp": "wide",
    "gate_proj": "opened",
    "up_proj": "raised",
    "down_proj": "back",
    "act_fn": "bend",
    "norm": "last",
    "lm_head": "scores",
}
MINE = {
    "embed_tokens": "words",
    "layers": "stages",
    "self_attn": "reader",
    "qkv_proj": "three",
    "rotary_emb": "phase",
    "attn": "kernel",
    "o_proj": "out",
    "input_layernorm": "scale1",
    "post_attention_layernorm": "scale2",
    "mlp": "inner",
    "gate_up_proj": "two",
    "down_proj": "narrow",
    "act_fn": "product",
    "norm": "scale3",
    "logits_processor": "sampler",
}


def renamed(recorders: Sequence[Recorder], names: Mapping[str, str], home: Path) -> Recorded:
    """The dump of these records under other names."""

    def other(record: Record) -> Record:
        return replace(record, path=".".join(names.get(part, part) for part in record.path.split(".")))

    records = records_of(recorders)
    return Recorded(home, {0: {rank: [other(each) for each in calls] for rank, calls in records.items()}})
