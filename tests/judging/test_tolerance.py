"""T: its value per dtype and depth, its cap, and that real rounding stays within its parts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acc_pytest.judging.tolerance import CAP, tolerance
from acc_pytest.tensors.dtypes import by_name

FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize(
    ("dtype", "depth", "expected"),
    [
        ("float16", 0, 8 * 2**-11),
        ("float16", 3, 16 * 2**-11),
        ("bfloat16", 0, 8 * 2**-8),
        ("float32", 0, 8 * 2**-24),
        ("float64", 0, 8 * 2**-53),
    ],
)
def test_without_sums_t_is_eight_roundings_of_the_format_per_layer(
    dtype: str, depth: int, expected: float
) -> None:
    # One accumulated term counts one rounding of the accumulator: 2^-24, or 2^-53 for float64.
    accumulator = 2.0**-53 if dtype == "float64" else 2.0**-24
    value = tolerance(dtype, dtype, depth, 1).value
    assert value == pytest.approx(expected + 8 * accumulator * math.sqrt(1 + depth), rel=1e-12)


def test_the_coarser_side_decides_whichever_side_it_is_on() -> None:
    wide = tolerance("float32", "bfloat16", 2, 64)
    assert wide == tolerance("bfloat16", "float32", 2, 64)
    assert wide.format.name == "bfloat16"


def test_an_integer_side_counts_as_exact() -> None:
    assert tolerance("int8", "float16", 0, 1).format.name == "float16"


def test_two_exact_sides_have_no_tolerance() -> None:
    with pytest.raises(ValueError, match="must be a float dtype, got int32 and bool"):
        tolerance("int32", "bool", 0, 1)


def test_complex_is_judged_like_its_components() -> None:
    assert tolerance("complex64", "complex64", 1, 8).value == tolerance("float32", "float32", 1, 8).value


@given(st.sampled_from(FLOATS), st.integers(0, 200), st.integers(1, 10**6))
def test_t_never_shrinks_with_depth_or_length_and_never_exceeds_the_cap(
    dtype: str, depth: int, length: int
) -> None:
    here = tolerance(dtype, dtype, depth, length).value
    assert 0 < here <= tolerance(dtype, dtype, depth + 1, length).value <= CAP
    assert here <= tolerance(dtype, dtype, depth, 2 * length).value


def test_fp8_is_capped_and_says_so() -> None:
    assert tolerance("float8_e5m2", "float16", 0, 1).value == CAP
    assert "capped at 0.25" in tolerance("float8_e5m2", "float16", 0, 1).reason


def test_an_unknown_length_is_taken_as_a_typical_hidden_width() -> None:
    assert tolerance("float32", "float32", 0, None) == tolerance("float32", "float32", 0, 4096)


def test_the_reason_names_format_length_depth_and_factor() -> None:
    reason = tolerance("float16", "float32", 1, 64, None, 4.0, "moe.toml [[threshold]] 1").reason
    for part in ("2^-11 of float16", "64 terms", "1 layer before", "factor 4 from moe.toml [[threshold]] 1"):
        assert part in reason


def test_the_rounding_of_what_it_was_computed_from_is_still_there() -> None:
    coarse = tolerance("float32", "float32", 0, 1, computed_in="bfloat16")
    assert coarse.value == tolerance("bfloat16", "bfloat16", 0, 1).value
    assert "u = 2^-8 of bfloat16, which it was computed from, sums" in coarse.reason
    assert tolerance("bfloat16", "float32", 0, 1, computed_in="float16") == tolerance(
        "bfloat16", "float32", 0, 1
    )


def test_few_tokens_get_room_for_how_they_differ_and_say_so() -> None:
    many = tolerance("float16", "float16", 0, 64)
    one, eight = (tolerance("float16", "float16", 0, 64, rows=rows) for rows in (1, 8))
    assert one.value == 2 * many.value
    assert eight.value == pytest.approx(many.value * 2 ** (1 / math.sqrt(8)))
    assert one.rounding == many.rounding
    assert "2 for the spread of only 1 row" in one.reason
    assert "1.28 for the spread of only 8 rows" in eight.reason
    assert tolerance("float16", "float16", 0, 64, rows=5000) == many


def test_small_tensors_get_room_for_their_scatter_and_say_so() -> None:
    large = tolerance("float16", "float16", 0, 64)
    small = tolerance("float16", "float16", 0, 64, elements=36)
    assert small.value == pytest.approx(large.value * math.exp(3.72 / 6))
    assert "1.86 for the scatter of only 36 elements" in small.reason
    # 3.72 / sqrt(n) of 140,000 elements is ln 1.01: up to there it is worth saying
    assert tolerance("float16", "float16", 0, 64, elements=139_000).value > large.value
    assert tolerance("float16", "float16", 0, 64, elements=140_000) == large


@pytest.mark.parametrize("elements", [16, 36, 128, 1024])
def test_the_scatter_covers_all_but_one_in_a_thousand_tensors_of_plain_noise(elements: int) -> None:
    # 3.72 sigma is one in 10,000 where the logarithm is normal; for few elements its tail is heavier.
    generator = torch.Generator().manual_seed(elements)
    golden = torch.randn(20_000, elements, generator=generator)
    noise = torch.randn(20_000, elements, generator=generator)
    ratio = noise.norm(dim=1) / golden.norm(dim=1)
    room = (
        tolerance("float16", "float16", 0, 64, elements=elements).value
        / tolerance("float16", "float16", 0, 64).value
    )
    assert (ratio > room).float().mean() <= 1e-3


def test_below_the_normal_range_the_spacing_replaces_the_roundoff() -> None:
    # rms = 2^-20 is 16 spacings of 2^-24: rounding may change it by half a spacing, 2^-5 of it. T caps.
    deep = tolerance("float16", "float16", 0, 1, 2.0**-20)
    assert deep.value == CAP  # 8 * (2^-5 + 2^-24) is more
    assert "u = 0.031, the spacing of subnormal float16 against rms 9.5e-07, sums" in deep.reason
    shallow = tolerance("float16", "float16", 0, 1, 2.0**-16)
    assert shallow.value == pytest.approx(8 * (2.0**-9 + 2.0**-24), rel=1e-12)
    at_the_edge = tolerance("float16", "float16", 0, 1, 2.0**-14)
    assert at_the_edge.value == tolerance("float16", "float16", 0, 1).value


@pytest.mark.parametrize("dtype", [d for d in FLOATS if hasattr(torch, d)])
def test_formats_agree_with_torch(dtype: str) -> None:
    info, found = torch.finfo(getattr(torch, dtype)), by_name(dtype).format
    assert found is not None
    assert found.roundoff == info.eps / 2
    assert found.smallest_normal == info.tiny
    # torch and IEEE agree: the smallest subnormal is the spacing below the normal range.
    assert found.spacing == pytest.approx(info.tiny * info.eps, rel=0, abs=0)


def test_accumulating_k_terms_in_float32_stays_within_sqrt_k_roundings() -> None:
    generator = torch.Generator().manual_seed(7)
    a = torch.randn(64, 4096, generator=generator)
    b = torch.randn(4096, generator=generator)
    running = torch.zeros(64)
    for k in range(4096):  # one rounding per term, the slowest order a kernel can choose
        running = running + a[:, k] * b[k]
    right = a.double() @ b.double()
    error = (running.double() - right).norm() / right.norm()
    assert 0 < error <= math.sqrt(4096) * 2.0**-24


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_stored_results_stay_within_t_of_one_layer(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    golden = torch.randn(64, 64, generator=generator, dtype=torch.float64)
    mine = golden.to(dtype)
    for _ in range(16):
        rotation = torch.linalg.qr(torch.randn(64, 64, generator=generator, dtype=torch.float64))[0]
        golden = golden @ rotation
        mine = (mine.double() @ rotation).to(dtype)
    error = ((mine.double() - golden).norm() / golden.norm()).item()
    t = tolerance(str(dtype).removeprefix("torch."), "float64", 0, 64).value
    assert t / 20 < error < t
