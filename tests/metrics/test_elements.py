"""ULPs and errors against definitions written down anew: nextafter, NumPy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from acc_pytest.errors import SettingsError
from acc_pytest.metrics import single_block
from acc_pytest.metrics.elements import BLOCK, BUCKETS, element_errors, ulp
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.measurement import EXACT, ElementTolerance
from acc_pytest.metrics.single_block import FEW, Buffers, Flushed
from acc_pytest.tensors import hifloat8
from acc_pytest.tensors.source import TensorSource
from tests.metrics.metric_reference import measured
from tests.newer import torch_dtypes

HALF = st.floats(-100, 100, width=16)
FP8 = ["float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, *torch_dtypes(*FP8)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_ulp_is_the_distance_to_the_next_larger_magnitude(dtype: torch.dtype) -> None:
    """All finite values of the type but the largest (float32: a sample of its patterns)."""
    if dtype == torch.float32:
        bits = torch.randint(0, 0x7F7FFFFE, (100_000,), dtype=torch.int32)
    elif dtype.itemsize == 2:
        bits = torch.arange(0, 2**15 - 2, dtype=torch.int16)
    else:
        bits = torch.arange(0, 126, dtype=torch.uint8)
    here, following = bits.view(dtype).double(), (bits + 1).view(dtype).double()
    finite = here.isfinite() & following.isfinite()
    wanted = (following - here)[finite]
    name = str(dtype).removeprefix("torch.")
    assert torch.equal(ulp(here[finite], name), wanted)
    assert torch.equal(ulp(-here[finite], name), wanted)


def test_an_ulp_of_hifloat8_is_a_step_between_its_values() -> None:
    values = hifloat8.decode(torch.arange(0, 128, dtype=torch.uint8)).double()
    values = values[values.isfinite()].unique()
    following, here = values[2:], values[1:-1]
    # the step after the largest of a binade is that of the next binade; below 2^-15 a binade is one value
    inside = (torch.frexp(here).exponent == torch.frexp(following).exponent) | (here < 2.0**-15)
    assert torch.equal(ulp(here, "hifloat8")[inside], (following - here)[inside])
    assert {math.frexp(value)[1] - 1 for value in here[inside].tolist()} == set(range(-22, 15))


@given(
    st.lists(st.tuples(HALF, HALF), min_size=1, max_size=40),
    st.sampled_from(["absolute", "scaled", "relative", "ulp"]),
    st.sampled_from([0.0, 2.0**-9, 0.5]),
)
def test_measured_is_what_numpy_says(pairs: list[tuple[float, float]], scale: Any, bound: float) -> None:
    golden, mine = (torch.tensor(side, dtype=torch.float16) for side in zip(*pairs))
    tolerance = ElementTolerance(bound, scale=scale)
    errors = element_errors(golden, mine, tolerance, "float16")
    g, y = golden.double().numpy(), mine.double().numpy()
    d, size = np.abs(y - g), np.abs(g)
    step = np.spacing(np.abs(golden.numpy())).astype(np.float64)
    allowed = {
        "absolute": np.full_like(g, bound),
        "scaled": bound * np.maximum(1, size),
        "relative": bound * np.where(size > 2.0**-23, size, 1.0),
        "ulp": bound * step,
    }[scale]
    scaled = (y - g) / np.maximum(1, size)
    assert (errors.beyond, errors.beyond_absolute) == (int((d > allowed).sum()), int((d > bound).sum()))
    assert errors.mare == pytest.approx((d / (size + 1e-7)).max(), rel=1e-12)
    assert errors.mere == pytest.approx((d / (size + 1e-7)).mean(), rel=1e-9, abs=1e-300)
    assert errors.rmse == pytest.approx(np.sqrt((d**2).mean()), rel=1e-9, abs=1e-300)
    assert errors.max_scaled_error == np.abs(scaled).max()
    assert errors.error_balance == pytest.approx(abs(scaled.mean()), rel=1e-9, abs=1e-15)
    assert errors.max_ulp_error == (d / step).max()
    ends = (*BUCKETS, math.inf)
    counts = [int(((d / step > low) & (d / step <= high)).sum()) for low, high in zip((-1, *ends), ends)]
    names = [*(f"<={end:g}" for end in BUCKETS), ">256"]
    assert errors.histogram == {name: count for name, count in zip(names, counts) if count}
    if np.array_equal(g, y):
        assert (errors.worst, errors.worst_ulp) == (None, None)
    else:
        score = d / np.maximum(allowed, 2.0**-900)
        assert errors.worst is not None
        assert score[errors.worst] == score.max()
        assert errors.worst_ulp == (d / step)[errors.worst]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e5m2], ids=str)
def test_equal_elements_are_counted_too(dtype: torch.dtype) -> None:
    golden = torch.tensor([1.0, 2.0]).to(dtype)
    errors = element_errors(golden, golden.clone(), EXACT, str(dtype).removeprefix("torch."))
    assert (errors.histogram, errors.max_ulp_error, errors.beyond) == ({"<=0.5": 2}, 0.0, 0)


def test_integers_have_no_steps() -> None:
    errors = element_errors(torch.tensor([1, 5]), torch.tensor([1, 8]), EXACT, "int64")
    assert (errors.histogram, errors.max_ulp_error, errors.worst_ulp) == ({}, None, None)
    assert (errors.rmse, errors.error_balance) == (pytest.approx(math.sqrt(4.5)), pytest.approx(0.3))


def test_nan_has_to_be_in_the_same_places() -> None:
    golden = torch.tensor([1.0, torch.nan, torch.inf, 2.0, torch.inf])
    mine = torch.tensor([1.0, torch.nan, torch.inf, torch.nan, -torch.inf])
    errors = element_errors(golden, mine, ElementTolerance(1.0, scale="scaled"), "float32")
    assert (errors.beyond, errors.worst, errors.mare) == (2, 3, 0.0)


def test_integers_that_are_one_double_still_differ() -> None:
    golden = torch.tensor([2**60, 5])
    mine = torch.tensor([2**60 + 1, 5])
    assert element_errors(golden, mine, EXACT, "int64").beyond == 1


def test_the_worst_element_and_the_box_are_right_across_blocks() -> None:
    golden = torch.zeros(1, 3, BLOCK)
    mine = golden.clone()
    mine[0, 1, 7], mine[0, 2, 9] = 1.0, 2.0
    errors = element_errors(golden, mine, ElementTolerance(0.5), "float32")
    assert errors.worst == 2 * BLOCK + 9
    assert errors.box == "[0, 1:3, 7:10]"
    assert errors.rel_precision_rate == pytest.approx(100 * (1 - 2 / golden.numel()))


def test_nothing_to_compare_passes() -> None:
    empty = torch.empty(0, 4)
    errors = element_errors(empty, empty, EXACT, "float32")
    assert (errors.beyond, errors.worst, errors.rel_precision_rate) == (0, None, 100.0)


def test_bool_and_complex_are_compared() -> None:
    flags = element_errors(torch.tensor([True, False]), torch.tensor([True, True]), EXACT, "bool")
    assert (flags.beyond, flags.worst) == (1, 1)
    golden = torch.tensor([1 + 1j, 2.0, complex("nan")])
    plane = element_errors(golden, golden + torch.tensor([0, 3j, 0]), EXACT, "complex64")
    assert (plane.beyond, plane.worst, plane.rmse) == (1, 1, pytest.approx(math.sqrt(9 / 2)))


def test_a_pass_measures_elements_beside_its_own_metrics() -> None:
    golden = torch.full((2, BLOCK), 4.0)
    mine = golden.clone()
    mine[0, 3], mine[1, 5] = 4.5, torch.nan
    tolerance = ElementTolerance(0.1, scale="scaled")
    measurement = measure(
        TensorSource(golden), TensorSource(mine), tolerance=tolerance, output_dtype="float32"
    )
    alone = element_errors(golden, mine, tolerance, "float32")
    assert measurement.elements is not None
    assert measurement.elements.rmse == pytest.approx(alone.rmse)
    assert measurement.elements.box == alone.box == "[:, 3:6]"
    assert measurement.beyond_tolerance == 2
    assert measurement.worst is not None
    assert measurement.worst.index == (1, 5)
    assert (measurement.value("max_absolute_error"), measurement.value("nonfinite_mismatch")) == (0.5, 1.0)
    assert measurement.value("rel_precision_rate") == alone.rel_precision_rate
    assert measurement.value("no_such_metric") is None


def test_a_tolerance_below_zero_is_refused() -> None:
    with pytest.raises(SettingsError, match="atol must be >= 0, got nan"):
        ElementTolerance(float("nan"))


def test_a_tolerance_says_its_unit_and_can_be_stretched() -> None:
    tolerance = ElementTolerance(0.25, 0.5, "ulp")
    assert tolerance.times(4) == ElementTolerance(1.0, 2.0, "ulp")
    words = {"absolute": "", "scaled": " max(1, |golden|)", "relative": " |golden|", "ulp": " ULP"}
    for scale, unit in words.items():
        assert str(ElementTolerance(0.25, scale=scale)) == f"|error| <= 0.25{unit}"  # type: ignore[arg-type]
    assert str(EXACT) == "|error| = 0"


@pytest.mark.parametrize(
    ("dtype", "smallest"), [("hifloat8", 2.0**-22), ("float16", 2.0**-24), ("float32", 2.0**-149)]
)
def test_an_ulp_of_zero_is_the_smallest_value(dtype: str, smallest: float) -> None:
    assert ulp(torch.zeros(1, dtype=torch.float64), dtype).item() == smallest


# Buffers of the kernel in Python: where they begin, and what is kept of them.


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 40_000, 131_072])
def test_each_buffer_begins_where_a_line_of_the_cache_does(size: int) -> None:
    buffers = Buffers(size)
    views = buffers.first(size)
    assert {view.array.ctypes.data % 64 for view in views} == {0}
    assert all(view.array.size == size for view in views)
    assert all(view.tensor.data_ptr() == view.array.ctypes.data for view in views)
    assert buffers.flags.size >= size
    assert [piece for piece, *_ in buffers.chunks(size)][-1].stop == size


def test_buffers_in_use_share_nothing() -> None:
    first, second = Buffers(100), Buffers(100)
    for number, buffers in enumerate((first, second)):
        for view in buffers.first(100):
            view.array[:] = number
    assert all(np.all(view.array == 0) for view in first.first(100))


def test_memory_is_used_again_and_one_that_is_too_small_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    spare: list[NDArray[np.uint8]] = []
    monkeypatch.setattr(single_block, "_spare", spare)
    place = Buffers(1000).first(1)[0].array.ctypes.data
    assert Buffers(500).first(1)[0].array.ctypes.data == place
    assert Buffers(5000).first(5000)[0].array.size == 5000
    assert len(spare) == 1


@pytest.mark.parametrize("rows", [2, 2 * FEW // 100])
def test_sums_and_products_of_a_buffer(rows: int) -> None:
    n = 100 * rows
    buffers = Buffers(n)
    golden, mine = buffers.first(n)[:2]
    rng = np.random.default_rng(4)
    golden.array[:], mine.array[:] = rng.standard_normal((2, n))
    g, m = golden.array.astype(float), mine.array.astype(float)
    size = np.abs(g).sum()
    assert golden.total() == pytest.approx(g.sum(), abs=1e-7 * size)
    by_row, by_channel = golden.sums(100)
    np.testing.assert_allclose(by_row, g.reshape(rows, 100).sum(1), atol=1e-5)
    np.testing.assert_allclose(by_channel, g.reshape(rows, 100).sum(0), atol=1e-7 * size)
    assert buffers.wide_dots(golden, mine) == pytest.approx((g @ m, m @ m), rel=1e-12)


def test_what_was_measured_before_does_not_show() -> None:
    """Pairs of several sizes use the same memory, with NaN and huge values left in it."""
    torch.manual_seed(2)
    large, small = torch.randn(300_000), torch.randn(20_000)
    before = measured(small, small + 0.1)
    large[::7], large[::11] = torch.nan, 1e14
    measured(large, large * 3)
    assert measured(small, small + 0.1) == before


def test_subnormal_numbers_are_flushed_within_and_no_longer() -> None:
    tiny = np.float32(1e-40)

    def kept() -> bool:
        return bool(tiny * np.float32(1) > 0)

    def fail() -> None:
        with Flushed():
            inside.append(kept())
            with Flushed():
                pass
            inside.append(kept())
            raise KeyError

    inside: list[bool] = []
    with Flushed(False):
        assert kept()
    with pytest.raises(KeyError):
        fail()
    if any(inside):
        pytest.skip("torch does not know how to flush on this processor")
    assert kept()
