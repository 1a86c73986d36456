"""Directories of every release, given at any level, are the same ranks, graphs and steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.dumps import Slot, open_dump
from acc_pytest.dumps.ge import GeDump
from acc_pytest.dumps.torchair import FxDump
from acc_pytest.dumps.torchair_files import (
    FxFileName,
    GeFileName,
    GraphFileName,
    is_torchair,
    parse_fx_name,
    parse_ge_name,
    parse_graph_name,
    read_mapping,
    sanitized,
)
from acc_pytest.errors import DumpError, FormatError
from tests.tensors.ge_writer import write_record

VALUES = torch.arange(6.0).reshape(2, 3)
TIME = 1763670000000000
TS20 = 20261120202512059085
Index = set[tuple[int, str, object]]


def record(folder: Path, name: str = "Add", number: int = 0, kind: str = "", scale: float = 1) -> Path:
    kind = kind or name.partition("_")[0]
    path = folder / f"{kind}.{name}.{number}.6.{TIME + number}"
    write_record(path, name, [VALUES], [VALUES * scale])
    return path


def call(folder: Path, node: str = "add", number: int = 0, scale: float = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{node}-aten.{node}.Tensor.OUTPUT.0.{TS20 + number}.npy"
    np.save(path, VALUES.numpy() * scale)
    return path


def index(dump: GeDump | FxDump) -> Index:
    return {
        (rank.index, step.graph, step.label)
        for step in dump.steps
        for rank in dump.ranks
        if dump.has(step, rank)
    }


def opened(path: Path) -> GeDump | FxDump:
    dump = open_dump(str(path))
    assert isinstance(dump, (GeDump, FxDump))
    return dump


def value(dump: GeDump | FxDump, step: int, node: str, rank: int = 0) -> torch.Tensor:
    found = dump.steps[step]
    return dump.tensors(found, dump.ranks[rank], found.tree.by_path[node])[Slot("output")].open()


GE_LAYOUTS = {
    "7.2": "msit_ge_dump/worldsize1_global_rank0/20241121145738/3/graph_{g}/{m}/{s}",
    "7.1": "msit_ge_dump/20241121145738/0/graph_{g}/{m}/{s}",
    "suffix": "dump_20241114_113410/20241121145738/0/graph_{g}_0/{m}/{s}",
    "no time": "dump_20241114_113410/0/graph_{g}_0/{m}/{s}",
}
FX_LAYOUTS = {
    "7.2": "msit_fx_dump/worldsize1_global_rank0/graph_{g}/{s}",
    "7.1": "msit_fx_dump/data_dump/{later}/gm_2026112020245{g}423567_dump",
    "oldest": "gm_2026112020245{g}423567_dump/{later}",
}
EVERY: Index = {(0, f"graph_{graph}", step) for graph in (1, 2) for step in (0, 1)}


def filled(root: Path, layout: str, write: Iterable[Callable[[Path], object]]) -> None:
    for graph in (1, 2):
        for step in (0, 1):
            home = root / layout.format(g=graph, m=graph + 4, s=step, later=step + 1)
            for one in write:
                one(home)


@pytest.mark.parametrize("layout", GE_LAYOUTS)
def test_every_layout_of_ge_is_the_same_index(tmp_path: Path, layout: str) -> None:
    filled(tmp_path, GE_LAYOUTS[layout], [record])
    dump = opened(tmp_path)
    assert dump.kind == "ge"
    assert index(dump) == EVERY
    assert [(step.graph, step.label) for step in dump.steps] == sorted((g, s) for _, g, s in EVERY)


@pytest.mark.parametrize("layout", FX_LAYOUTS)
def test_every_layout_of_fx_is_the_same_index(tmp_path: Path, layout: str) -> None:
    filled(tmp_path, FX_LAYOUTS[layout], [call])
    dump = opened(tmp_path)
    assert dump.kind == "fx"
    assert index(dump) == EVERY


@pytest.mark.parametrize("layout", [GE_LAYOUTS["7.2"], GE_LAYOUTS["7.1"]])
def test_a_place_inside_of_a_dump_is_read_with_what_is_above_it(tmp_path: Path, layout: str) -> None:
    filled(tmp_path, layout, [record])
    text = tmp_path / "msit_ge_dump" / f"dynamo_original_graph_1_rank_0_pid_7_ts_{TS20}.txt"
    text.write_text('name: "graph_1"\nop {\n  name: "Add"\n  type: "Add"\n}\n')
    inside = tmp_path / layout.format(g=1, m=5, s=1)
    while inside.name != "msit_ge_dump":
        dump = opened(inside)
        assert isinstance(dump, GeDump)
        assert (0, "graph_1", 1) in index(dump)
        graph = dump.graph(dump.steps[0], dump.ranks[0])
        assert graph is not None
        assert [node.name for node in graph.nodes] == ["Add"]
        inside = inside.parent


@pytest.mark.parametrize("layout", [FX_LAYOUTS["7.1"], FX_LAYOUTS["oldest"]])
def test_a_place_inside_of_an_old_fx_dump_keeps_its_step(tmp_path: Path, layout: str) -> None:
    filled(tmp_path, layout, [call])
    inside = tmp_path / layout.format(g=2, later=2)
    for place in (inside, inside.parent):
        assert 1 in {step for _, _, step in index(opened(place))}


@pytest.mark.parametrize("layout", [FX_LAYOUTS["7.1"], FX_LAYOUTS["oldest"]])
@pytest.mark.parametrize("graph", [1, 2])
def test_one_of_several_old_graphs_keeps_its_number(tmp_path: Path, layout: str, graph: int) -> None:
    filled(tmp_path, layout, [call])
    place = tmp_path / layout.format(g=graph, later=2)
    while place != tmp_path:
        if "gm_" in str(place):
            assert {name for _, name, _ in index(opened(place))} == {f"graph_{graph}"}
        place = place.parent


def test_a_mapping_csv_of_somebody_else_makes_no_dump(tmp_path: Path) -> None:
    (tmp_path / "mapping.csv").write_text("a,b\n")
    np.save(tmp_path / "x.npy", VALUES.numpy())
    assert open_dump(str(tmp_path)).kind == "tensor"


def test_one_step_given_by_name_is_forced(tmp_path: Path) -> None:
    filled(tmp_path, FX_LAYOUTS["7.2"], [call])
    dump = opened(tmp_path / FX_LAYOUTS["7.2"].format(g=2, s=1))
    assert index(dump) == {(0, "graph_2", 1)}
    assert dump.forced
    assert dump.name == "fx_dump"


@pytest.mark.parametrize(
    ("below", "step"),
    [
        ("20241121145738/0/graph_1/5", 0),
        ("20241121145738/0", 0),
        ("20241121145738/0/ge_default_20241121/5/2", 2),
        ("somewhere/4", 4),
        ("somewhere", 0),
    ],
)
def test_missing_levels_are_no_step_and_no_graph(tmp_path: Path, below: str, step: int) -> None:
    record(tmp_path / below)
    dump = opened(tmp_path / below.partition("/")[0])
    assert [one.label for one in dump.steps] == [step]


def test_ranks_are_numbered_by_their_directories(tmp_path: Path) -> None:
    for rank in (0, 3, 10):
        record(tmp_path / f"worldsize16_global_rank{rank}/20241121145738/0/graph_1/1/0", scale=rank)
    dump = opened(tmp_path)
    assert [rank.index for rank in dump.ranks] == [0, 3, 10]
    assert dump.ranked
    assert torch.equal(value(dump, 0, "Add", rank=2), VALUES * 10)


def test_devices_stand_for_ranks_where_no_directory_names_any(tmp_path: Path) -> None:
    for device in (0, 1):
        record(tmp_path / f"20241121145738/{device}/graph_1/1/0")
    dump = opened(tmp_path)
    assert [rank.index for rank in dump.ranks] == [0, 1]
    assert any("each device counts as one" in note for note in dump.notes)


def test_several_time_directories_are_one_run_and_the_later_wins(tmp_path: Path) -> None:
    record(tmp_path / "20241121145738/0/graph_1/1/0", "Add", scale=1)
    record(tmp_path / "20241121145738/0/graph_1/1/0", "Mul", 1)
    record(tmp_path / "20241121150000/0/graph_1/1/0", "Add", scale=5)
    record(tmp_path / "20241121150000/0/graph_2/2/0", "Add")
    dump = opened(tmp_path)
    assert index(dump) == {(0, "graph_1", 0), (0, "graph_2", 0)}
    assert sorted(dump.steps[0].tree.by_path) == ["", "Add", "Mul"]
    assert torch.equal(value(dump, 0, "Add"), VALUES * 5)


def test_an_operator_dumped_twice_is_told_and_the_larger_record_counts(tmp_path: Path) -> None:
    record(tmp_path / "0/graph_1/1/0", "Add", 1)
    write_record(tmp_path / f"0/graph_1/1/0/Add.Add.9.6.{TIME}", "Add", [], [VALUES.repeat(9, 1)])
    record(tmp_path / "0/graph_1/1/0", "arg0_1", 2, "Data")
    record(tmp_path / "0/graph_1/1/0", "arg0_1", 3, "Data")
    dump = opened(tmp_path)
    assert value(dump, 0, "Add").shape == (18, 3)
    assert [note for note in dump.notes if "several times" in note] == [
        "graph_1 step 0: 1 operators were dumped several times into one step (Add, ...); "
        "the largest record counts, of equal ones the last"
    ]


def test_threads_of_an_operator_are_nodes_of_their_own(tmp_path: Path) -> None:
    home = tmp_path / "0/graph_1/1/0"
    for thread in (0, 1):
        write_record(home / f"MatMul.MatMul_1.4.6.{TIME}.4.1.{thread}.0", "MatMul_1", [], [VALUES])
    assert sorted(opened(tmp_path).steps[0].tree.by_path) == ["", "MatMul_1/thread0", "MatMul_1/thread1"]


def test_hashed_names_are_explained_by_mapping_csv_or_by_their_headers(tmp_path: Path) -> None:
    home = tmp_path / "0/graph_1/1/0"
    long = f"AutomaticBufferFusionOp.{'Mul_1Add_1' * 30}.1.6.{TIME}"
    write_record(home / long, "Mul_1Add_1" * 30, [], [VALUES])
    write_record(home / "99887766554433221100", "Add_2", [], [VALUES])
    dump = opened(tmp_path)
    assert set(dump.steps[0].tree.by_path) == {"", "Mul_1Add_1" * 30, "Add_2"}
    assert any("their headers tell them" in note for note in dump.notes)


def test_a_call_dumped_twice_counts_once(tmp_path: Path) -> None:
    call(tmp_path / "graph_1/0", number=0)
    call(tmp_path / "graph_1/0", number=5, scale=7)
    dump = opened(tmp_path)
    assert torch.equal(value(dump, 0, "add-aten.add.Tensor"), VALUES * 7)
    assert any("the last call counts" in note for note in dump.notes)


def test_a_tensor_beats_the_numbers_made_of_one(tmp_path: Path) -> None:
    path = call(tmp_path / "graph_1/0")
    np.save(path.with_name(path.stem + "_min_max.npy"), np.array([0.0, 5.0]))
    assert torch.equal(value(opened(tmp_path), 0, "add-aten.add.Tensor"), VALUES)


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    record(tmp_path / "elsewhere/graph_1/1/0")
    home = tmp_path / "dump/0"
    home.mkdir(parents=True)
    (home / "graph_1").symlink_to(tmp_path / "elsewhere/graph_1")
    (home / "again").symlink_to(tmp_path / "dump")
    assert index(opened(tmp_path / "dump")) == {(0, "graph_1", 0)}


def test_one_record_is_a_dump(tmp_path: Path) -> None:
    path = record(tmp_path / "0/graph_1/1/3")
    dump = opened(path)
    assert [(step.graph, step.label) for step in dump.steps] == [("graph_1", 3)]


def test_a_tree_of_both_kinds_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "msit_ge_dump/0/graph_1/1/0")
    call(tmp_path / "msit_fx_dump/graph_1/0")
    with pytest.raises(DumpError, match=r"holds GE records in .* and FX tensors in"):
        open_dump(str(tmp_path))


def test_graph_texts_alone_are_no_dump(tmp_path: Path) -> None:
    (tmp_path / f"dynamo_original_graph_1_rank_0_pid_7_ts_{TS20}.txt").write_text("")
    with pytest.raises(DumpError, match="was enable_dump set"):
        open_dump(str(tmp_path))


def test_files_that_belong_to_no_dump_are_counted(tmp_path: Path) -> None:
    record(tmp_path / "0/graph_1/1/0")
    (tmp_path / "0/graph_1/1/0/notes.md").write_text("")
    assert any("files that belong to no GE dump: 1 (.md)" in note for note in opened(tmp_path).notes)


def text(root: Path, name: str, ops: Iterable[str]) -> None:
    lines = [f'op {{\n  name: "{op}"\n  type: "{op.partition("_")[0]}"\n}}\n' for op in ops]
    (root / name).write_text('name: "graph"\n' + "".join(lines))


def test_the_text_of_a_graph_is_its_ranks_latest_original(tmp_path: Path) -> None:
    for rank in (0, 1):
        record(tmp_path / f"worldsize2_global_rank{rank}/20241121145738/0/graph_1/1/0")
    text(tmp_path, f"dynamo_original_graph_1_rank_0_pid_7_ts_{TS20}.txt", ["Old"])
    text(tmp_path, f"dynamo_original_graph_1_rank_0_pid_8_ts_{TS20 + 9}.txt", ["New"])
    text(tmp_path, f"dynamo_optimized_graph_1_rank_0_pid_8_ts_{TS20 + 99}.txt", ["Optimized"])
    text(tmp_path, f"dynamo_original_graph_2_rank_0_pid_8_ts_{TS20 + 99}.txt", ["Other"])
    dump = opened(tmp_path)
    assert isinstance(dump, GeDump)
    names = []
    for place in dump.ranks:
        graph = dump.graph(dump.steps[0], place)
        assert graph is not None
        names.append(graph.nodes[0].name)
    assert names == ["New", "New"]
    assert any("no graph text of rank 1" in note for note in dump.notes)
    assert any("graph texts of several runs" in note for note in dump.notes)


def test_texts_without_number_meet_graphs_in_order_or_by_their_operators(tmp_path: Path) -> None:
    record(tmp_path / "0/graph_1/1/0", "Add")
    record(tmp_path / "0/graph_2/2/0", "Mul")
    text(tmp_path, f"dynamo_original_graph_{TS20}.txt", ["Add"])
    text(tmp_path, f"dynamo_original_graph_{TS20 + 1}.txt", ["Mul"])
    assert _first_names(tmp_path) == ["Add", "Mul"]
    text(tmp_path, f"dynamo_original_graph_{TS20 - 1}.txt", ["Sub"])
    assert _first_names(tmp_path) == ["Add", "Mul"]


def _first_names(root: Path) -> list[str]:
    dump = opened(root)
    assert isinstance(dump, GeDump)
    graphs = [dump.graph(step, dump.ranks[0]) for step in dump.steps]
    return [graph.nodes[0].name for graph in graphs if graph is not None]


def test_a_broken_text_costs_the_graph_not_the_dump(tmp_path: Path) -> None:
    record(tmp_path / "0/graph_1/1/0")
    (tmp_path / f"dynamo_original_graph_1_rank_0_pid_7_ts_{TS20}.txt").write_text("op {\n")
    dump = opened(tmp_path)
    assert isinstance(dump, GeDump)
    assert dump.graph(dump.steps[0], dump.ranks[0]) is None
    assert any("a graph text cannot be read" in note for note in dump.notes)


def test_models_loaded_twice_are_told_and_the_later_counts(tmp_path: Path) -> None:
    record(tmp_path / "20241121145738/0/graph_1/1/0", scale=1)
    record(tmp_path / "20241121145738/0/graph_1/7/0", scale=3)
    dump = opened(tmp_path)
    assert torch.equal(value(dump, 0, "Add"), VALUES * 3)
    assert any("several loaded models (1, 7)" in note for note in dump.notes)


@pytest.mark.parametrize(("below", "step"), [("graph_3", 0), ("anything", 0), ("anything/5", 5)])
def test_fx_files_may_lie_flat(tmp_path: Path, below: str, step: int) -> None:
    call(tmp_path / below)
    assert [one.label for one in opened(tmp_path).steps] == [step]


def test_long_names_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    record(tmp_path / "0/graph_1/1/0")
    (tmp_path / "0/graph_1/1/0/mapping.csv").write_bytes(b"1," + b"x" * 200_000)
    assert any("not a readable list of long names" in note for note in opened(tmp_path).notes)


def test_a_hashed_record_that_is_broken_keeps_its_hash_for_a_name(tmp_path: Path) -> None:
    home = tmp_path / "0/graph_1/1/0"
    record(home)
    (home / "99887766554433221100").write_bytes(b"cut")
    assert "99887766554433221100" in opened(tmp_path).steps[0].tree.by_path


# File names of TorchAir dumps, read back to what their writers put in.


STAMP = 1706596912161941
WORD = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
NUMBER = st.integers(0, 10**6)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (f"Add.Add_2.44.6.{STAMP}", GeFileName("Add", "Add_2", STAMP)),
        (f"Add.Add_2.44.{STAMP}", GeFileName("Add", "Add_2", STAMP)),
        (f"TransData.TransData_1.1.42.6.{STAMP}", GeFileName("TransData", "TransData_1.1", STAMP)),
        (f"MatMul.MatMul_1.44.6.{STAMP}.4.1.3.0", GeFileName("MatMul", "MatMul_1", STAMP, thread=3)),
        (f"Add.Add_2.44.6.{STAMP}_min_max.npz", GeFileName("Add", "Add_2", STAMP, form="info")),
        (f"Add.Add_2.44.6.{STAMP}.csv", GeFileName("Add", "Add_2", STAMP, form="statistics")),
        (f"Add.Add_2.44.6.{STAMP}.txt", None),
        ("mapping.csv", None),
        ("Add_2", None),
    ],
)
def test_a_ge_name_is_read_from_the_right(name: str, known: GeFileName | None) -> None:
    assert parse_ge_name(name, {}) == known


def test_a_name_too_long_for_a_file_is_found_under_its_hash() -> None:
    long = f"AutomaticBufferFusionOp.{'Mul_1Add_1' * 30}.12.7.{STAMP}"
    known = parse_ge_name("17263548172635481726", {"17263548172635481726": long})
    assert known == GeFileName("AutomaticBufferFusionOp", "Mul_1Add_1" * 30, STAMP)
    info = parse_ge_name("17263548172635481726_min_max.npz", {"17263548172635481726": long})
    assert info is not None
    assert info.form == "info"
    assert parse_ge_name("17263548172635481726", {}) is None


@given(WORD, WORD, NUMBER, NUMBER, st.integers(10**15, 10**16 - 1))
def test_every_ge_name_comes_back(kind: str, op: str, task: int, stream: int, time: int) -> None:
    assert parse_ge_name(f"{kind}.{op}.{task}.{stream}.{time}", {}) == GeFileName(kind, op, time)


def test_an_fx_name_says_node_target_and_place() -> None:
    split = parse_fx_name(f"cat-aten.cat.default.INPUT.0.1.{TS20}.npy")
    assert split == FxFileName("cat", "aten.cat.default", "input", (0, 1), TS20)
    assert parse_fx_name(f"topk-aten.topk.default.OUTPUT.1.{TS20}.npy") == FxFileName(
        "topk", "aten.topk.default", "output", (1,), TS20
    )


def test_targets_of_symbolic_arithmetic_hold_spaces_and_brackets() -> None:
    known = parse_fx_name(f"mul_15-<built-in function mul>.INPUT.0.{TS20}.npy")
    assert known == FxFileName("mul_15", "<built-in function mul>", "input", (0,), TS20)


def test_keyword_arguments_have_names_for_numbers() -> None:
    known = parse_fx_name(f"full-aten.full.default.KWARG.dtype.{TS20}.npy")
    assert known is not None
    assert (known.kind, known.index) == ("input", ("dtype",))


def test_info_files_of_fx_are_told_apart() -> None:
    known = parse_fx_name(f"add-aten.add.Tensor.OUTPUT.0.{TS20}_min_max.npy")
    assert known is not None
    assert known.info
    assert parse_fx_name("weights.npy") is None


@given(WORD, WORD, NUMBER, st.none() | NUMBER, st.sampled_from(["INPUT", "OUTPUT"]))
def test_every_fx_name_comes_back(node: str, op: str, i: int, j: int | None, io: str) -> None:
    index = (i,) if j is None else (i, j)
    numbers = ".".join(map(str, index))
    known = parse_fx_name(f"{node}-aten.{op}.Tensor.{io}.{numbers}.{TS20}.npy")
    kind = "input" if io == "INPUT" else "output"
    assert known == FxFileName(node, f"aten.{op}.Tensor", kind, index, TS20)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (
            f"dynamo_original_graph_12_rank_3_pid_21111_ts_{TS20}.txt",
            GraphFileName("original", 12, 3, TS20),
        ),
        (f"dynamo_optimized_graph_1_rank_0_pid_7_ts_{TS20}.pbtxt", GraphFileName("optimized", 1, 0, TS20)),
        (f"dynamo_original_graph_{TS20}.txt", GraphFileName("original", None, None, TS20)),
        (f"dynamo_original_graph_1_rank_0_pid_7_ts_{TS20}.py", None),
        ("dynamo.txt", None),
    ],
)
def test_a_graph_text_says_which_graph_and_rank(name: str, known: GraphFileName | None) -> None:
    assert parse_graph_name(name) == known


def test_names_that_only_torchair_gives_are_known() -> None:
    assert is_torchair(f"Add.Add_2.44.6.{STAMP}")
    assert is_torchair(f"add-aten.add.Tensor.OUTPUT.0.{TS20}.npy")
    assert is_torchair(f"dynamo_original_graph_1_rank_0_pid_7_ts_{TS20}.py")
    assert not any(map(is_torchair, ("model.npy", "outtensor0.bin", "README.md", "Add.Add_2")))
    assert not is_torchair("server.log.1.1706596912")


def test_names_are_compared_as_files_hold_them() -> None:
    assert sanitized(r"layer.0/attention\query key") == "layer_0_attention_query_key"


def test_mapping_csv_keeps_commas_and_its_last_word(tmp_path: Path) -> None:
    table = tmp_path / "mapping.csv"
    table.write_text("123,old\n123,Add.a,b.1.2.3\nno number,x\nalone\n")
    assert read_mapping(str(table)) == {"123": "Add.a,b.1.2.3"}
    table.write_bytes(b"7,\xc4\xa3")
    assert read_mapping(str(table)) == {"7": os.fsdecode(b"\xc4\xa3")}
    table.write_bytes(b"1," + b"x" * 200_000)
    with pytest.raises(FormatError, match=r"mapping\.csv: is not a readable list of long names"):
        read_mapping(str(table))
