"""Operation CSVs of both generations and of ATB's tests, and dump directories, become entries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from acc_pytest.errors import DumpError, FormatError, SettingsError
from acc_pytest.opcheck.settings import ids_from, names_from, selected
from acc_pytest.opcheck.sources import Entry, entries_of_csv, entries_of_directory

from .made import HEADER, softmax_dump

COLUMNS = HEADER.split("|")


def row(**cells: str) -> str:
    given = {"OpName": "LinearOperation_2_0_1", "OpParam": "{}", "OutDType": "float16", **cells}
    return "|".join(given.get(column, " ") for column in COLUMNS)


def entries(tmp_path: Path, *lines: str, name: str = "operation_tensors_3.csv") -> list[Entry]:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return list(entries_of_csv(path, "group", 5))


def test_a_row_is_an_entry_with_its_name_ids_step_and_line(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, row())
    assert (entry.name, entry.ids, entry.step, entry.number) == ("LinearOperation", "2_0_1", 3, 5)
    assert entry.source == "operation_tensors_3.csv:2"
    assert entry.problem == ""


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"a":"x|y"}', '{"a":"x|y"}'),
        ('"{""a"":1}"', '{"a":1}'),
        ('"{""a"":""x|y""}"', '{"a":"x|y"}'),
        ('{"a": {"b": "}|{"}}', '{"a": {"b": "}|{"}}'),
        ('{"a":|1', '{"a":|1'),
        ("", ""),
    ],
)
def test_parameters_may_be_quoted_hold_the_separator_or_be_broken(
    tmp_path: Path, written: str, read: str
) -> None:
    (entry,) = entries(tmp_path, HEADER, row(OpParam=written, OutShape="7,8", ExpectedError="NO_ERROR"))
    assert entry.cells["OpParam"] == read
    assert entry.cells["OutShape"] == "7,8"
    assert entry.cells["ExpectedError"] == "NO_ERROR"
    assert entry.problem == ""


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, "\ufeffOutDType|Further|OpName\r", "float16|x| SortOperation_1\r")
    assert (entry.full_name, entry.cells["OutDType"]) == ("SortOperation_1", "float16")


def test_rows_of_the_first_builds_end_with_tabs(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, "1|a|SortOperation_1|{}|1|float;|nd;|2;|1|float;|nd;|2;\t\t\t")
    assert entry.cells["OutShape"] == "2;"
    assert entry.problem == ""


def test_a_row_that_is_cut_says_so(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, "1|a|SortOperation_1|{}|1|flo")
    assert "ends after 6 of 21 columns" in entry.problem
    assert not entry.skipped


def test_a_row_without_a_name_says_so(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, row(OpName=""))
    assert "no OpName" in entry.problem


def test_a_row_that_expects_an_error_is_not_checked(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, row(ExpectedError="I:ERROR_INVALID_TENSOR_DIM"))
    assert entry.skipped
    assert "I:ERROR_INVALID_TENSOR_DIM" in entry.problem


def test_rows_of_kernels_are_listed_as_not_checkable(tmp_path: Path) -> None:
    (entry,) = entries(tmp_path, HEADER, row(OpName="RopeKernel"), name="kernel_tensors_0.csv")
    assert entry.skipped
    assert "kernel" in entry.problem


def test_a_file_without_the_columns_is_no_operation_csv(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no column OpName and no OutDType"):
        entries(tmp_path, "a,b,c", "1,2,3")
    with pytest.raises(FormatError, match="cannot be read"):
        list(entries_of_csv(tmp_path / "missing.csv", "g"))


def test_ten_thousand_rows_are_listed_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "operation_tensors_0.csv"
    path.write_text("\n".join([HEADER, *([row(OpParam='{"a":[1,2,3],"b":0.5}')] * 10_000)]) + "\n")
    code = (
        "import sys; from pathlib import Path; from acc_pytest.opcheck.sources import entries_of_csv\n"
        f"assert len(list(entries_of_csv(Path({str(path)!r}), 'g'))) == 10_000\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_operator_of_a_dump_is_an_entry_with_the_ids_of_its_path(tmp_path: Path) -> None:
    softmax_dump(tmp_path)
    found = list(entries_of_directory(tmp_path))
    assert [entry.full_name for entry in found] == [
        "TransposeOperation_2",
        "SoftmaxOperation_5_0",
        "LinearOperation_5_1",
    ]
    assert {entry.group for entry in found} == {"step0"}


def test_ids_are_the_same_from_any_directory_inside_the_dump(tmp_path: Path) -> None:
    dump = softmax_dump(tmp_path)
    graph = dump.execution / "5_Attention"
    for inside in (dump.execution, graph, graph / "1_LinearOperation"):
        names = [entry.full_name for entry in entries_of_directory(inside)]
        assert "LinearOperation_5_1" in names


def test_an_operator_that_was_copied_alone_keeps_its_own_id(tmp_path: Path) -> None:
    dump = softmax_dump(tmp_path / "dump")
    alone = tmp_path / "alone" / "1_LinearOperation"
    alone.parent.mkdir()
    (dump.execution / "5_Attention" / "1_LinearOperation").rename(alone)
    (entry,) = entries_of_directory(alone)
    assert entry.full_name == "LinearOperation_1"


def test_kernels_and_graphs_are_no_operators(tmp_path: Path) -> None:
    dump = softmax_dump(tmp_path)
    (dump.execution / "5_Attention" / "before").mkdir()
    (dump.execution / "5_Attention" / "1_LinearOperation" / "0_MatMulKernel" / "before").mkdir(parents=True)
    assert len(list(entries_of_directory(tmp_path))) == 3


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="no such file"):
        list(entries_of_directory(tmp_path / "no"))


NAMES = ["LinearOperation_24_1", "LinearOperation_24_10", "SelfAttentionOperation_24_1_0", "SortOperation_0"]


@pytest.mark.parametrize(
    ("ids", "names", "chosen"),
    [
        ("24_1", "", [0, 2]),
        ("24", "", [0, 1, 2]),
        ("0, 24_10", "", [1, 3]),
        ("", "self, LINEAR", [0, 1, 2]),
        ("24_1", "self", [2]),
        ("0，24_10", "", [1, 3]),
        ("0 24_10", "", [1, 3]),
        ("", "self，linear", [0, 1, 2]),
        ("", "self、linear", [0, 1, 2]),
        ("", "", [0, 1, 2, 3]),
        ("7", "", []),
    ],
)
def test_ids_select_what_lies_below_and_names_by_a_part(ids: str, names: str, chosen: list[int]) -> None:
    found = selected(
        [Entry(i, name, "", "", "") for i, name in enumerate(NAMES)], ids_from(ids), names_from(names)
    )
    assert [entry.number for entry in found] == chosen


def test_what_is_no_id_is_refused() -> None:
    with pytest.raises(SettingsError, match="2-3"):
        ids_from("2_1,2-3")
