"""Modules in dumps of other tools on their own inputs: golden's model computes them again (`--acc-model`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # layers import it when they are made, and pytester forgets what it imported

from tests.dumps.hooked_models import debugger_run, sglang_run
from tests.dumps.msprobe_writer import RankWriter, record

from . import replay_models
from .conftest import QUICKER, read_rows
from .replay_models import Decoder, make_model

IDS = torch.arange(24).reshape(1, 24) * 7 % 97


def msprobe(home: Path, model: Decoder) -> None:
    record(RankWriter(home / "step0" / "proc1", level="L0"), model, [[IDS]]).write()


def sglang(home: Path, model: Decoder) -> None:
    sglang_run(home, model, {"input_ids": IDS})


def debugger(home: Path, model: Decoder) -> None:
    debugger_run(home, model, {"input_ids": IDS})


Write = Callable[[Path, Decoder], None]


def dumped(home: Path, write: Write, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Path:
    """A run of the model; `scale` changes the softmax of one attention."""
    model = make_model()
    layers: Any = model.layers
    layers[0].attn.scale *= scale
    write(home, model.to(dtype))
    return home


def replayed(pytester: pytest.Pytester, golden: Path, mine: Path) -> pytest.RunResult:
    model = f"--acc-model={replay_models.__file__}:make_model"
    report = ("--acc-output=out", "--acc-csv=acc.csv", "-q")
    sides = (f"--acc-golden={golden}", f"--acc-mine={mine}")
    return pytester.runpytest_inprocess(*QUICKER, *sides, *report, "--acc-replay", model)


def with_function(home: Path, scale: float = 1.0) -> Path:
    """A dump of level mix: a function that an MLP called, beside all modules."""
    writer = record(RankWriter(home / "step0" / "proc1"), make_model().bfloat16(), [[IDS]])
    name, x = "Functional.silu.0.forward", torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
    writer.began(name, "Module.layers.0.mlp.Mlp.forward.0")
    writer.ended(
        name, {"input_args": [x], "input_kwargs": {}, "output": [torch.nn.functional.silu(x) * scale]}
    )
    writer.write()
    return home


def test_functions_beside_the_modules_of_a_model_are_computed_from_their_records(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    golden = with_function(tmp_path / "golden")
    assert replayed(pytester, golden, with_function(tmp_path / "right")).ret == 0
    rows = {row["my_name"]: row["thresholds"] for row in read_rows() if row["my_slot"] == "output[0]"}
    assert "replay_error" in rows["root.layers.0.mlp.silu"]
    assert "replay_error" in rows["root.layers.0.mlp.down_proj"]
    result = replayed(pytester, golden, with_function(tmp_path / "wrong", 1.5))
    result.stdout.fnmatch_lines(["root cause: root.layers.0.mlp.silu *wrong on its own inputs*"])


@pytest.mark.parametrize(
    ("write", "least"), [(msprobe, 33), (sglang, 35), (debugger, 24)], ids=["msprobe", "sglang", "debugger"]
)
def test_modules_are_right_or_wrong_on_their_own_inputs(
    pytester: pytest.Pytester, tmp_path: Path, write: Write, least: int
) -> None:
    golden = dumped(tmp_path / "golden", write, torch.float32)
    right = replayed(pytester, golden, dumped(tmp_path / "right", write))
    assert right.ret == 0
    rows = [row for row in read_rows() if "replay_error <=" in row["thresholds"]]
    assert len(rows) >= least, right.stdout.str()
    wrong = replayed(pytester, golden, dumped(tmp_path / "wrong", write, scale=1.05))
    assert wrong.ret == 1
    fails = [row["my_name"] for row in read_rows() if row["verdict"] == "fail"]
    assert len(fails) == 1
    assert fails[0].startswith("root.layers.0.attn")
