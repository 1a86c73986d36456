"""Paths, modes, and writes that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from acc_pytest.dumps import open_dump
from acc_pytest.errors import AccError, DumpError
from acc_pytest.lab.atb.graph import Call, graph, layer_json, operation
from acc_pytest.lab.atb.probe.e3 import placeholder
from acc_pytest.lab.atb.probe.e4 import alias_table
from acc_pytest.lab.atb.probe.files import (
    COLUMNS,
    Content,
    CsvFiles,
    FirstFiles,
    ProbedTensors,
    TensorFiles,
    append_text,
    check_name,
    check_path,
    compact,
    file_name,
    is_safe,
    memory,
    replace_text,
    row,
)
from acc_pytest.lab.atb.probe.settings import places
from acc_pytest.lab.atb.probe.statistic_csv import STATISTIC_COLUMNS, StatisticRows, statistic_row
from acc_pytest.tensors.atb_bin import FORMAT
from acc_pytest.tensors.ref import TensorRef


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/a b/c", "holds other characters"),
        ("/" + "a" * 256, "is longer"),
        ("/a" * 3000, "is longer"),
        ("/a" * 33, "more than 32 slashes"),
    ],
)
def test_a_path_the_probe_would_not_write_is_an_error(path: str, reason: str) -> None:
    with pytest.raises(DumpError, match=reason):
        check_path(path)


def test_usual_paths_and_names_pass() -> None:
    check_path("/data/run-1/A_b/msit_dump_20250101_000000/tensors/0_1/0/1_Op/before/intensor0.bin")
    check_name('Layer<int, "x">_0')
    with pytest.raises(DumpError, match="no topology under this name"):
        check_name("Layer\n0")


def test_files_are_replaced_and_lines_added_with_the_probes_modes(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        for text in ("long text", "short"):
            replace_text(f"{tmp_path}/new/a.json", text)
        for text in ("one\n", "two\n"):
            append_text(f"{tmp_path}/grown/a.csv", text)
    finally:
        os.umask(old)
    assert (tmp_path / "new/a.json").read_text() == "short"
    assert (tmp_path / "grown/a.csv").read_text() == "one\ntwo\n"
    for name in ("new", "grown"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o750
    for name in ("new/a.json", "grown/a.csv"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (replace_text, append_text):
        with pytest.raises(AccError, match=r"file/a\.txt: cannot be written"):
            write(f"{tmp_path}/file/a.txt", "x")


def test_a_write_that_is_cut_short_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/a.csv"
    append_text(path, "whole\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with pytest.raises(DumpError, match="3 of 5 bytes fit"):
        append_text(path, "half\n")
    assert Path(path).read_text() == "whole\n"


# Which files of a layer are aliases.


ADD = operation("ElewiseOperation", {"elewiseType": 8}, ("x", "y"), ("z",))


def test_a_name_seen_before_is_an_alias_of_its_first_file() -> None:
    inner = graph("Inner", ("a", "b"), ("c",), Call(ADD, ("a", "b"), ("c",)))
    outer = graph("Layer", ("p", "q"), ("s",), Call(inner, ("p", "q"), ("r",)), Call(ADD, ("r", "p"), ("s",)))
    assert alias_table(layer_json(outer, "Layer_3")) == {
        "3_0_intensor0": "3_intensor0.bin",
        "3_0_intensor1": "3_intensor1.bin",
        "3_0_0_intensor0": "3_intensor0.bin",
        "3_0_0_intensor1": "3_intensor1.bin",
        "3_0_outtensor0": "3_0_0_outtensor0.bin",
        "3_1_intensor0": "3_0_0_outtensor0.bin",
        "3_1_intensor1": "3_intensor0.bin",
        "3_outtensor0": "3_1_outtensor0.bin",
    }


def test_a_leaf_that_writes_onto_its_input_makes_a_new_file() -> None:
    block = graph("Layer", ("x", "y"), ("x",), Call(ADD, ("x", "y"), ("x",)), Call(ADD, ("x", "y"), ("x",)))
    table = alias_table(
        json.dumps(
            {
                "opName": "Layer_0",
                "opType": "Layer",
                "inTensors": ["x", "y"],
                "outTensors": ["x"],
                "nodes": [
                    {"opName": f"A_0_{i}", "opType": "A", "inTensors": ["x", "y"], "outTensors": ["x"]}
                    for i in range(len(block.calls))
                ],
            }
        )
    )
    assert table["0_0_intensor0"] == "0_intensor0.bin"
    assert "0_0_outtensor0" not in table
    assert table["0_1_intensor0"] == "0_0_outtensor0.bin"
    assert table["0_outtensor0"] == "0_1_outtensor0.bin"


def test_a_layer_of_more_than_a_thousand_nodes_has_no_aliases() -> None:
    def layer(nodes: int) -> str:
        child = {"opName": "A", "opType": "A", "inTensors": ["x"], "outTensors": ["x"]}
        root = {"opName": "L_0", "opType": "L", "inTensors": ["x"], "nodes": [child] * nodes}
        return json.dumps(root)

    assert alias_table(layer(999))
    assert alias_table(layer(1000)) == {}


# Rows of the operation and kernel CSV.


TABLE = torch.zeros(32, 4, dtype=torch.float16)
IDS = torch.zeros(3, dtype=torch.int64)


def test_a_row_holds_types_shapes_and_paths() -> None:
    text = row(1, "GatherOperation_0_0", {"axis": 0, "batchDims": 0}, [TABLE, IDS], [TABLE[:3]], "/o/before")
    assert text == (
        '1|GatherOperation_0_01|GatherOperation_0_0|{"axis":0,"batchDims":0}|2|float16;int64|nd;nd|32,4;3|'
        "1|float16|nd|3,4|customize;customize| |/o/before/intensor0.bin;/o/before/intensor1.bin|"
        "/o/before/outtensor0.bin| | | | |NO_ERROR\n"
    )
    assert len(text.split("|")) == len(COLUMNS) == 21


def test_a_null_tensor_is_undefined_and_has_no_shape_but_a_path() -> None:
    cells = row(1, "Op", {}, [TABLE, None], [], "/o").split("|")
    assert cells[3:8] == ["{}", "2", "float16;undefined", "nd;undefined", "32,4;"]
    assert cells[14] == "/o/intensor0.bin;/o/intensor1.bin"
    assert cells[8:12] == ["0", "", "", ""]


@pytest.mark.parametrize("cell", ["+1", "=A", "@x", "%x", "-x", "-1a"])
def test_a_cell_that_a_spreadsheet_would_run_is_not_safe(cell: str) -> None:
    assert not is_safe(cell)


@pytest.mark.parametrize("cell", ["", "1", "-1,2;-3", "-0.5", "a+b"])
def test_other_cells_are_safe(cell: str) -> None:
    assert is_safe(cell)


def test_an_unsafe_row_becomes_an_empty_line_that_counts(tmp_path: Path) -> None:
    path, files = f"{tmp_path}/a.csv", CsvFiles()
    for name in ("First", "=Second", "Third"):
        files.add(path, name, {}, [IDS], [IDS], "/o")
    lines = Path(path).read_text().split("\n")
    assert lines[0] == "|".join(COLUMNS)
    assert lines[1].startswith("1|First1|")
    assert lines[2] == ""
    assert lines[3].startswith("3|Third3|")


def test_numbers_go_on_in_a_file_that_is_there(tmp_path: Path) -> None:
    path = f"{tmp_path}/a.csv"
    for _ in range(2):
        CsvFiles().add(path, "Op", {}, [IDS], [IDS], "/o")
    assert [line.split("|")[0] for line in Path(path).read_text().splitlines()] == ["CaseNum", "1", "2"]


def test_the_number_sticks_at_ten_thousand() -> None:
    assert row(12345, "Op", {}, [], [], "/o").startswith("10000|Op10000|")


def test_no_parameters_are_an_empty_object() -> None:
    assert compact(None) == compact({}) == "{}"


# A process that is killed while it dumps leaves whole files, and a dump that opens.


PROGRAM = """
import os
import sys
import torch
from acc_pytest.lab.atb import Call, Runtime, graph, operation
from acc_pytest.lab.atb.probe import probe_from_environment
from acc_pytest.lab.atb.graph import AtbModel
from acc_pytest.lab.atb.graph import Cell

param = {"elewiseType": 2, "mulsParam": {"varAttr": 1.5}}
scale = operation("ElewiseOperation", param, ("x",), ("y",))
layer = graph("Prefill_layer", ("x",), ("y",), Call(scale, ("x",), ("y",)))
model = AtbModel("Model", (Call(layer, ("input_0",), ("output_0",)),), (), (0,), 1)
environ = {"ATB_OUTPUT_DIR": sys.argv[1], "ATB_SAVE_TENSOR_RANGE": "all",
           "ATB_DUMP_TYPE": "model|layer|tensor|op|kernel"}
loaded = Runtime([probe_from_environment(0, environ=environ)])
running = loaded.load([model])
x = torch.ones(256, 1024)
while True:
    running.execute([{"input_0": Cell(x)}])
    print(os.getpid(), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_what_a_killed_process_left_is_whole_and_opens(tmp_path: Path, python_with_torch: None) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, f"{tmp_path}/"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(3):
        number = int(process.stdout.readline())
    time.sleep(0.01)
    os.kill(number, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    root = tmp_path / "msit_dump"
    tensors = list(root.rglob("*tensor*.bin"))
    assert len(tensors) >= 12
    for path in tensors:
        header = FORMAT.header(TensorRef(str(path)))
        assert (header.shape, header.nbytes) == ((256, 1024), 256 * 1024 * 4)
    for path in root.rglob("*.csv"):
        assert path.read_bytes().endswith(b"NO_ERROR\n")
    assert open_dump(str(root)).kind == "atb"


# Rows of `statistic.csv`.


PATH = ("1_Prefill_layer", "0_RmsNormOperation", "0_RmsNormKernel")


def test_a_row_with_statistics() -> None:
    text = statistic_row(
        "0_39943", 0, PATH, "outtensor0.bin", torch.full((1, 2), 4.0), "/o/outtensor0.bin", True
    )
    assert text == (
        "0_39943,0,Prefill_layer/RmsNormOperation/RmsNormKernel,RmsNormKernel,1_0_0,output,0,float,nd,1x2,"
        "4.000000,4.000000,4.000000,5.656854,/o/outtensor0.bin\n"
    )
    assert len(text.split(",")) == len(STATISTIC_COLUMNS)


def test_what_was_not_asked_for_is_not_available() -> None:
    x = torch.zeros(3, dtype=torch.int64)
    text = statistic_row("0_1", 2, ("0_A",), "intensor1_x.bin", x, "", False)
    assert text == "0_1,2,A,A,0,input,1_x,int64,nd,3,N/A,N/A,N/A,N/A,N/A\n"


def test_negative_numbers_stay_and_minus_infinity_drops_the_row() -> None:
    assert ",-1.500000," in statistic_row("0_1", 0, ("0_A",), "intensor0.bin", torch.tensor([-1.5]), "", True)
    infinite = torch.tensor([0.0, float("-inf")])
    assert statistic_row("0_1", 0, ("0_A",), "intensor0.bin", infinite, "", True) == ""


def test_squares_are_summed_in_double() -> None:
    text = statistic_row("0_1", 0, ("0_A",), "intensor0.bin", torch.tensor([1e10, 1e-8]), "", True)
    assert text.split(",")[13] == "10000000000.000000"


def test_rows_come_in_the_order_of_the_graph_although_children_end_first(tmp_path: Path) -> None:
    rows, file = StatisticRows(), f"{tmp_path}/statistic.csv"
    rows.add(("1_L", "0_A", "0_K"), "k in\n", "k out\n", file)
    rows.add(("1_L", "0_A"), "a in\n", "a out\n", file)
    rows.add(("1_L", "1_B"), "b in\n", "b out\n", file)
    assert not Path(file).exists()
    rows.add(("1_L",), "in\n", "out\n", file)
    rows.add(("2_M",), "m in\n", "", file)
    rows.add(("3_N",), "", "", file)
    lines = Path(file).read_text().splitlines()
    assert lines[0] == ",".join(STATISTIC_COLUMNS)
    assert lines[1:] == ["in", "a in", "k in", "k out", "a out", "b in", "b out", "out", "m in"]


# The links.


def test_only_later_files_of_a_hash_are_links_and_an_old_file_is_replaced(tmp_path: Path) -> None:
    first = FirstFiles()
    (tmp_path / "b").write_text("old")
    assert not first.link(f"{tmp_path}/a", b"1")
    assert first.link(f"{tmp_path}/b", b"1")
    assert not first.link(f"{tmp_path}/a", b"1")
    assert (tmp_path / "b").readlink() == tmp_path / "a"


def test_a_link_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first = FirstFiles()
    first.link(f"{tmp_path}/a", b"1")
    with pytest.raises(DumpError, match="file/b: cannot be written"):
        first.link(f"{tmp_path}/file/b", b"1")


# Names, places and contents of tensor files.


OLD, NEW = torch.ones(2, 2), torch.full((2, 2), 3.0)


def test_files_take_inputs_and_outputs_from_their_time() -> None:
    seen = ProbedTensors({0: OLD, 4: OLD}, {0: NEW, 4: OLD}, (OLD,), (NEW,))
    found = [(d, name, float(t[0, 0])) for d, name, t in seen.files(places(2, 2, in_before_out_after=False))]
    assert found == [
        ("before", "intensor0.bin", 1.0),
        ("before", "intensor4.bin", 1.0),
        ("before", "outtensor0.bin", 1.0),
        ("after", "intensor0.bin", 3.0),
        ("after", "intensor4.bin", 1.0),
        ("after", "outtensor0.bin", 3.0),
    ]


def test_an_empty_tensor_has_no_file() -> None:
    seen = ProbedTensors({0: torch.zeros(0, 4), 1: OLD}, {}, (), ())
    assert [name for _, name, _ in seen.files((("before", "in"),))] == ["intensor1.bin"]


def test_names_of_tensors_follow_their_index() -> None:
    assert file_name("in", 1, ("x", "weight")) == "intensor1_weight.bin"
    assert file_name("out", 0, ("",)) == "outtensor0.bin"
    assert file_name("out", 3, ("y",)) == "outtensor3.bin"


def test_memory_that_was_never_written_shows_zeros_and_other_shapes_their_bytes() -> None:
    assert torch.equal(memory(None, NEW), torch.zeros(2, 2))
    assert torch.equal(memory(torch.ones(3), NEW), torch.zeros(2, 2))
    assert torch.equal(memory(torch.ones(4), NEW), OLD)


@pytest.mark.parametrize(
    ("content", "end"),
    [
        ("values", b"dims=2,2\n$Object.data=0,16\n$End=1\n" + NEW.numpy().tobytes()),
        ("description", b"dims=2,2\n$End=1\n"),
        ("statistics", b"dims=2,2\nmax=3.000000\nmin=3.000000\nmean=3.000000\nl2norm=6.000000\n$End=1\n"),
    ],
)
def test_a_file_holds_what_was_asked_for(tmp_path: Path, content: Content, end: bytes) -> None:
    TensorFiles(content).write(f"{tmp_path}/new/intensor0.bin", NEW)
    assert (tmp_path / "new/intensor0.bin").read_bytes().endswith(end)


def test_an_unusual_path_is_an_error_unless_allowed(tmp_path: Path) -> None:
    path = f"{tmp_path}/my dump/intensor0.bin"
    with pytest.raises(DumpError, match="holds other characters"):
        TensorFiles("values").write(path, NEW)
    TensorFiles("values", any_path=True).write(path, NEW)
    assert Path(path).is_file()


def test_a_tensor_written_before_becomes_a_link_to_its_first_file(tmp_path: Path) -> None:
    files = TensorFiles("values", symlink=True)
    for name, tensor in (("a", NEW), ("b", NEW.clone()), ("c", OLD), ("d", NEW.reshape(4))):
        files.write(f"{tmp_path}/{name}/x.bin", tensor)
    assert [name for name in "abcd" if (tmp_path / name / "x.bin").is_symlink()] == ["b"]
    assert (tmp_path / "b/x.bin").readlink() == tmp_path / "a/x.bin"


def test_descriptions_and_statistics_are_linked_by_their_header(tmp_path: Path) -> None:
    for content, linked in (("description", True), ("statistics", False)):
        files = TensorFiles(content, symlink=True)  # type: ignore[arg-type]  # it is refused
        files.write(f"{tmp_path}/{content}/a.bin", NEW)
        files.write(f"{tmp_path}/{content}/b.bin", OLD)
        assert (tmp_path / content / "b.bin").is_symlink() == linked


# Placeholders for tiling data.


@pytest.mark.parametrize(
    ("kernel", "length"),
    [
        ("AtbRopeKernel", 68),
        ("SplitF16Output2Kernel", 32),
        ("SplitF16Output3Kernel", 52),
        ("UnpadFlashAttentionBF16NdKernel", 64),
        ("SomethingNewKernel", 32),
    ],
)
def test_a_kernels_placeholder_has_the_length_of_its_data(kernel: str, length: int) -> None:
    assert placeholder(kernel) == "\0" * length
