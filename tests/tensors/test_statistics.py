"""statistics: both CSV files of statistics dumps, and the same numbers computed from tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import FormatError, NoPayload
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.statistics import statistics_in, statistics_of
from tests.newer import torch_dtypes

TORCH = "NodeName,NodeType,InputOutput,Index,DataType,Shape,Max,Min,Mean,L2Norm\n"
ATB = (
    "Device and PID,Execution Count,Op Name,Op Type,Op Id,Input/Output,Index,Dtype,Format,Shape,"
    "Max,Min,Mean,Norm,Tensor Path\n"
)
KERNEL = (
    "0_39943,0,Prefill_layer/RmsNormOperation/RmsNormKernel,RmsNormKernel,1_0_0,output,0,float,nd,1x2,"
    "4.000000,4.000000,4.000000,5.656854,/o/outtensor0.bin\n"
)


def file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "statistics.csv"
    path.write_text(text)
    return str(path)


def test_rows_of_a_torch_module_are_members_by_side_and_index(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        TORCH + 'root.a,A,Input,0,torch.float32,"(1, 4, 1, 8)",4.5,-2.0,0.25,7.0\n'
        "root.a,A,Output,0,torch.bfloat16,(),nan,nan,nan,nan\n" + TORCH + "\n"
        'root.a,A,Output,0,torch.bool,"(3,)",1.0,0.0,0.5,1.0\n',
    )
    assert list(statistics_in(path)) == ["Input/0", "Output/0", "Output/0#1"]
    header = TensorRef(path, "Input/0").header()
    assert (header.payload, header.dtype.name, header.shape) == ("statistics", "float32", (1, 4, 1, 8))
    assert header.statistics == Statistics(4.5, -2.0, 0.25, 7.0)
    assert TensorRef(path, "Output/0").header().shape == ()


def test_rows_of_an_atb_step_are_members_by_op_id(tmp_path: Path) -> None:
    path = file(tmp_path, ATB + KERNEL + ATB + "\n" + KERNEL)
    assert list(statistics_in(path)) == ["1_0_0/output/0", "1_0_0/output/0#1"]
    header = TensorRef(path, "1_0_0/output/0").header()
    assert (header.dtype.name, header.layout, header.shape) == ("float32", "nd", (1, 2))
    assert header.statistics == Statistics(4.0, 4.0, 4.0, 5.656854)


def test_complex_and_missing_statistics_of_atb_do_not_shift_columns(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        ATB
        + "0_1,0,Op,Op,3,input,0_x,complex64,nd,2,(3.000000,-4.000000),(1,0),(0,0),5.0,/p.bin\n"
        + "0_1,0,Op,Op,3,input,1,bool,nd,2,N/A,N/A,N/A,N/A,N/A\n",
    )
    assert TensorRef(path, "3/input/0_x").header().statistics == Statistics(5.0, 1.0, 0.0, 5.0)
    assert TensorRef(path, "3/input/1").header().statistics == Statistics(None, None, None, None)


def test_statistics_never_open_as_a_tensor(tmp_path: Path) -> None:
    with pytest.raises(NoPayload, match="only the statistics"):
        TensorRef(file(tmp_path, ATB + KERNEL), "1_0_0/output/0").open()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"is not a statistics file"),
        ("a,b\n", r"is not a statistics file"),
        (TORCH + "too,short\n", "line 2 has 2 columns instead of 10"),
        (ATB + KERNEL[:60], "columns instead of 15; was the dump interrupted"),
        (ATB + KERNEL.replace("1x2", "1x-2"), "line 2 has shape '1x-2'"),
        (ATB + KERNEL.replace("1x2", "9" * 19), "larger than any file"),
        (TORCH + "a" * 200_000, r"is not a valid CSV: field larger than field limit \(131072\)"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        statistics_in(file(tmp_path, text))
    assert "statistics.csv" in str(caught.value)


def test_a_missing_member_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"has no row 'Output/3'; its rows: 1_0_0/output/0"):
        TensorRef(file(tmp_path, ATB + KERNEL), "Output/3").header()


def test_a_file_beyond_all_measure_is_not_read(tmp_path: Path) -> None:
    path = file(tmp_path, ATB)
    with open(path, "r+b") as handle:
        handle.truncate(1 << 40)
    with pytest.raises(FormatError, match="more than the"):
        statistics_in(path)


def test_a_rewritten_file_is_read_anew(tmp_path: Path) -> None:
    assert len(statistics_in(file(tmp_path, ATB + KERNEL))) == 1
    assert len(statistics_in(file(tmp_path, ATB + KERNEL * 2))) == 2


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), Statistics(4.0, 1.0, 2.5, math.sqrt(30))),
        (torch.tensor([True, False]), Statistics(1.0, 0.0, 0.5, 1.0)),
        (torch.tensor([2**24 + 1]), Statistics(2.0**24 + 1, 2.0**24 + 1, 2.0**24 + 1, 2.0**24 + 1)),
        (torch.tensor([3 + 4j, 0j]), Statistics(5.0, 0.0, 2.5, 5.0)),
        (torch.tensor([0.5]).to(torch.float8_e5m2), Statistics(0.5, 0.5, 0.5, 0.5)),
        (torch.tensor(3.0), Statistics(3.0, 3.0, 3.0, 3.0)),
        (torch.zeros(0, 3), Statistics(None, None, None, None)),
    ],
)
def test_statistics_of_a_tensor(tensor: torch.Tensor, expected: Statistics) -> None:
    assert statistics_of(tensor) == expected


@pytest.mark.parametrize("dtype", torch_dtypes("uint16", "uint32", "uint64"), ids=str)
def test_statistics_of_unsigned_integers(dtype: torch.dtype) -> None:
    assert statistics_of(torch.tensor([7], dtype=dtype)) == Statistics(7.0, 7.0, 7.0, 7.0)


def test_norms_do_not_overflow_before_they_must() -> None:
    found = statistics_of(torch.tensor([3e300, 4e300], dtype=torch.float64))
    assert found.l2norm == pytest.approx(5e300, rel=1e-15)
    assert statistics_of(torch.tensor([math.inf])).l2norm == math.inf


def test_nan_is_no_maximum_but_spoils_mean_and_norm() -> None:
    found = statistics_of(torch.tensor([math.nan, 1.0, -2.0]))
    assert (found.max, found.min) == (1.0, -2.0)
    assert math.isnan(found.mean or 0.0)
    assert math.isnan(found.l2norm or 0.0)
    assert statistics_of(torch.tensor([math.nan])).max is None


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.T,
        lambda t: t[:, ::2],
        lambda t: t[:, :1].expand(-1, 500),
        lambda t: t.reshape(50, 10, 400).permute(2, 0, 1),
    ],
    ids=["dense", "transposed", "strided", "expanded", "permuted"],
)
def test_every_element_of_any_view_counts_once(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = torch.arange(200_000, dtype=torch.float64).reshape(500, 400)
    tensor = view(tensor)
    found = statistics_of(tensor)
    assert (found.max, found.min) == (float(tensor.max()), float(tensor.min()))
    # Integers below 2^53 add without rounding, in any order.
    assert found.mean == float(tensor.sum()) / tensor.numel()
    # Squares are exact too; sums of blocks pass through a square root and back, 2 roundings per block.
    assert found.l2norm == pytest.approx(float(tensor.square().sum().sqrt()), rel=8 * 2**-52)
