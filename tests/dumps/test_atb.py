"""AtbDump: steps, ranks and slots of ATB dumps, whatever the probe left on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import Dump, Slot, open_dump
from acc_pytest.dumps.atb import AtbDump, models_of
from acc_pytest.errors import DumpError, FormatError
from acc_pytest.lab.demo.make import DemoSpec, make_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.tensors import atb_bin
from acc_pytest.topology.atb import ReportedOperation
from tests.dumps.trees import Runs

from .trees import (
    DECODE,
    PREFILL,
    atb,
    bin_file,
    json_file,
    leaf,
    model_report,
    run_model,
    topology,
    torch_dump,
)

PROMPT = (5, 6, 7)
WARMED: Runs = {
    0: {"prefill": (1, 1, 1), "decode": (1,)},
    1: {"prefill": PROMPT, "decode": (30,)},
    2: {"decode": (31,)},
}


def labels(dump: Dump) -> list[tuple[object, str, str]]:
    return [(step.label, step.directory, step.tree.model) for step in dump.steps]


def slots(dump: Dump, label: object, path: str, rank: int = 0) -> dict[str, str]:
    step = next(step for step in dump.steps if step.label == label)
    found = dump.tensors(step, dump.ranks[rank], step.tree.by_path[path])
    return {str(slot): Path(ref.path).relative_to(dump.root).as_posix() for slot, ref in found.items()}


def test_steps_are_decided_by_the_goldens_token_ids(tmp_path: Path) -> None:
    golden = open_dump(str(torch_dump(tmp_path / "golden", {0: PROMPT, 1: (30,), 2: (31,)})))
    mine = open_dump(str(atb(tmp_path / "ait_dump", WARMED)), golden=golden)
    assert labels(mine) == [
        ("warmup", "0", "Toy_Prefill+Toy_Decoder"),
        (0, "1", "Toy_Prefill"),
        (1, "1", "Toy_Decoder"),
        (2, "2", "Toy_Decoder"),
    ]
    assert "the token ids of its prompt are the golden's" in mine.notes[0]


def test_the_golden_may_be_an_atb_dump_too(tmp_path: Path) -> None:
    golden = open_dump(str(atb(tmp_path / "a", {0: {"prefill": PROMPT, "decode": (30,)}})))
    mine = open_dump(str(atb(tmp_path / "b", WARMED)), golden=golden)
    assert mine.steps[1].label == 0
    assert mine.steps[1].directory == "1"


def test_lengths_decide_where_values_were_not_dumped(tmp_path: Path) -> None:
    root = atb(
        tmp_path / "d", {0: {"prefill": (1,) * 9, "decode": (1,)}, 1: {"prefill": PROMPT}}, embed=False
    )
    golden = open_dump(str(torch_dump(tmp_path / "golden", {0: (4,) * 9, 1: (30,)})))
    assert "no-warmup" in open_dump(str(root), golden=golden).notes[0]


def test_description_only_ids_still_tell_their_number(tmp_path: Path) -> None:
    root = atb(tmp_path / "d", {0: {"prefill": (1,) * 9, "decode": (30,)}, 1: {"prefill": PROMPT}})
    for number, count in ((0, 9), (1, 3)):
        embedding = root / "tensors" / "0_100" / str(number) / "0_WordEmbedding" / "before" / "intensor1.bin"
        atb_bin.write_description(embedding, torch.int64, (count,))
    golden = open_dump(str(torch_dump(tmp_path / "golden", {0: (4,) * 9, 1: (30,)})))
    assert "no-warmup" in open_dump(str(root), golden=golden).notes[0]


def test_a_named_token_directory_is_forced_and_stands_alone(tmp_path: Path) -> None:
    root = atb(tmp_path / "ait_dump", WARMED)
    dump = open_dump(str(root / "tensors" / "0_100" / "1"))
    assert dump.forced
    assert labels(dump) == [(0, "1", "Toy_Prefill"), (1, "1", "Toy_Decoder")]
    deeper = open_dump(str(root / "tensors" / "0_100" / "2" / "4_Decoder_layer"))
    assert labels(deeper) == [(2, "2", "Toy_Decoder")]


def test_a_named_directory_that_is_no_step_is_compared_as_it_is(tmp_path: Path) -> None:
    root = atb(tmp_path / "ait_dump", {0: {"prefill": PROMPT}, 1: {"prefill": PROMPT}})
    named = open_dump(str(root / "tensors" / "0_100" / "1"), token_policy="no-warmup")
    assert labels(named) == [(1, "1", "Toy_Prefill+Toy_Decoder")]


def test_a_named_directory_without_operations_lists_those_that_have_some(tmp_path: Path) -> None:
    root = atb(tmp_path / "ait_dump", WARMED)
    (root / "tensors" / "0_100" / "9").mkdir()
    with pytest.raises(
        DumpError, match="0_100/9: holds no operation of the model; token directories that do: 0, 1, 2"
    ):
        open_dump(str(root / "tensors" / "0_100" / "9"))


def test_a_dump_of_the_warmup_alone_cannot_be_compared_with_a_torch_dump(tmp_path: Path) -> None:
    golden = open_dump(str(torch_dump(tmp_path / "golden", {0: PROMPT})))
    root = atb(tmp_path / "ait_dump", {0: WARMED[0]})
    with pytest.raises(DumpError, match="--acc-token-policy no-warmup"):
        open_dump(str(root), token_policy="warmup", golden=golden)


def test_outputs_come_from_after_and_inputs_from_before_or_else_after(tmp_path: Path) -> None:
    root = atb(tmp_path / "d", {0: {"prefill": PROMPT}})
    home = root / "tensors" / "0_100" / "0" / "1_Prefill_layer"
    for name in (
        "before/intensor0",
        "after/intensor0",
        "after/intensor10_mask",
        "before/outtensor0",
        "before/outtensor2",
    ):
        bin_file(home / f"{name}.bin", torch.zeros(1))
    (home / "after" / "notes.txt").write_text("not a tensor")
    assert slots(open_dump(str(root)), 0, "1_Prefill_layer") == {
        "input[0]": "tensors/0_100/0/1_Prefill_layer/before/intensor0.bin",
        "input[10]": "tensors/0_100/0/1_Prefill_layer/after/intensor10_mask.bin",
        "output[0]": "tensors/0_100/0/1_Prefill_layer/after/outtensor0.bin",
    }


def test_outputs_saved_only_before_the_run_are_left_out_and_said_to_be_stale(tmp_path: Path) -> None:
    root = atb(tmp_path / "d", {0: {"prefill": PROMPT}})
    for after in list(root.rglob("after")):
        after.rename(after.parent / "unused")
        bin_file(after.parent / "before" / "outtensor0.bin", torch.zeros(1))
    dump = open_dump(str(root))
    assert not any(text.startswith("output") for text in slots(dump, 0, "1_Prefill_layer/0_LinearOperation"))
    assert "hold stale memory" in dump.notes[-1]


def test_references_know_the_execution_directory_of_a_moved_dump(tmp_path: Path) -> None:
    dump = open_dump(str(atb(tmp_path / "d", {0: {"prefill": PROMPT}})))
    step = dump.steps[0]
    found = dump.tensors(step, dump.ranks[0], step.tree.by_path["1_Prefill_layer/0_LinearOperation"])
    assert found[Slot("output")].root == str(tmp_path / "d" / "tensors" / "0_100" / "0")


def test_kernels_are_no_nodes(tmp_path: Path) -> None:
    dump = open_dump(str(atb(tmp_path / "d", {0: {"prefill": PROMPT}})))
    assert not any("Kernel" in path for path in dump.steps[0].tree.by_path)


def test_the_root_of_a_model_has_no_tensors(tmp_path: Path) -> None:
    dump = open_dump(str(atb(tmp_path / "d", {0: {"prefill": PROMPT}})))
    assert dump.tensors(dump.steps[0], dump.ranks[0], dump.steps[0].tree.root) == {}


def test_ranks_are_in_numeric_order(tmp_path: Path) -> None:
    workers = ["10_300", "9_299", "1_302"]
    dump = open_dump(str(atb(tmp_path / "d", {0: {"prefill": PROMPT}}, workers=workers)))
    assert [rank.name for rank in dump.ranks] == ["1_302", "9_299", "10_300"]
    assert slots(dump, 0, "2_LmHead", rank=2)["output[0]"].startswith("tensors/10_300/0/")


def test_leftovers_beside_the_ranks_are_named_and_not_used(tmp_path: Path) -> None:
    root = atb(tmp_path / "d", {0: {"prefill": PROMPT}})
    bin_file(root / "tensors" / "1_55" / "0" / "0_Unrelated" / "after" / "outtensor0.bin", torch.zeros(1))
    (root / "tensors" / "backup").mkdir()
    dump = open_dump(str(root))
    assert [rank.name for rank in dump.ranks] == ["0_100"]
    assert "left out, not named {device}_{pid}: backup" in dump.notes
    assert "left out, no operation of the model in them: 1_55" in dump.notes


def test_two_runs_in_one_root_are_told_apart_by_the_path(tmp_path: Path) -> None:
    root = atb(tmp_path / "ait_dump", {0: {"prefill": PROMPT}}, workers=["0_100", "0_900", "1_101", "1_902"])
    with pytest.raises(DumpError, match=r"several runs.*\n.*0_100\n"):
        open_dump(str(root))
    dump = open_dump(str(root / "tensors" / "0_900"))
    assert [rank.name for rank in dump.ranks] == ["0_900", "1_902"]
    assert "left out as other runs beside 0_900: 0_100, 1_101" in dump.notes
    assert [rank.name for rank in open_dump(str(root / "model" / "100")).ranks] == ["0_100", "1_101"]


def test_processes_that_all_saw_device_0_are_ranks_where_one_run_wrote_the_root(tmp_path: Path) -> None:
    runs, workers = {0: {"prefill": PROMPT}}, ["0_100", "0_101"]
    stamped = open_dump(str(atb(tmp_path / "msit_dump_20260102_030405", runs, workers=workers)))
    assert len(stamped.ranks) == 2
    assert stamped.name == "msit_dump"
    models = {"Toy": ("WordEmbedding", "AllReduceOperation", "LmHead")}
    parallel = open_dump(str(atb(tmp_path / "d", {0: {"Toy": PROMPT}}, workers=workers, models=models)))
    assert len(parallel.ranks) == 2


def test_a_stray_operation_on_one_rank_only_shifts_that_ranks_directories(tmp_path: Path) -> None:
    root = atb(tmp_path / "d", {0: {"prefill": PROMPT}}, workers=["0_100"])
    topology(root, "101", {"Toy_Prefill": PREFILL, "Toy_Decoder": DECODE}, shift=1)
    run_model(root / "tensors" / "1_101" / "0", PREFILL, 1, PROMPT)
    dump = open_dump(str(root))
    assert slots(dump, 0, "2_LmHead", rank=1) == {
        "output[0]": "tensors/1_101/0/3_LmHead/after/outtensor0.bin"
    }


def test_a_rank_that_lacks_directories_is_not_taken_for_a_shifted_one(tmp_path: Path) -> None:
    models = {"Toy": ("WordEmbedding", "Layer", "Layer", "LmHead")}
    root = atb(tmp_path / "d", {0: {"Toy": PROMPT}}, workers=["0_100", "1_101"], models=models)
    for name in ("0_WordEmbedding", "1_Layer", "3_LmHead"):
        shutil.rmtree(root / "tensors" / "1_101" / "0" / name)
    dump = open_dump(str(root))
    assert slots(dump, 0, "1_Layer", rank=1) == {}
    assert slots(dump, 0, "2_Layer", rank=1) == {"output[0]": "tensors/1_101/0/2_Layer/after/outtensor0.bin"}


def test_a_hand_picked_golden_says_nothing_of_the_steps(tmp_path: Path) -> None:
    torch.save(torch.zeros(9, 4), tmp_path / "logits.pth")
    golden = open_dump(str(tmp_path / "logits.pth"))
    mine = open_dump(str(atb(tmp_path / "d", WARMED)), golden=golden)
    assert "the prefill model ran again in directory 1" in mine.notes[0]


def test_a_stray_operation_moves_the_ids_and_the_layer_reports_give_the_graphs(tmp_path: Path) -> None:
    root = atb(tmp_path / "d", {0: {"prefill": PROMPT, "decode": (30,)}}, shift=1)
    json_file(root / "layer" / "100" / "TransdataOperation_0.json", leaf("TransdataOperation", "0"))
    dump = open_dump(str(root))
    tree = dump.steps[0].tree
    assert [child.path for child in tree.root.children] == [
        "0_TransdataOperation",
        "1_WordEmbedding",
        "2_Prefill_layer",
        "3_LmHead",
    ]
    linear = tree.by_path["2_Prefill_layer/0_LinearOperation"]
    assert (linear.name, linear.param) == ("LinearOperation_2_0", {"hasBias": False})
    assert slots(dump, 1, "5_Decoder_layer/0_LinearOperation")


def test_no_topology_says_how_to_dump_again(tmp_path: Path) -> None:
    run_model(tmp_path / "ait_dump" / "tensors" / "0_1" / "0", PREFILL, 0, PROMPT)
    with pytest.raises(DumpError, match="dump again with --type model tensor"):
        open_dump(str(tmp_path / "ait_dump"))


def test_topology_without_tensors_opens_without_steps(tmp_path: Path) -> None:
    topology(tmp_path / "d", "100", {"Toy": PREFILL})
    dump = open_dump(str(tmp_path / "d"))
    assert isinstance(dump, AtbDump)
    assert (dump.ranks, dump.steps) == ((), ())
    assert isinstance(dump, AtbDump)
    assert [tree.model for tree in dump.models] == ["Toy"]
    assert "no tensor of any operation was dumped" in dump.notes[0]


def test_the_topology_of_another_process_serves_where_a_rank_has_none(tmp_path: Path) -> None:
    root = atb(tmp_path / "d", {0: {"prefill": PROMPT}}, workers=["0_100", "1_101"])
    (root / "model" / "100" / "Toy_Prefill.json").unlink()
    (root / "model" / "100" / "Toy_Decoder.json").unlink()
    dump = open_dump(str(root))
    assert len(dump.ranks) == 2
    assert dump.notes[0] == "no topology of 0_100, that of process 101 is used"


def test_of_more_than_two_models_prefill_and_decode_are_compared(tmp_path: Path) -> None:
    models = {"Vision": ("PatchLayer",), "Toy_Prefill": PREFILL, "Toy_Decoder": DECODE}
    dump = open_dump(str(atb(tmp_path / "d", {0: {"prefill": PROMPT}}, models=models)))
    assert isinstance(dump, AtbDump)
    assert [tree.model for tree in dump.models] == ["Toy_Prefill", "Toy_Decoder"]
    assert "3 models; Toy_Prefill and Toy_Decoder are compared, Vision not" in dump.notes


def test_raw_takes_each_directory_with_both_models_together(tmp_path: Path) -> None:
    dump = open_dump(str(atb(tmp_path / "d", WARMED)), token_policy="raw")
    assert [step.label for step in dump.steps] == [0, 1, 2]
    whole = dump.steps[1].tree
    assert [child.path for child in whole.root.children][-1] == "5_LmHead"
    assert whole.by_path["4_Decoder_layer/0_LinearOperation"].parent is whole.by_path["4_Decoder_layer"]


def test_a_cut_model_report_is_named(tmp_path: Path) -> None:
    root = atb(tmp_path / "d", {0: {"prefill": PROMPT}})
    broken = root / "model" / "100" / "Toy_Prefill.json"
    broken.write_text(json.dumps(model_report("Toy_Prefill", PREFILL, 0))[:-20])
    with pytest.raises(FormatError, match=r"Toy_Prefill\.json"):
        open_dump(str(root))


HEADER = (
    "Device and PID,Execution Count,Op Name,Op Type,Op Id,Input/Output,Index,Dtype,Format,Shape,"
    "Max,Min,Mean,Norm,Tensor Path"
)


def e4(tmp_path: Path, rows: list[str]) -> Path:
    root = tmp_path / "atb_dump_data"
    topology(root / "info", "0_100", {"Toy": PREFILL})
    execution = root / "data" / "0_100" / "0"
    json_file(execution / "1_Prefill_layer" / "op_param.json", {})
    (execution / "statistic.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return root


def row(name: str, ids: str, kind: str, index: str, values: str = "1.0,0.0,0.5,1.0") -> str:
    return f"0_100,0,{name},{name},{ids},{kind},{index},float16,nd,3x4,{values},N/A"


def test_a_dump_of_statistics_alone_opens_through_its_csv(tmp_path: Path) -> None:
    rows = [
        row("WordEmbedding", "0", "input", "1"),
        row("Prefill_layer/LinearOperation", "1_0", "output", "0_y", "(1,0),(0,0),(0,0),(1,1)"),
        row("Prefill_layer/LinearOperation/MatMulKernel", "1_0_0", "output", "0"),
        row("LmHead", "2", "output", "0"),
        row("LmHead", "2", "output", "0"),
        row("LmHead", "2", "workspace", "0"),
        row("LmHead", "2", "output", "x"),
    ]
    dump = open_dump(str(e4(tmp_path, rows)))
    assert [step.label for step in dump.steps] == [0]
    step, rank = dump.steps[0], dump.ranks[0]
    linear = dump.tensors(step, rank, step.tree.by_path["1_Prefill_layer/0_LinearOperation"])
    assert [ref.member for ref in linear.values()] == ["1_0/output/0_y"]
    head = dump.tensors(step, rank, step.tree.by_path["2_LmHead"])
    assert [ref.member for ref in head.values()] == ["2/output/0#1"]
    assert head[Slot("output")].header().shape == (3, 4)


def test_a_cut_row_hides_only_itself_until_a_value_is_asked_for(tmp_path: Path) -> None:
    dump = open_dump(str(e4(tmp_path, [row("LmHead", "2", "output", "0"), "0_100,0,Wo"])))
    assert [step.label for step in dump.steps] == [0]


def test_a_statistics_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    root = e4(tmp_path, [])
    (root / "data" / "0_100" / "0" / "statistic.csv").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(
        FormatError, match=r"statistic\.csv: has no column 'Op Name'; is this the statistics file of a dump\?"
    ):
        open_dump(str(root))


def test_a_statistics_file_without_its_columns_is_refused(tmp_path: Path) -> None:
    root = e4(tmp_path, [])
    (root / "data" / "0_100" / "0" / "statistic.csv").write_text("a,b\n1,2\n")
    with pytest.raises(
        FormatError, match=r"statistic\.csv: has no column 'Op Name'; is this the statistics file of a dump\?"
    ):
        open_dump(str(root))


# Dumps of the first probes, which wrote layer reports and no model report.


def layers(*kinds: str) -> list[ReportedOperation]:
    """Top-level operations; what is called a layer has an operation in it."""
    inside = ReportedOperation("LinearOperation_0_0", "LinearOperation", {}, (), (), ())
    return [
        ReportedOperation(f"{kind}_{number}", kind, {}, (), (), (inside,) if "layer" in kind else ())
        for number, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        ("Gather Prefill_layer Norm Gather Decoder_layer Norm", [3, 3]),
        ("Gather Prefill_layer Slice Norm Gather Decoder_layer Norm", [4, 3]),
        ("Gather Gather Gather layer layer Norm Linear", [7]),
        ("layer layer layer layer", [4]),
        ("Gather layer layer Norm", [4]),
        ("Gather layer layer Norm Gather layer layer Norm", [4, 4]),
    ],
)
def test_a_second_model_begins_as_the_first_one_did(kinds: str, sizes: list[int]) -> None:
    assert [len(model.operations) for model in models_of(layers(*kinds.split()))] == sizes


def planned(golden: Path, mine: Path) -> Plan:
    opened = open_dump(str(golden))
    return plan(opened, open_dump(str(mine), golden=opened))


@pytest.mark.parametrize(
    "spec",
    [
        DemoSpec(layers=2, decode_steps=2),
        DemoSpec(family="chatglm", layers=2, decode_steps=1, ranks=2),
    ],
    ids=lambda spec: spec.family,
)
def test_layer_reports_alone_give_all_pairs_and_what_they_compute_from(
    spec: DemoSpec, tmp_path: Path
) -> None:
    paths = make_demo(tmp_path, spec)
    whole = planned(paths.golden, paths.mine)
    for reports in paths.mine.glob("*/model"):
        shutil.rmtree(reports)
    again = planned(paths.golden, paths.mine)
    assert [(pair.id, pair.golden, pair.mine) for pair in again.pairs] == [
        (pair.id, pair.golden, pair.mine) for pair in whole.pairs
    ]
    assert again.parents == whole.parents
    assert any(note.startswith("no model report: ") for note in again.notes)


def test_the_first_place_of_layer_reports_is_known_too(tmp_path: Path) -> None:
    paths = make_demo(tmp_path, DemoSpec(layers=1, decode_steps=0, warmup=False))
    (root,) = paths.mine.glob("*dump*")
    shutil.rmtree(root / "model")
    (root / "layer").rename(root / "operation_graph")
    dump = open_dump(str(paths.mine))
    assert isinstance(dump, AtbDump)
    assert {node.op_type for tree in dump.models for node in tree.walk()} > {"LinearOperation"}
