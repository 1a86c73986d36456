"""Rows of the operation and kernel CSV."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acc_pytest.lab.atb.probe.files import COLUMNS, CsvFiles, compact, is_safe, row

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
