"""A demo the size of a real dump has its files, headers, topology and parameters, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acc_pytest.lab.demo import DemoPaths, DemoSpec, make_demo
from tests.newer import in_this_torch

PROBE = Path(__file__).parents[3] / ".." / "shared" / "conformance" / "probe"
pytestmark = pytest.mark.skipif(
    not PROBE.is_dir(), reason="conformance data (../shared/conformance) is not here"
)

# without a warm-up the first execution holds what execution 1 of the real dumps holds
TWO_MODELS: dict[str, Any] = {"kernels": True, "decode_steps": 1, "warmup": False}
BLOOM: dict[str, Any] = {
    "family": "bloom",
    "layers": 3,
    "intermediate": 128,
    "era": "ait_dump_ts",
    "kernels": True,
    "decode_steps": 1,
}


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DemoPaths]:
    specs = {
        "A": DemoSpec(**TWO_MODELS),
        "B_e2": DemoSpec(**BLOOM),
        "C": DemoSpec(**TWO_MODELS, ranks=2),
        "D_e4": DemoSpec(**TWO_MODELS, era="atb_dump_data", named=True),
    }
    return {name: make_demo(tmp_path_factory.mktemp(name), spec) for name, spec in specs.items()}


def shape_of(path: Path) -> bytes:
    """Everything of a file but its payload."""
    content = in_this_torch(path.read_bytes())
    return content[: content.index(b"$End=1")] if path.suffix == ".bin" else content


def listing(root: Path) -> dict[str, bytes]:
    assert root.is_dir(), root
    return {str(p.relative_to(root)): shape_of(p) for p in root.rglob("*") if p.is_file()}


def modules(path: Path) -> set[tuple[str, str]]:
    """Name and type of every module; the old hook meant to order siblings by execution and did not."""
    found, waiting = set(), [json.loads(path.read_text())]
    while waiting:
        node = waiting.pop()
        found.add((node["name"], node["type"]))
        waiting += node["children"]
    return found


def one(root: Path, pattern: str) -> Path:
    (found,) = root.glob(pattern)
    return found


@pytest.mark.parametrize(
    ("name", "real", "ours"),
    [
        ("A", "A/atb/*/tensors/0_14460/1", "*/tensors/0_5001/0"),
        ("A", "A/atb/*/layer/14460", "*/layer/5001"),
        ("A", "A/atb/*/model/14460", "*/model/5001"),
        ("B_e2", "B_e2/atb/*/tensors/0_14567/0", "*/tensors/0_5001/0"),
        ("B_e2", "B_e2/atb/*/tensors/0_14567/1", "*/tensors/0_5001/1"),
        ("B_e2", "B_e2/atb/*/layer/14567", "*/layer/5001"),
        ("B_e2", "B_e2/atb/*/model/14567", "*/model/5001"),
        ("C", "C/atb/*/tensors/0_14617/1", "*/tensors/0_5001/0"),
        ("C", "C/atb/*/tensors/1_14618/1", "*/tensors/1_5002/0"),
        ("C", "C/atb/*/layer/14618", "*/layer/5002"),
        ("C", "C/atb/*/model/14618", "*/model/5002"),
        ("D_e4", "D_e4/atb_named/atb_dump_data/data/*/1/2_Prefill_layer", "*/data/*/0/2_Prefill_layer"),
        ("D_e4", "D_e4/atb_named/atb_dump_data/data/*/1/9_Decoder_layer", "*/data/*/0/9_Decoder_layer"),
        ("D_e4", "D_e4/atb_named/atb_dump_data/info/layer/*", "*/info/layer/*"),
        ("D_e4", "D_e4/atb_named/atb_dump_data/info/model/*", "*/info/model/*"),
    ],
)
def test_mine_looks_like_the_real_dump(demos: dict[str, DemoPaths], name: str, real: str, ours: str) -> None:
    assert listing(one(demos[name].mine, ours)) == listing(one(PROBE, real))


@pytest.mark.parametrize("name", ["A", "B_e2"])
def test_golden_looks_like_the_real_dump(demos: dict[str, DemoPaths], name: str) -> None:
    ours = one(demos[name].golden, "*/torch_tensors/*")
    real = one(PROBE, f"{name}/golden/*/torch_tensors/*")
    assert modules(ours / "model_tree.json") == modules(real / "model_tree.json")
    for token in ("0", "1"):
        # the old hook lost keyword arguments and results that are no tuples
        assert listing(ours / token).keys() >= listing(real / token).keys()
