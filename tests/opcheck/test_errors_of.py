"""ULPs and errors against definitions written down anew: nextafter, NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.metrics.ulp import ulp
from acc_pytest.opcheck.errors_of import BLOCK, ElementRule, errors_of
from acc_pytest.tensors import hifloat8

HALF = st.floats(-100, 100, width=16)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float8_e5m2, torch.float8_e4m3fn]


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
    size = ulp(here, "hifloat8")
    # a coarser range begins at a power of two, so the step there may be that of either side
    assert bool(
        ((following - here == size) | (following - here == 2 * size) | (2 * (following - here) == size)).all()
    )


@given(
    st.lists(st.tuples(HALF, HALF), min_size=1, max_size=40),
    st.sampled_from(["absolute", "scaled", "relative"]),
    st.sampled_from([0.0, 2.0**-9, 0.5]),
)
def test_measured_is_what_numpy_says(pairs: list[tuple[float, float]], scale: str, bound: float) -> None:
    golden, mine = (torch.tensor(side, dtype=torch.float16) for side in zip(*pairs))
    rule = ElementRule(bound, scale)  # type: ignore[arg-type]
    errors = errors_of(golden, mine, rule, "float16")
    g, y = golden.double().numpy(), mine.double().numpy()
    d = np.abs(y - g)
    allowed = {
        "absolute": np.full_like(g, bound),
        "scaled": bound * np.maximum(1, np.abs(g)),
        "relative": bound * np.where(np.abs(g) > 2.0**-23, np.abs(g), 1.0),
    }[scale]
    assert errors.beyond == int((d > allowed).sum())
    assert errors.max_absolute == d.max()
    assert errors.max_scaled == pytest.approx((d / np.maximum(1, np.abs(g))).max(), rel=1e-12)
    assert errors.max_relative == pytest.approx((d / (np.abs(g) + 1e-7)).max(), rel=1e-12)
    assert errors.mean_relative == pytest.approx((d / (np.abs(g) + 1e-7)).mean(), rel=1e-9, abs=1e-300)
    assert errors.rmse == pytest.approx(np.sqrt((d**2).mean()), rel=1e-9, abs=1e-300)
    assert sum(errors.histogram.values()) == len(pairs)


def test_nan_has_to_be_in_the_same_places() -> None:
    golden = torch.tensor([1.0, torch.nan, torch.inf, 2.0, torch.inf])
    mine = torch.tensor([1.0, torch.nan, torch.inf, torch.nan, -torch.inf])
    errors = errors_of(golden, mine, ElementRule(1.0), "float32")
    assert (errors.beyond, errors.nonfinite, errors.worst) == (2, 2, 3)
    assert errors.max_absolute == 0.0


def test_integers_that_are_one_double_still_differ() -> None:
    golden = torch.tensor([2**60, 5])
    mine = torch.tensor([2**60 + 1, 5])
    assert errors_of(golden, mine, ElementRule(0.0, "absolute"), "int64").beyond == 1


def test_the_worst_element_and_the_box_are_right_across_blocks() -> None:
    golden = torch.zeros(3, BLOCK)
    mine = golden.clone()
    mine[1, 7], mine[2, 9] = 1.0, 2.0
    errors = errors_of(golden, mine, ElementRule(0.5), "float32")
    assert errors.worst == 2 * BLOCK + 9
    assert errors.box == "[1:3, 7:10]"
    assert errors.rate == pytest.approx(100 * (1 - 2 / golden.numel()))


def test_nothing_to_compare_passes() -> None:
    empty = torch.empty(0, 4)
    errors = errors_of(empty, empty, ElementRule(0.0), "float32")
    assert (errors.beyond, errors.worst, errors.rate) == (0, None, 100.0)


def test_bool_and_complex_are_compared() -> None:
    flags = errors_of(torch.tensor([True, False]), torch.tensor([True, True]), ElementRule(0.0), "bool")
    assert (flags.beyond, flags.worst) == (1, 1)
    golden = torch.tensor([1 + 1j, 2.0, complex("nan")])
    plane = errors_of(golden, golden + torch.tensor([0, 3j, 0]), ElementRule(0.0, "absolute"), "complex64")
    assert (plane.beyond, plane.worst, plane.max_absolute) == (1, 1, 3.0)
