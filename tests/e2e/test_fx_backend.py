"""FX dumps of our own backend against each other: another compiler, dtype or tree, and a wrong weight."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.capture.fx_backend import fx_dump_backend
from acc_pytest.lab.demo import DemoPaths
from tests.capture.torchair.models import Attention

from .conftest import Run, read_rows


def dump(path: Path, *, spoil: float = 1.0, **options: Any) -> Path:
    """Two decoding steps of one decoder layer; `spoil` scales the weight of its last product."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Attention().eval()
    with torch.no_grad():
        model.out.weight.mul_(spoil)
        compiled = torch.compile(model, backend=fx_dump_backend(path, **options))
        for step in range(2):
            compiled(torch.arange(6).reshape(2, 3) + step, torch.arange(3) + step)
    return path


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize(
    "options",
    [
        {"inner": "aot_eager"},
        {"inner": torch.float64},
        {"inner": torch.bfloat16, "bfloat16": True},
        {"layout": "7.1"},
        {"layout": "oldest"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_the_same_graph_run_in_another_way_is_green(
    options: dict[str, Any], golden: Path, tmp_path: Path, acc: Run
) -> None:
    result = acc(DemoPaths(golden, dump(tmp_path / "mine", **options)))
    rows = read_rows()
    verdicts = Counter(row["verdict"] for row in rows)
    assert result.parseoutcomes() == {"passed": verdicts["pass"], "skipped": verdicts["unmapped"]}
    steps = {(row["token_id"], row["golden_op_type"]) for row in rows}
    assert steps >= {(step, f"aten.{op}.default") for step in "01" for op in ("bmm", "copy_")}


def test_a_wrong_weight_shows_first_where_it_enters(golden: Path, tmp_path: Path, acc: Run) -> None:
    result = acc(DemoPaths(golden, dump(tmp_path / "mine", spoil=1.5)))
    failed = [line.split(" - ")[0] for line in result.outlines if line.startswith("FAILED ")]
    assert failed[0] == "FAILED mine::step0::graph_1::t_1-aten.t.default[in0]"
    assert not [line for line in failed if "bmm" in line or "_softmax" in line]
