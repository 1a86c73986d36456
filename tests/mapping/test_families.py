"""Every demo family is mapped in full: layouts, packs, shards and experts, with the right numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from acc_pytest.dumps import open_dump
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair

from .trees import relative_error

SPECS = {
    "llama": DemoSpec(),
    "twelve-layers": DemoSpec(layers=12, decode_steps=0, warmup=False),
    "gqa": DemoSpec(kv_heads=2, decode_steps=1, warmup=False),
    "separate": DemoSpec(family="llama-separate", decode_steps=1, warmup=False),
    "bloom": DemoSpec(family="bloom", decode_steps=1),
    "chatglm": DemoSpec(family="chatglm", decode_steps=1),
    "moe": DemoSpec(family="moe", decode_steps=1, warmup=False),
    "tensor-parallel": DemoSpec(ranks=2, decode_steps=1),
    "four-ranks": DemoSpec(ranks=4, decode_steps=1, warmup=False),
    "bloom-two-ranks": DemoSpec(family="bloom", ranks=2, decode_steps=1),
    "chatglm-two-ranks": DemoSpec(family="chatglm", ranks=2, decode_steps=1),
    "chatglm-gqa-four-ranks": DemoSpec(family="chatglm", kv_heads=2, ranks=4, layers=1, decode_steps=1),
}
LEAST_COVERAGE = 0.9
NOISE = 16 * 2**-11 * math.sqrt(12)
"""16 roundings of float16 in each of up to 12 layers, adding up like a random walk."""


@pytest.fixture(scope="module", params=list(SPECS))
def mapped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Plan]:
    paths = make_demo(tmp_path_factory.mktemp(request.param), SPECS[request.param])
    golden = open_dump(str(paths.golden))
    return request.param, plan(golden, open_dump(str(paths.mine), golden=golden))


def test_golden_and_mine_are_covered(mapped: tuple[str, Plan]) -> None:
    _, mapped_plan = mapped
    assert mapped_plan.golden_mapped >= LEAST_COVERAGE * mapped_plan.golden_total
    assert mapped_plan.mine_mapped >= LEAST_COVERAGE * mapped_plan.mine_total


def test_every_pair_holds_the_same_numbers(mapped: tuple[str, Plan]) -> None:
    _, mapped_plan = mapped
    for pair in mapped_plan.pairs:
        for comparison in open_pair(pair).comparisons:
            error = relative_error(comparison)
            assert error <= NOISE, f"step {pair.step} {pair.layer} {pair.id} ({pair.policy}): {error}"


def test_a_file_that_cannot_be_read_keeps_its_pair(tmp_path: Path) -> None:
    paths = make_demo(tmp_path, DemoSpec(layers=1, decode_steps=0, warmup=False))
    golden = open_dump(str(paths.golden))
    before = {pair.id for pair in plan(golden, open_dump(str(paths.mine), golden=golden)).pairs}
    for name in ("3_SelfAttentionOperation/after/outtensor0.bin", "1_ElewiseOperation/before/intensor1.bin"):
        for file in paths.mine.glob(f"*/tensors/**/{name}"):
            file.write_bytes(file.read_bytes()[:40])
    for file in paths.golden.glob("*/torch_tensors/*/0/*.q_proj/output.pth"):
        file.write_bytes(file.read_bytes()[:100])
    golden = open_dump(str(paths.golden))
    assert {pair.id for pair in plan(golden, open_dump(str(paths.mine), golden=golden)).pairs} == before


def test_a_tensor_missing_in_a_later_step_is_reported_there(tmp_path: Path) -> None:
    paths = make_demo(tmp_path, DemoSpec(layers=1, decode_steps=3))
    golden = open_dump(str(paths.golden))
    whole = plan(golden, open_dump(str(paths.mine), golden=golden))
    layer = sorted(paths.mine.glob("*/tensors/*/2/*_Decoder_layer"))[0]
    (layer / "3_ElewiseOperation" / "after" / "outtensor0.bin").unlink()
    golden = open_dump(str(paths.golden))
    less = plan(golden, open_dump(str(paths.mine), golden=golden))
    lost = {(p.step, p.layer, p.id) for p in whole.pairs} - {(p.step, p.layer, p.id) for p in less.pairs}
    assert {step for step, _, _ in lost} == {2}
    assert less.mine_total == whole.mine_total == less.mine_mapped + 1


def test_a_tensor_missing_on_one_rank_is_reported(tmp_path: Path) -> None:
    paths = make_demo(tmp_path, DemoSpec(layers=1, decode_steps=0, warmup=False, ranks=2))
    rank = sorted(paths.mine.glob("*/tensors/*"))[1]
    [file] = rank.glob("*/2_Prefill_layer/1_ElewiseOperation/after/outtensor0.bin")
    file.unlink()
    golden = open_dump(str(paths.golden))
    mapped_plan = plan(golden, open_dump(str(paths.mine), golden=golden))
    [left] = [left for left in mapped_plan.unmapped if "was not dumped" in left.reason]
    assert left.node == "2_Prefill_layer/1_ElewiseOperation"
    assert left.reason == f"output[0] was not dumped on rank {rank.name}, so it is not compared there"


def test_two_named_token_directories_are_a_pair_of_one_model(tmp_path: Path) -> None:
    paths = make_demo(tmp_path, DemoSpec(decode_steps=1))
    [golden_token] = paths.golden.glob("*/torch_tensors/*/0")
    [warmup] = paths.mine.glob("*/tensors/*/0")
    golden = open_dump(str(golden_token))
    forced = plan(golden, open_dump(str(warmup), golden=golden))
    assert {pair.step for pair in forced.pairs} == {0}
    assert not [pair for pair in forced.pairs if "Decoder_layer" in pair.mine.node]
    raw = plan(open_dump(str(paths.golden)), open_dump(str(paths.mine), token_policy="raw"))
    layers = {(pair.step, pair.mine.node.split("/")[0]) for pair in raw.pairs if pair.layer == "layers.0"}
    assert layers == {(0, "2_Prefill_layer"), (1, "8_Decoder_layer")}
