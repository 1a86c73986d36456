"""Digests of weights: the same weight, the same in another dtype, another weight."""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from acc_pytest.errors import FormatError, NoPayload
from acc_pytest.tensors import digest as module
from acc_pytest.tensors.digest import (
    BUCKETS,
    PERIOD,
    STANDARD_ERROR,
    Sketch,
    WeightDigest,
    digest,
    splitmix64,
)
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.projection import WIDTH, projection, signs
from acc_pytest.tensors.ref import TensorRef
from acc_pytest.tensors.statistics import statistics_in, statistics_of
from tests.newer import torch_dtypes


def weight(rows: int = 256, columns: int = 512, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * 0.02


def sketched_by_hand(tensor: torch.Tensor) -> list[float]:
    """The formula in the module's docstring, one element at a time."""
    found = [0.0] * BUCKETS
    for index, value in enumerate(tensor.double().reshape(-1).tolist()):
        row, column = divmod(index, 16151)
        mixed = splitmix64(row)
        sign = -1 if mixed & 1 else 1
        if splitmix64((column + (mixed >> 1)) % 16151) >> 63:
            sign = -sign
        found[index % 31] += sign * value
    return found


def test_splitmix64_is_the_published_one() -> None:
    states = [0, 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A]
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [splitmix64(state) for state in states] == expected


@pytest.mark.parametrize("count", [0, 1, 31, 500, PERIOD, PERIOD + 1, 2 * PERIOD, 5 * PERIOD + 77])
def test_the_sketch_is_that_of_the_formula(count: int) -> None:
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(count))
    assert digest(tensor).sketch == pytest.approx(sketched_by_hand(tensor), rel=1e-12, abs=1e-12)


def test_the_sketch_never_changes() -> None:
    found = digest(torch.arange(40_000, dtype=torch.int32)).sketch
    assert [int(found[bucket]) for bucket in (0, 1, 30)] == [1069841, 756248, -1796989]


def test_the_moments_are_those_of_the_tensor() -> None:
    tensor = weight()
    found, wide = digest(tensor), tensor.double()
    assert found.dtype == "float32"
    assert found.shape == (256, 512)
    assert found.crc32 == zlib.crc32(tensor.numpy().tobytes())
    assert found.sum == pytest.approx(float(wide.sum()), rel=1e-12, abs=1e-12)
    assert found.squares == pytest.approx(float((wide * wide).sum()), rel=1e-12)
    assert (found.min, found.max) == (float(wide.min()), float(wide.max()))
    assert found.nonfinite == 0


def test_nan_and_inf_are_counted_and_the_rest_is_described() -> None:
    tensor = weight()
    plain = digest(tensor.index_fill(0, torch.tensor([3]), 0.0))
    tensor[3] = math.inf
    tensor[3, 7] = math.nan
    found = digest(tensor)
    assert found.nonfinite == 512
    assert (found.sum, found.squares, found.sketch) == (plain.sum, plain.squares, plain.sketch)
    assert math.isfinite(found.max)
    nothing = digest(torch.full((3,), math.nan))
    assert (nothing.min, nothing.max, nothing.nonfinite, nothing.norm) == (0, 0, 3, 0)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[3:],
        lambda t: t.view(2, 128, 512).transpose(0, 2),
        lambda t: t[:1].expand(9, 512),
        lambda t: t[0, 0],
        lambda t: t[:0],
    ],
)
def test_a_view_has_the_digest_of_its_copy(view: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 1000)  # so that views are read in parts
    shown = view(weight())
    found, copied = digest(shown), digest(shown.clone(memory_format=torch.contiguous_format))
    assert found.crc32 == copied.crc32
    assert found.sketch == pytest.approx(copied.sketch, rel=1e-9, abs=1e-9)
    assert (found.min, found.max, found.rounded) == (copied.min, copied.max, copied.rounded)


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float16", "bfloat16", "float8_e4m3fn", "int8", "int64", "uint8", "bool", "complex64"],
)
def test_weights_of_any_dtype_have_one(dtype: str) -> None:
    tensor = (weight() * 100).to(getattr(torch, dtype))
    found = digest(tensor)
    assert found.dtype == dtype
    assert found.same_values(digest(tensor.clone()))
    assert not found.differs(digest(tensor.clone()))
    assert found.norm == pytest.approx(float(tensor.to(torch.complex128).abs().norm()), rel=1e-9)


def test_rounding_is_told_by_the_check_sums() -> None:
    tensor = weight()
    for wide in (tensor.double(), tensor):
        for narrow in (torch.float16, torch.bfloat16):
            one, other = digest(wide), digest(wide.to(narrow))
            assert one.same_values(other)
            assert other.same_values(one)
            assert one.distance(other) == 0
            assert not one.differs(other)
    checkpoint = tensor.bfloat16()  # loaded as float16 by one side
    assert digest(checkpoint).same_values(digest(checkpoint.half()))


@pytest.mark.parametrize("large", [1e6, -1e6])
def test_a_value_that_is_too_large_for_a_dtype_is_no_rounding(large: float) -> None:
    """float16 of it is infinite, which is the check sum of golden rounded to float16 as well."""
    wide = torch.randn(64, 64)
    wide[3, 4] = large
    assert digest(wide).differs(digest(wide.half()))
    assert not digest(wide).differs(digest(wide.bfloat16()))


def test_rounding_of_another_kind_is_told_by_the_distance() -> None:
    tensor = weight()
    towards_zero = (tensor.view(torch.int32) & -65536).view(torch.float32).bfloat16()
    for other in (tensor.to(torch.float8_e4m3fn), tensor.half().bfloat16(), towards_zero):
        one, two = digest(tensor), digest(other)
        assert not one.same_values(two)
        assert one.distance(two) > 0
        assert not one.differs(two)
        assert not two.differs(one)


def swapped(tensor: torch.Tensor) -> torch.Tensor:
    order = list(range(len(tensor)))
    order[3], order[100] = order[100], order[3]
    return tensor[order]


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "another weight": lambda t: weight(seed=1),
    "a permutation of rows": lambda t: t.flip(0),
    "two rows swapped": swapped,
    "one row of another": lambda t: torch.cat([t[1:2], t[1:]]),
    "one column of another": lambda t: torch.cat([t[:, 1:2], t[:, 1:]], 1),
    "halves swapped": lambda t: t.roll(128, 0),
    "transposed in place": lambda t: t.t().reshape(t.shape),
    "scaled": lambda t: t * 1.02,
    "zeros": lambda t: t * 0,
    "negated": lambda t: -t,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_weight_is_told_from_rounding(
    change: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    tensor = weight()
    one, other = digest(tensor), digest(change(tensor).to(dtype))
    true = float((change(tensor).to(dtype).double() - tensor.double()).norm() / tensor.double().norm())
    assert one.differs(other)
    assert other.differs(one)
    assert one.distance(other) == pytest.approx(true, rel=4 * STANDARD_ERROR)


def test_one_element_is_enough_where_dtypes_are_equal() -> None:
    tensor = weight()
    one = digest(tensor)
    tensor[5, 5] += 1e-6
    assert one.differs(digest(tensor))
    assert one.distance(digest(tensor)) == pytest.approx(1e-6 / one.norm, rel=0.1)


def test_the_error_of_the_distance_is_the_one_that_is_promised() -> None:
    estimates = [digest(weight(16, 1000, seed)) for seed in range(200)]
    ratios = [math.hypot(*found.sketch) / found.norm for found in estimates]
    assert statistics.fmean(ratio**2 for ratio in ratios) == pytest.approx(1, abs=4 * 2 * STANDARD_ERROR / 14)
    assert statistics.stdev(ratios) == pytest.approx(STANDARD_ERROR, rel=0.25)


def spread(shape: tuple[int, int], rows: range, columns: range) -> float:
    """Estimate over truth, of a difference of ones in some rows and columns."""
    tensor = torch.zeros(shape)
    tensor[rows.start : rows.stop, columns.start : columns.stop] = 1
    found = digest(tensor)
    return math.hypot(*found.sketch) / found.norm


def test_a_difference_in_rows_columns_or_everywhere_is_no_blind_spot() -> None:
    places = [range(start, start + 1) for start in range(0, 40, 3)]
    for shape in ((300, 4096), (100, 18944), (200, 11008)):
        whole = range(shape[0]), range(shape[1])
        found = [spread(shape, place, whole[1]) for place in places]
        found += [spread(shape, whole[0], place) for place in places]
        found += [spread(shape, whole[0], range(width)) for width in (2, 64, 128, shape[1])]
        assert min(found) > 1 - 5 * STANDARD_ERROR
        assert max(found) < 1 + 5 * STANDARD_ERROR


def test_what_cannot_be_compared_says_so() -> None:
    one = digest(weight())
    with pytest.raises(ValueError, match=r"shapes \(256, 512\) and \(512, 256\)"):
        one.distance(digest(weight(512, 256)))
    assert not one.same_values(digest(weight(512, 256)))
    with pytest.raises(ValueError, match="a weight in float32 and one in int8 are held in different units"):
        one.differs(digest((weight() * 100).to(torch.int8)))
    assert digest(torch.zeros(3)).distance(digest(torch.ones(3))) == math.inf


@pytest.mark.parametrize(
    ("tensor", "match"),
    [
        (torch.eye(3).to_sparse(), "a sparse tensor"),
        (torch.empty(3, device="meta"), "a meta tensor"),
    ],
)
def test_a_tensor_without_values_of_its_own_is_refused(tensor: torch.Tensor, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        digest(tensor)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_scales_tell_what_codes_round() -> None:
    """The largest value tells the step of the row that has it alone."""
    exact = weight() * torch.logspace(0, 1.5, 256)[:, None]
    scale = exact.abs().amax(1, keepdim=True) / 127
    rounded = (exact / scale).round() * scale
    codes = replace(digest(rounded), dtype="int8", scale="weight_scale")
    error = float((rounded - exact).norm() / exact.norm())
    assert codes.coding_error(digest(scale)) == pytest.approx(error, rel=0.02)
    assert codes.coding_error() > 2 * error
    assert codes.coding_error(digest(1 / scale)) == codes.coding_error()


def test_a_quantised_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="a quantised tensor"):
        digest(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))


def test_values_whose_squares_are_too_large_are_refused() -> None:
    with pytest.raises(ValueError, match="beyond float64"):
        digest(torch.full((3,), 1e200, dtype=torch.float64))


def test_memory_is_bounded_whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    largest: list[int] = []
    add = Sketch.add

    def watched(self: Sketch, values: torch.Tensor, first: int) -> None:
        largest.append(len(values))
        add(self, values, first)

    monkeypatch.setattr(Sketch, "add", watched)
    digest(torch.zeros(1, dtype=torch.int8).expand(300_000))
    assert max(largest) <= 2 * PERIOD
    assert isinstance(digest(torch.ones(2)), WeightDigest)


# statistics: both CSV files of statistics dumps, and the same numbers computed from tensors.


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


# Projections of weights: products are checked with them, and errors estimated.


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_signs_are_the_bits_of_splitmix64() -> None:
    wanted = [[1 - 2 * (splitmix64(row) >> bit & 1) for bit in range(WIDTH)] for row in range(300)]
    assert signs(300).tolist() == wanted
    assert signs(0).shape == (0, WIDTH)
    assert torch.equal(signs(7), signs(5000)[:7])


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (300, 4000)])
def test_a_product_is_the_same_by_the_projection(shape: tuple[int, int]) -> None:
    """The last weight is more than a piece. P is stored in float32: each term is off by 2^-24 of itself."""
    weight, x = normal(*shape), normal(3, shape[1], seed=2)
    found = x @ projection(weight).double()
    torch.testing.assert_close(
        found, x @ weight.T @ signs(len(weight)), rtol=0, atol=2**-24 * terms(x, weight)
    )


def terms(x: torch.Tensor, weight: torch.Tensor) -> float:
    """The largest sum of the sizes of terms of any entry."""
    return float((x.abs() @ (weight.T @ signs(len(weight))).abs()).max())


def test_the_square_of_an_error_is_estimated_without_bias() -> None:
    """Of 200 rows of 50 errors the estimate has a relative standard deviation of sqrt(2 / (200 * 8))."""
    error = normal(200, 50, seed=3)
    estimate = float((error @ signs(50)).square().mean(1).sum())
    assert estimate == pytest.approx(float(error.square().sum()), rel=5 * math.sqrt(2 / (200 * WIDTH)))


def test_a_weight_of_16_bits_is_projected_as_its_values() -> None:
    weight = normal(40, 30).bfloat16()
    assert torch.equal(projection(weight), projection(weight.double()))
