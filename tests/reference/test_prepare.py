"""From an entry to its files: where they are looked for, what is declared of them, the ranks beside them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import DumpError, FormatError
from acc_pytest.reference.case import Declared
from acc_pytest.reference.prepare import all_ranks, files_of, locate, prepare
from acc_pytest.reference.sources import Entry, entries_of_csv
from tests.opcheck.made import MadeDump, softmax_dump

X = torch.arange(6, dtype=torch.float16).reshape(2, 3)


def entry_of(origin: Path, name: str = "TransposeOperation", **cells: str) -> Entry:
    """A row of a CSV; `cells` are its columns."""
    return Entry(0, name, "ops.csv:2", str(origin), "g", cells=cells)


def here(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


# Files that a row names.


def test_files_lie_in_the_given_directory_or_beside_the_csv(tmp_path: Path) -> None:
    beside = [here(tmp_path / "csv" / name) for name in ("x.bin", "a/y.bin", "b/after/output.bin")]
    given = [here(tmp_path / "given" / name) for name in ("x.bin", "b/after/output.bin")]
    cells = {"InTensorFile": "x.bin; a/y.bin;", "OutTensorFile": "b/before/output.bin;none.bin;;"}
    row = entry_of(tmp_path / "csv" / "ops.csv", **cells)
    case = prepare(row)
    assert [ref and ref.path for ref in case.inputs] == [str(file) for file in beside[:2]]
    assert [ref and ref.path for ref in case.outputs] == [
        str(beside[2]),
        str(tmp_path / "csv" / "none.bin"),
        None,
    ]
    elsewhere = prepare(row, str(tmp_path / "given"))
    assert [ref and ref.path for ref in elsewhere.inputs] == [str(given[0]), str(beside[1])]
    assert elsewhere.outputs[0] is not None
    assert elsewhere.outputs[0].path == str(given[1])
    outputs_alone = prepare(entry_of(tmp_path / "csv" / "ops.csv", OutTensorFile="x.bin"))
    assert (outputs_alone.inputs, len(outputs_alone.outputs)) == ((), 1)
    with pytest.raises(DumpError, match=r"^ops.csv:2: TransposeOperation names neither files nor a place in"):
        prepare(entry_of(tmp_path / "ops.csv"))


@pytest.mark.parametrize(
    ("text", "param"),
    [(None, {}), ("", {}), ("null", {}), ("{}", {}), ('{"perm": [1]}', {"perm": [1]})],
)
def test_parameters_are_those_of_the_row(tmp_path: Path, text: str | None, param: dict[str, Any]) -> None:
    cells = {"InTensorFile": "x.bin", **({} if text is None else {"OpParam": text})}
    assert prepare(entry_of(here(tmp_path / "x.bin"), **cells)).param == param


@pytest.mark.parametrize(
    ("text", "said"),
    [("[1]", "the parameters must be a JSON object, got '\\[1\\]'"), ("{", "the parameters are not JSON")],
)
def test_parameters_that_are_none_are_told_with_their_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FormatError, match=f"^ops.csv:2, column OpParam: {said}"):
        prepare(entry_of(here(tmp_path / "x.bin"), InTensorFile="x.bin", OpParam=text))


@pytest.mark.parametrize(
    ("cells", "declared"),
    [
        ({"InDType": "float16", "InShape": "2,3"}, [("float16", (2, 3), "nd")]),
        ({"InDType": "float16;int8;", "InShape": "2, 3;4;", "InFormat": "ND;NZ"},
         [("float16", (2, 3), "nd"), ("int8", (4,), "nz")]),
        ({"InDType": "float16", "InShape": ""}, [("float16", (), "nd")]),
        ({"InDType": "float16;int8", "InShape": "2,3"}, []),
        ({"InDType": "float16", "InShape": "2,x"}, []),
        ({"InDType": "float16", "InShape": "9" * 19}, []),
    ],
)  # fmt: skip
def test_a_row_declares_types_shapes_and_layouts(
    tmp_path: Path, cells: dict[str, str], declared: list[tuple[str, tuple[int, ...], str]]
) -> None:
    case = prepare(entry_of(here(tmp_path / "x.bin"), InTensorFile="x.bin;x.bin", **cells))
    assert case.declared_inputs == tuple(Declared(*each) for each in declared)


@pytest.mark.parametrize(
    ("row", "asked", "soc", "stated"),
    [
        ("", "", "Ascend910B", False),
        ("Ascend310P", "", "Ascend310P", True),
        ("Ascend310P, Ascend910B", "", "Ascend910B", True),
        ("Ascend950, Ascend310P", "", "Ascend950", True),
        ("Ascend950", "Ascend310P", "Ascend310P", True),
    ],
)
def test_the_chip_is_that_of_the_run_or_of_the_row(
    tmp_path: Path, row: str, asked: str, soc: str, stated: bool
) -> None:
    entry = entry_of(here(tmp_path / "x.bin"), InTensorFile="x.bin", SocVersion=row)
    case = prepare(entry, soc=asked)
    assert (case.soc, case.soc_stated) == (soc, stated)


# The directory of an operation, by the ids of its path.


@pytest.fixture
def moved(tmp_path: Path) -> MadeDump:
    """A dump whose CSV lies elsewhere: three operators, two of them inside a graph."""
    return softmax_dump(tmp_path / "dump")


def softmax_of(dump: MadeDump) -> Entry:
    return next(iter(entries_of_csv(dump.csv, "g")))


@pytest.mark.parametrize("below", [".", "tensors", "tensors/0_77", "tensors/0_77/0"])
def test_a_directory_is_found_below_what_is_given(moved: MadeDump, below: str) -> None:
    place = str(moved.execution / "5_Attention" / "0_SoftmaxOperation"), str(moved.execution)
    assert locate(softmax_of(moved), str(moved.root / below)) == place
    assert locate(softmax_of(moved)) == place
    files = files_of(softmax_of(moved), str(moved.root / below))
    assert files == [f"{place[0]}/{name}" for name in ("before/intensor0.bin", "after/outtensor0.bin")]


def test_the_process_and_step_of_a_csv_are_those_of_its_name(moved: MadeDump) -> None:
    for other in ("tensors/0_77/3", "tensors/1_78/0"):
        shutil.copytree(moved.execution, moved.root / other)
    place = "5_Attention/0_SoftmaxOperation"
    assert locate(softmax_of(moved))[0] == str(moved.execution / place)
    third = replace(softmax_of(moved), step=3)
    assert locate(third) == (str(moved.root / "tensors/0_77/3" / place), str(moved.root / "tensors/0_77/3"))
    for step in (4, -1):  # another, and one of two that nothing names
        with pytest.raises(
            DumpError, match=r"SoftmaxOperation_5_0 has no directory in .*tensors/DEVICE_PID/N"
        ):
            locate(replace(softmax_of(moved), step=step))
    assert files_of(replace(softmax_of(moved), step=4)) == []


def test_two_directories_of_one_operation_are_told(moved: MadeDump) -> None:
    shutil.copytree(moved.execution / "5_Attention", moved.execution / "5_Other")
    with pytest.raises(DumpError, match=r"is in .* 2 times \(0_SoftmaxOperation, 0_SoftmaxOperation\); give"):
        locate(softmax_of(moved))


def test_an_input_without_a_file_is_asked_for_where_it_has_elements(moved: MadeDump) -> None:
    (moved.execution / "2_TransposeOperation" / "before" / "intensor0.bin").unlink()
    transposed = list(entries_of_csv(moved.csv, "g"))[2]
    with pytest.raises(
        DumpError, match=r"input 0 of TransposeOperation_2 \(float16 \[4, 8\]\) has no file in"
    ):
        prepare(transposed)
    assert prepare(replace(transposed, cells={**transposed.cells, "InShape": "0,8"})).inputs == (None,)


# Operators between ranks.


def ranks_of(root: Path, numbers: tuple[int | None, ...]) -> Entry:
    """The entry of the first rank; `numbers` are the ranks that parameters say, in order of devices."""
    dumps = [MadeDump(root, device) for device in range(len(numbers))]
    for dump, number in zip(dumps, numbers):
        param = {} if number is None else {"rank": number}
        dump.add("AllReduceOperation", param, [X], [X], with_param=number is not None)
    return next(iter(entries_of_csv(dumps[0].csv, "g")))


@pytest.mark.parametrize("numbers", [(0, 1, 2), (2, 0, 1), (None, None, None)])
def test_ranks_are_in_the_order_of_their_numbers(tmp_path: Path, numbers: tuple[int | None, ...]) -> None:
    cases = all_ranks(prepare(ranks_of(tmp_path, numbers)), 3)
    assert [case.rank for case in cases] == [0, 1, 2]
    devices = [number if number is not None else place for place, number in enumerate(numbers)]
    workers = [f"{devices.index(rank)}_{77 + devices.index(rank)}" for rank in range(3)]
    for case, worker in zip(cases, workers):
        assert case.directory == str(tmp_path / "tensors" / worker / "0" / "0_AllReduceOperation")
        assert [ref and ref.path for ref in case.inputs] == [f"{case.directory}/before/intensor0.bin"]
        assert case.inputs[0] is not None
        assert case.inputs[0].root == str(tmp_path / "tensors" / worker / "0")


@pytest.mark.parametrize(
    ("numbers", "said"), [((0,), "1 (rank 0)"), ((0, 0), "2 (rank 0)"), ((0, 5), "0, 5")]
)
def test_ranks_that_are_missing_are_told(tmp_path: Path, numbers: tuple[int, ...], said: str) -> None:
    case = prepare(ranks_of(tmp_path, numbers))
    with pytest.raises(DumpError) as caught:
        all_ranks(case, 2)
    assert "computes on 2 ranks, but the dump has" in str(caught.value)
    assert said in str(caught.value)
    with pytest.raises(DumpError, match="its files are not in a dump of all ranks"):
        all_ranks(replace(case, directory=""), 2)
