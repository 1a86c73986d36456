"""ge_statistics: both headers of GE's statistics files, and the same numbers through a reference."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import FormatError, NoPayload
from acc_pytest.tensors.dtypes import by_name
from acc_pytest.tensors.ge_file import GE_COLUMNS
from acc_pytest.tensors.header import Statistics, TensorHeader
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.statistics import statistics_in
from tests.tensors.ge_statistics_file import write_statistics_csv

HOST = f"{GE_COLUMNS},Max Value,Min Value,Avg Value,Count,Nan Count,Negative Inf Count,Positive Inf Count"
NAME = "Add.Add_2.44.6.1706596912161941.csv"


def test_a_file_of_the_host_is_read(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(
        f"{HOST}\nInput,0,48,DT_FLOAT16,FRACTAL_NZ,2x3x4,3.5,-1,0.25,24,0,1,2\n"
        "Input,1,4,DT_INT4,ND,-,,,,,,,\nOutput,0,8,DT_BF16,UNKNOW,4,inf,nan,1,4,0,0,1\n"
    )
    rows = statistics_in(str(path))
    assert list(rows) == ["inputs/0", "inputs/1", "outputs/0"]
    first, second, third = rows.values()
    assert first == TensorHeader(
        by_name("float16"),
        (2, 3, 4),
        "statistics",
        layout="fractal_nz",
        statistics=Statistics(3.5, -1, 0.25, None),
    )
    assert (second.shape, second.statistics) == ((), Statistics(None, None, None, None))
    assert third.layout == "undefined(UNKNOW)"
    assert third.statistics is not None
    assert third.statistics.max == math.inf
    ref = TensorRef(str(path), "inputs/0")
    assert ref.header() == first
    with pytest.raises(NoPayload, match="holds only the statistics"):
        ref.open()


def test_a_file_of_a_device_holds_what_was_chosen(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(f"{GE_COLUMNS},Count,Min Value,l2norm\nOutput,0,12,DT_FLOAT,ND,3,3,NA,2.5\n")
    (row,) = statistics_in(str(path)).values()
    assert row.statistics == Statistics(None, None, None, 2.5)


@pytest.mark.parametrize("items", [None, ["l2norm", "Min Value", "Max Value", "Avg Value"]])
def test_what_is_written_is_read(tmp_path: Path, items: list[str] | None) -> None:
    path = tmp_path / NAME
    values = torch.tensor([[1.0, -2.5], [3.0, 0.5]])
    write_statistics_csv(path, [values, torch.ones(2, dtype=torch.complex64)], [torch.tensor(3)], items=items)
    first, second, third = statistics_in(str(path)).values()
    norm = None if items is None else float(values.double().norm())
    assert first.statistics == Statistics(3, -2.5, 0.5, norm)
    assert (first.shape, first.dtype.name) == ((2, 2), "float32")
    assert path.read_text().splitlines()[1].startswith("Input,0,16,DT_FLOAT,ND,2x2,")
    assert second.statistics == Statistics(None, None, None, None)
    assert (third.shape, third.dtype.name) == ((), "int64")
    assert third.statistics == Statistics(3, 3, 3, None if items is None else 3)
    assert path.read_text().startswith(HOST if items is None else f"{GE_COLUMNS},Count,Max Value,Min Value")


def test_nan_and_infinities_are_counted(tmp_path: Path) -> None:
    path = tmp_path / NAME
    write_statistics_csv(path, [], [torch.tensor([math.nan, math.inf, -math.inf, -math.inf])])
    assert path.read_text().splitlines()[1].endswith(",4,1,2,1")
    write_statistics_csv(path, [], [torch.tensor([math.nan])])
    (row,) = statistics_in(str(path)).values()
    assert row.statistics is not None
    assert row.statistics.max is not None
    assert math.isnan(row.statistics.max)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Input,0,4,DT_FLOAT,ND,1,1,1,1,1,0,0", "has 12 columns instead of 13"),
        ("Inout,0,4,DT_FLOAT,ND,1,1,1,1,1,0,0,0", r"describes neither an input nor an"),
        ("Input,x,4,DT_FLOAT,ND,1,1,1,1,1,0,0,0", r"describes neither an input nor an"),
        ("Input,0,4,DT_FLOAT,ND,1xx2,1,1,1,1,0,0,0", "describes neither an input nor an output"),
        ("Input,0,4,DT_FLOAT,ND,9999999999999999999x9,1,1,1,1,0,0,0", "larger than any file"),
        ("Input,0," + "9" * 200_000, r"is not a valid CSV: field larger than"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / NAME
    path.write_text(f"{HOST}\n\n{line}\n")
    with pytest.raises(FormatError, match=reason):
        statistics_in(str(path))


@pytest.mark.parametrize("content", ["", "a,b\n", f"x{HOST}\n", f"{GE_COLUMNS}s,Count\n"])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / NAME
    path.write_text(content)
    with pytest.raises(FormatError, match=r"is not a statistics file( of GE)?: its first"):
        statistics_in(str(path))


def test_a_file_larger_than_any_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with open(path, "wb") as file:
        file.truncate((1 << 28) + 1)
    with pytest.raises(FormatError, match="more than the 268435456 allowed"):
        statistics_in(str(path))
