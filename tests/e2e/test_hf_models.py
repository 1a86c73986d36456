"""The five architectures of Hugging Face against ATB: all is mapped by `auto`, and clean pairs are green."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from acc_pytest.capture.fx_backend import fx_dump_backend
from acc_pytest.dumps.base import StepLabel
from acc_pytest.lab.demo import DemoPaths
from tests.capture.torchair.models import Attention
from tests.newer import experts_are_one_module
from tests.slow import slow

from .conftest import Run, read_rows
from .hf_models import DECODE_STEPS, HuggingFace, scratch

pytestmark = pytest.mark.usefixtures("replayed")

IN_EXPERTS = re.compile(r"_MoeMlp/")
"""Mixtral's experts are one module without modules in it: golden has no tensor of a single expert."""
OF_ROUTER = {
    "1_LinearNoQuant/0_LinearOperation": "gate output[0]",
    "3_SortOperation": "gate output[2]",
    "5_ElewiseOperation": "gate output[1]",
    "40_ElewiseOperation": "experts output[0]",
}
"""What is mapped there: logits, chosen experts, their weights, and the sum of their results."""
OPERATORS = 0.9
"""Least share of operators, of those that have a counterpart, that must be mapped."""


@pytest.fixture(scope="module")
def hugging_face() -> Iterator[HuggingFace]:
    with scratch() as directory:
        yield HuggingFace(directory)


def share(operators: dict[tuple[StepLabel, str], bool]) -> float:
    """The mapped share of the operators that have a counterpart."""
    known = [mapped for (_, path), mapped in operators.items() if not IN_EXPERTS.search(path)]
    return sum(known) / len(known)


@pytest.mark.parametrize(
    ("dtype", "ranks", "steps", "layers"), [slow("float16", 1, DECODE_STEPS, 2), ("bfloat16", 2, 1, 1)]
)
@pytest.mark.parametrize("name", ["llama", "bloom", "mixtral", *map(slow, ("qwen", "glm"))])
def test_a_clean_pair_is_mapped_and_green(
    name: str, dtype: str, ranks: int, steps: int, layers: int, hugging_face: HuggingFace
) -> None:
    if name == "mixtral" and not experts_are_one_module():
        pytest.skip("transformers 4 has a module for each expert, and ATB one operator for all")
    golden = hugging_face.golden(name, dtype, steps=steps, layers=layers)
    found = hugging_face.compare(golden, dtype, ranks)
    mapped = {(pair.step, pair.layer) for pair in found.plan.pairs if pair.level == "layer"}
    assert {(step, f"layers.{n}") for step in range(steps + 1) for n in range(layers)} <= mapped
    assert share(found.golden) >= OPERATORS
    assert share(found.mine) >= OPERATORS
    assert not found.wrong


def test_of_experts_that_are_one_module_router_and_sum_are_mapped(hugging_face: HuggingFace) -> None:
    if not experts_are_one_module():
        pytest.skip("of transformers 4 they are not")
    mapped = hugging_face.compare(hugging_face.golden("mixtral", steps=1, layers=1)).plan
    for end, wanted in OF_ROUTER.items():
        pairs = [pair for pair in mapped.pairs if pair.mine.node.endswith(f"2_MoeMlp/{end}")]
        assert {pair.step for pair in pairs} == {0, 1}
        assert {f"{pair.golden.node.split('.')[-1]} {pair.golden.slot}" for pair in pairs} == {wanted}


@pytest.mark.parametrize(("name", "rotates"), [("llama", "RopeOperation"), ("glm", "ConcatOperation")])
def test_the_rotated_query_is_compared_where_functions_were_dumped(
    name: str, rotates: str, hugging_face: HuggingFace
) -> None:
    found = hugging_face.compare(hugging_face.golden(name, mode="module,api", steps=1, layers=1))
    rotated = [row for row in found.rows if row.golden.node.endswith("self_attn.matmul")]
    assert rotates in {row.mine.op_type for row in rotated}
    assert not found.wrong


def test_a_dump_of_the_old_hooks_is_mapped_too(hugging_face: HuggingFace) -> None:
    """The old tool lost keyword arguments, caches and results with names."""
    golden = hugging_face.golden("llama", layers=1)
    for file in golden.path.rglob("*"):
        if file.name == "manifest.json" or re.fullmatch(r"(input|output)_[a-z].*\.pth", file.name):
            file.unlink()
    found = hugging_face.compare(golden)
    assert share(found.golden) >= OPERATORS
    assert share(found.mine) >= OPERATORS
    assert "ReshapeAndCacheOperation" in {pair.mine.op_type for pair in found.plan.pairs}
    assert not found.wrong


@pytest.mark.parametrize(("name", "ranks"), [slow("qwen", 2), ("bloom", 1)])
def test_the_whole_trip_is_green(
    name: str, ranks: int, hugging_face: HuggingFace, acc: Callable[..., pytest.RunResult]
) -> None:
    golden = hugging_face.golden(name, steps=1)
    mine, _ = hugging_face.run(golden, ranks=ranks)
    result = acc(SimpleNamespace(golden=golden.path, mine=mine), "-q")
    assert result.ret == 0
    outcomes = result.parseoutcomes()
    assert set(outcomes) <= {"passed", "skipped", "warnings"}
    assert outcomes["passed"] > 100
    skipped = [row["verdict"] for row in read_rows() if row["verdict"] != "pass"]
    assert skipped == ["unmapped"] * outcomes.get("skipped", 0)


# FX dumps of our own backend against each other: another compiler, dtype or tree, and a wrong weight.


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
        slow({"inner": "aot_eager"}),
        slow({"inner": torch.float64}),
        slow({"inner": torch.bfloat16, "bfloat16": True}),
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
