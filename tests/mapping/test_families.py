"""Every demo family is mapped in full: layouts, packs, shards and experts, with the right numbers."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acc_pytest.diagnosis.run import run
from acc_pytest.dumps import open_dump
from acc_pytest.dumps.base import keep_rank
from acc_pytest.lab.demo import DemoSpec, make_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.mapping.reconcile import open_pair
from tests.dumps.msprobe_writer import RankWriter
from tests.slow import slow

from .data_parallel import FAULTY, Run
from .renamed import GOLDEN, MINE, renamed
from .served import RIGHT, Engine, Fault, Recorded, Spec, hugging_face_records
from .trees import relative_error

SPECS = {
    "llama": DemoSpec(decode_steps=2),
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


QUICK = ("llama", "gqa", "separate", "moe", "bloom-two-ranks", "chatglm-gqa-four-ranks")
"""Every family, a pack, ranks and experts."""


@pytest.fixture(scope="module", params=[*QUICK, *map(slow, [name for name in SPECS if name not in QUICK])])
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


# A family that no table knows: no module is called as in the other dump, nor as in any model.


NO_COUNTERPART = {("golden", "rotary_emb"), ("golden", "bend"), ("mine", "phase")}
"""Tables, a half of what the engine multiplies at once, and a query whose tables nobody handed over."""


def both(spec: Spec, home: Path, fault: Fault = RIGHT) -> tuple[Recorded, Recorded]:
    golden = hugging_face_records(replace(spec, ranks=1), home / "golden")
    engine = Engine(spec, home / "mine", fault)
    engine.run()
    return renamed([golden], GOLDEN, home / "golden"), renamed(engine.records, MINE, home / "mine")


def alone(made: Plan) -> set[tuple[str, str]]:
    return {(left.side, left.node.rpartition(".")[2]) for left in made.unmapped}


def test_values_tell_what_has_no_name_in_common(tmp_path: Path) -> None:
    made = plan(*both(Spec(ranks=2, dtype=torch.bfloat16), tmp_path))
    rows, _ = run(made)
    assert {row.verdict for row in rows} == {"pass"}
    assert alone(made) == NO_COUNTERPART
    packs = {(pair.golden.node, pair.mine.node) for pair in made.pairs if "three" in pair.mine.node}
    assert {(g.rpartition(".")[2], m.rpartition(".")[2]) for g, m in packs} == {
        (each, "three") for each in "abc"
    }


def test_the_packed_side_may_be_golden(tmp_path: Path) -> None:
    mine, golden = both(Spec(), tmp_path)
    made = plan(golden, mine)
    rows, _ = run(made)
    assert {row.verdict for row in rows} == {"pass"}
    assert alone(made) == {("mine" if side == "golden" else "golden", name) for side, name in NO_COUNTERPART}


def test_a_layer_that_is_wrong_is_told_by_another_one(tmp_path: Path) -> None:
    made = plan(*both(Spec(), tmp_path, Fault("norm", layer=1)))
    _, diagnosis = run(made)
    assert diagnosis.roots[0].row.mine.node == "root.model.stages.1.scale2"
    assert alone(made) == NO_COUNTERPART


def test_what_only_looks_alike_in_shape_does_not_meet(tmp_path: Path) -> None:
    golden, _ = both(Spec(), tmp_path / "one")
    _, other = both(Spec(seed=9), tmp_path / "other")
    assert not [pair for pair in plan(golden, other).pairs if pair.policy == "values"]


# Gradients inherit from what their forward call held.


X, Y, Z = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)


def training(home: Path) -> Path:
    """Two functions and their gradients. What arrives first is a constant, as behind a sum."""
    writer = RankWriter(home)
    one = torch.ones(3, 4)
    for name, parts in (
        ("Torch.relu.0.forward", {"input_args": [X], "input_kwargs": {}, "output": [Y]}),
        ("Tensor.pow.0.forward", {"input_args": [Y], "input_kwargs": {}, "output": [Z]}),
        ("Tensor.pow.0.backward", {"input": [one], "output": [2 * Y]}),
        ("Torch.relu.0.backward", {"input": [2 * Y], "output": [3 * X]}),
    ):
        writer.began(name)
        writer.ended(name, parts)
    return writer.write()


def test_a_gradient_is_computed_of_what_arrives_and_of_what_the_forward_call_held(tmp_path: Path) -> None:
    dump = open_dump(str(training(tmp_path)))
    made = plan(dump, dump)
    names = [f"{pair.mine.node} {pair.mine.slot}" for pair in made.pairs]
    parents = {name: {names[other] for other in made.parents[at]} for at, name in enumerate(names)}
    assert {"root.pow output[0]", "root.relu output[0]"} <= parents["root.pow.backward output[0]"]
    assert {"root.relu output[0]", "root.pow.backward output[0]"} <= parents["root.relu.backward output[0]"]
    assert not any(name in found for name, found in parents.items())


# Ranks with prompts of their own: no tensor of one is a part of another's, however few the tokens are.


@pytest.mark.parametrize(
    "parallel",
    [
        Run(tokens=5),
        slow(Run(tokens=1, steps=2, step=1)),
        Run(tokens=8, batch=3),
        slow(Run(ranks=16, tokens=1, batch=2, steps=2, step=1)),
    ],
)
def test_a_fault_of_one_rank_is_seen_undiluted(
    parallel: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden, mine = parallel.dumped(tmp_path, monkeypatch)
    made = plan(open_dump(golden), open_dump(mine))
    rows, diagnosis = run(made)
    assert {pair.rank for pair in made.pairs} == set(range(parallel.ranks))
    assert {(row.rank, row.step) for row in rows if row.verdict != "pass"} == {("6", parallel.step)}
    [root] = diagnosis.roots
    assert root.row.mine.node == f"root.{FAULTY}"
    assert root.row.metrics["relative_euclidean_distance"] == pytest.approx(2, rel=0.02)
    assert f"ranks: {parallel.ranks} on both sides, compared rank by rank" in made.notes


def test_ranks_with_one_prompt_are_no_parts_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden, mine = Run(same=True, steps=2).dumped(tmp_path, monkeypatch)
    rows, diagnosis = run(plan(open_dump(golden), open_dump(mine)))
    [root] = diagnosis.roots
    assert (root.row.mine.node, root.row.rank) == (f"root.{FAULTY}", "6")
    assert {row.step for row in rows if row.verdict != "pass"} == {0}


def test_a_module_that_ran_on_another_rank_only_is_compared_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden, mine = Run(ranks=3, faulty=2).dumped(tmp_path, monkeypatch)
    for side in (golden, mine):
        for folder in Path(side).rglob(f"root.{FAULTY}"):
            if "cpu_3" not in folder.parts:
                shutil.rmtree(folder)
    made = plan(open_dump(golden), open_dump(mine))
    _, diagnosis = run(made)
    assert {pair.rank for pair in made.pairs if pair.mine.node == f"root.{FAULTY}" and not pair.fed} == {2}
    assert diagnosis.roots[0].row.mine.node == f"root.{FAULTY}"
    assert {left.why for left in made.unmapped} == {"incomplete"}, "the manifests name what was deleted"


def test_any_rank_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = Run().dumped(tmp_path, monkeypatch)
    for rank, faulty in ((5, False), (6, True)):
        golden, mine = map(open_dump, dumps)
        keep_rank(golden, mine, rank)
        rows, _ = run(plan(golden, mine))
        assert any(row.verdict == "fail" for row in rows) == faulty


def test_ids_of_the_other_side_tell_of_ranks_whose_ids_were_not_dumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden, mine = replace(Run(), steps=2).dumped(tmp_path, monkeypatch)
    for ids in Path(mine).rglob("root*/input_0.pth"):
        if ids.parent.name in ("root", "root.embed"):
            ids.unlink()
    rows, _ = run(plan(open_dump(golden), open_dump(mine)))
    assert {row.rank for row in rows if row.verdict != "pass"} == {"6"}
