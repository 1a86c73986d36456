"""Every cell of the truth table in docs/metrics.md."""

from __future__ import annotations

import math
import pickle
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.errors import Incomparable, SettingsError
from acc_pytest.metrics import kernel
from acc_pytest.metrics.kernel import CustomMetric, measure
from acc_pytest.metrics.measurement import ElementTolerance, Measurement, Moments, NonFinite
from acc_pytest.tensors.source import TensorSource
from tests.metrics.metric_reference import SEVEN, close, measured, reference, worst_of
from tests.newer import torch_dtype, torch_dtypes

NAN, INF = math.nan, math.inf
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
FP8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


def metrics(result: Measurement) -> dict[str, float | None]:
    return {name: getattr(result, name) for name in SEVEN}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_common_nonfinite_value_is_counted_and_left_out(dtype: torch.dtype, value: float) -> None:
    golden = torch.tensor([1, value, 3, 4], dtype=dtype)
    mine = torch.tensor([1, value, 3, 4.5], dtype=dtype)
    result = measured(golden, mine)
    rest = measured(golden[[0, 2, 3]], mine[[0, 2, 3]])
    assert metrics(result) == pytest.approx(metrics(rest), rel=1e-6)
    counts = result.nonfinite
    assert (counts.common_nan, counts.common_inf) == ((1, 0) if math.isnan(value) else (0, 1))
    assert (counts.golden_nan, counts.mine_nan) == (counts.common_nan,) * 2
    assert (counts.golden_inf, counts.mine_inf) == (counts.common_inf,) * 2
    assert counts.disagreeing == 0
    assert (result.compared, result.numel, result.beyond_tolerance, worst_of(result).flat_index) == (
        3,
        4,
        1,
        3,
    )
    assert (result.golden_max, result.golden_min, result.mine_max) == (4, 1, 4.5)
    assert result.golden_mean == pytest.approx(8 / 3, rel=1e-7)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("golden", "mine", "kind"),
    [
        (2.0, NAN, "new"),
        (2.0, INF, "new"),
        (NAN, 2.0, "lost"),
        (-INF, 2.0, "lost"),
        (NAN, INF, "changed"),
        (INF, NAN, "changed"),
        (INF, -INF, "changed"),
    ],
)
def test_a_disagreement_about_finiteness_is_the_worst_element(
    dtype: torch.dtype, golden: float, mine: float, kind: str
) -> None:
    result = measured(torch.tensor([1, golden, 3], dtype=dtype), torch.tensor([9, mine, 3], dtype=dtype))
    assert {name: getattr(result.nonfinite, name) for name in ("new", "lost", "changed")} == {
        "new": 0,
        "lost": 0,
        "changed": 0,
        kind: 1,
    }
    assert worst_of(result).index == (1,)
    assert repr((worst_of(result).golden, worst_of(result).mine)) == repr((golden, mine))
    assert (result.max_absolute_error, result.beyond_tolerance, result.compared) == (8.0, 2, 2)
    assert not result.identical


def test_nothing_finite_in_common() -> None:
    result = measured(torch.tensor([NAN, 1.0]), torch.tensor([2.0, INF]))
    assert (result.compared, result.empty) == (0, False)
    assert set(metrics(result).values()) == {None}
    assert (result.mean_error, result.golden_rms, result.golden_max_abs) == (None, None, None)
    assert (result.golden_max, result.mine_mean) == (1.0, 2.0)
    assert (result.beyond_tolerance, result.beyond_fraction) == (2, 1.0)


def test_all_nan_has_no_extrema() -> None:
    result = measured(torch.full((3,), NAN), torch.full((3,), NAN))
    assert (result.golden_max, result.golden_min, result.golden_mean) == (None, None, None)
    assert (result.nonfinite.common_nan, result.beyond_tolerance) == (3, 0)
    assert result.identical  # the same bits


def test_the_first_disagreement_in_a_later_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 8)
    golden = torch.arange(40, dtype=torch.float32).reshape(5, 8)
    mine = golden.clone()
    mine[0, 1], mine[2, 3], mine[4, 0] = 99, NAN, NAN
    result = measured(golden, mine)
    assert (worst_of(result).flat_index, worst_of(result).index) == (19, (2, 3))
    assert (result.nonfinite.new, result.max_absolute_error, result.compared) == (2, 98.0, 38)


@pytest.mark.parametrize("block", [1, 2, 8])
def test_values_that_are_not_finite_are_counted_over_all_blocks(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "BLOCK", block)
    golden = torch.tensor([INF, NAN, INF, NAN, 1.0, NAN, -INF, 1.0])
    mine = torch.tensor([INF, NAN, 1.0, 1.0, INF, INF, INF, 1.0])
    assert measured(golden, mine).nonfinite == NonFinite(
        golden_nan=3,
        golden_inf=3,
        mine_nan=1,
        mine_inf=4,
        common_nan=1,
        common_inf=1,
        new=1,
        lost=2,
        changed=2,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("block", [1, 8])
def test_moments_are_the_sums(dtype: torch.dtype, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", block)
    golden, mine = torch.tensor([1.0, 2.0, 4.0], dtype=dtype), torch.tensor([1.5, 2.0, 3.0], dtype=dtype)
    assert measured(golden, mine).moments == Moments(
        golden=7.0,
        mine=6.5,
        difference=-0.5,
        golden_squared=21.0,
        mine_squared=15.25,
        golden_times_mine=17.5,
        golden_times_difference=-3.5,
        difference_squared=1.25,
        absolute_difference=1.5,
        relative_error=0.75,
    )


def test_means_of_values_whose_squares_leave_float64() -> None:
    golden, mine = (torch.tensor(side, dtype=torch.float64) for side in ([1e200, 1e200], [3e200, 1e200]))
    result = measured(golden, mine)
    assert (result.mean_error, result.mean_absolute_error) == (pytest.approx(1e200), pytest.approx(1e200))
    assert (result.golden_mean, result.mine_mean) == (pytest.approx(1e200), pytest.approx(2e200))
    assert result.golden_rms == pytest.approx(1e200)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zeros(dtype: torch.dtype) -> None:
    zero, some = torch.zeros(4, dtype=dtype), torch.tensor([0, 1, 2, 2], dtype=dtype)
    golden_zero = measured(zero, some)
    assert (golden_zero.cosine_similarity, golden_zero.relative_euclidean_distance) == (0.0, 0.0)
    assert (golden_zero.max_relative_error, golden_zero.near_zero) == (0.0, 4)
    assert (golden_zero.max_absolute_error, golden_zero.mean_absolute_error) == (2.0, 1.25)
    mine_zero = measured(some, zero)
    assert (mine_zero.cosine_similarity, mine_zero.relative_euclidean_distance) == (0.0, 1.0)
    assert (mine_zero.max_relative_error, mine_zero.mean_relative_error) == (1.0, 0.75)
    both = measured(zero, -zero)
    assert metrics(both) == dict(zip(SEVEN, (1.0, 0, 0, 0, 0, 0, 0)))
    assert not both.identical  # -0.0 has other bits


def test_near_zero_follows_the_magnitude_of_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 2)
    small = [2e-8, 0.0, 4e-8, 1e-9]
    golden, mine = torch.tensor(small), torch.tensor([3e-8, 1.0, 8e-8, 1e-9])
    tiny = measured(golden, mine)
    assert tiny.near_zero == 1
    assert close(tiny.max_relative_error, 1.0)
    assert close(tiny.mean_relative_error, 1.5 / 4)
    mixed = measured(torch.tensor([*small, 2.0]), torch.tensor([3e-8, 1.0, 8e-8, 1e-9, 3.0]))
    assert (mixed.near_zero, mixed.max_relative_error, mixed.mean_relative_error) == (4, 0.5, 0.1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_constants(dtype: torch.dtype) -> None:
    result = measured(torch.full((9,), 2.0, dtype=dtype), torch.full((9,), 3.0, dtype=dtype))
    assert metrics(result) == dict(zip(SEVEN, (1.0, 0.5, 0.5, 1.0, 1.0, 0.0, 0.5)))
    assert result.mean_error == 1.0
    opposite = measured(torch.full((9,), 2.0, dtype=dtype), torch.full((9,), -2.0, dtype=dtype))
    assert (opposite.cosine_similarity, opposite.kl_divergence) == (-1.0, 0.0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.bool, torch.complex64], ids=str)
def test_scalars(dtype: torch.dtype) -> None:
    result = measured(torch.tensor(1, dtype=dtype), torch.tensor(0, dtype=dtype))
    assert (result.shape, result.numel, worst_of(result).index, result.max_absolute_error) == ((), 1, (), 1.0)

    assert result.kl_divergence == (None if dtype.is_complex else 0.0)


@pytest.mark.parametrize(
    ("golden", "mine"),
    [([1e-11, 2e-11], [1e-11, 2.001e-11]), ([1e-8, 1e-30], [1e-8, 1e14]), ([1e18, 1.0], [1.5e18, 1.0])],
    ids=["tiny difference", "huge relative error", "huge values"],
)
def test_float32_values_at_the_ends_of_the_range(golden: list[float], mine: list[float]) -> None:
    sides = torch.tensor(golden), torch.tensor(mine)
    result, wanted = measured(*sides), reference(*sides)
    assert all(close(getattr(result, name), wanted[name]) for name in wanted if name != "kl_divergence")


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_empty(dtype: torch.dtype) -> None:
    result = measured(torch.empty(0, 3, dtype=dtype), torch.empty(0, 3, dtype=dtype))
    assert result.empty
    assert result.identical
    assert set(metrics(result).values()) == {None}
    assert (result.beyond_tolerance, result.beyond_fraction, result.worst) == (0, None, None)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_signed_integers_at_both_ends(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    result = measured(
        torch.tensor([low, high, 5, 0], dtype=dtype), torch.tensor([high, high, 5, 1], dtype=dtype)
    )
    assert (result.mismatches, result.beyond_tolerance, result.near_zero) == (2, 2, 1)
    assert result.max_absolute_error == float(high - low)
    assert (worst_of(result).golden, worst_of(result).mine, result.golden_min) == (low, high, float(low))


@pytest.mark.parametrize("name", UNSIGNED)
def test_unsigned_integers_at_both_ends(name: str) -> None:
    high = int(np.iinfo(name).max)
    golden = torch.tensor([0, high, high, 7], dtype=torch_dtype(name))
    mine = torch.tensor([high, 0, high - 1, 7], dtype=torch_dtype(name))
    result = measured(golden, mine)
    assert (result.mismatches, result.max_absolute_error, result.golden_max) == (3, float(high), float(high))
    assert (worst_of(result).golden, worst_of(result).mine, type(worst_of(result).mine)) == (0, high, int)
    assert measured(golden, golden.clone()).identical


@pytest.mark.parametrize("dtype", torch_dtypes("int64", "uint64"), ids=str)
def test_neighbouring_large_integers_differ_by_one(dtype: torch.dtype) -> None:
    golden = torch.tensor([2**62, 2**62 + 1]).to(dtype)
    mine = torch.tensor([2**62 + 1, 2**62 + 1]).to(dtype)
    result = measured(golden, mine)
    assert (result.mismatches, result.max_absolute_error, result.mean_absolute_error) == (1, 1.0, 0.5)
    assert result.max_relative_error == 2.0**-62


def test_a_large_integer_against_the_nearest_float() -> None:
    result = measured(torch.tensor([2**53 + 1]), torch.tensor([2.0**53], dtype=torch.float64))
    assert (result.max_absolute_error, result.mismatches) == (1.0, None)


def test_bool() -> None:
    result = measured(torch.tensor([True, True, False, False]), torch.tensor([True, False, False, True]))
    assert (result.mismatches, result.max_absolute_error, result.mean_absolute_error) == (2, 1.0, 0.5)
    assert (result.golden_mean, result.golden_max, result.golden_min) == (0.5, 1.0, 0.0)
    assert (worst_of(result).index, worst_of(result).golden, worst_of(result).mine) == ((1,), True, False)


@pytest.mark.parametrize("name", FP8)
def test_fp8(name: str) -> None:
    dtype = torch_dtype(name)
    golden = torch.tensor([1.0, -2.0, 0.5, 0.0]).to(dtype)
    mine = torch.tensor([1.25, -2.0, 0.5, 0.25]).to(dtype)
    result = measured(golden, mine)
    wanted = reference(golden.float(), mine.float())
    assert all(close(getattr(result, metric), wanted[metric]) for metric in wanted)
    assert (worst_of(result).golden, worst_of(result).mine, result.mismatches) == (1.0, 1.25, None)
    with_nan = measured(golden, torch.tensor([NAN, -2.0, 0.5, 0.0]).to(dtype))
    assert with_nan.nonfinite.new == 1


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_complex(dtype: torch.dtype) -> None:
    golden = torch.tensor([3 + 4j, 1 + 0j, 0j]).to(dtype)
    mine = torch.tensor([3 + 4j, 0 + 1j, 2 + 0j]).to(dtype)
    result = measured(golden, mine)
    assert close(result.max_absolute_error, 2.0)
    assert close(result.mean_absolute_error, (2**0.5 + 2) / 3)
    assert close(result.max_relative_error, 2**0.5)
    assert close(result.cosine_similarity, 25 / (26**0.5 * 30**0.5))
    assert close(result.relative_euclidean_distance, (6 / 26) ** 0.5)
    assert close(result.golden_rms, (26 / 3) ** 0.5)
    assert (result.golden_max_abs, result.near_zero, worst_of(result).mine) == (5.0, 1, 2 + 0j)
    assert (result.kl_divergence, result.mean_error, result.golden_max, result.golden_mean) == (None,) * 4
    mixed = measured(golden, torch.tensor([3.0, 1.0, 0.0]))
    assert (mixed.max_absolute_error, mixed.mismatches) == (4.0, None)


def test_complex_nonfinite_values() -> None:
    golden = torch.tensor([complex(NAN, 0), complex(INF, 0), complex(INF, 1), 1 + 1j])
    mine = torch.tensor([complex(0, NAN), complex(INF, 0), complex(INF, 2), complex(1, INF)])
    counts = measured(golden, mine).nonfinite
    assert (counts.common_nan, counts.common_inf, counts.changed, counts.new) == (1, 1, 1, 1)


def test_conjugate_and_negative_views_are_read_as_values() -> None:
    golden = torch.tensor([1 + 2j, 3 - 1j])
    assert measured(golden.conj(), golden.conj().resolve_conj()).identical
    assert measured(golden.conj().imag, torch.tensor([-2.0, 1.0])).max_absolute_error == 0.0


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "quint8"])
def test_types_that_are_no_numbers_are_incomparable(name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")

    class Declared:
        shape = (4,)
        dtype = getattr(torch, name)

        def read(self, start: int, stop: int) -> torch.Tensor:
            raise AssertionError("nothing is read")

    with pytest.raises(Incomparable, match=f"mine is torch.{name}"):
        measure(TensorSource(torch.zeros(4)), Declared())


def test_the_difference_of_the_largest_float64_is_infinite() -> None:
    result = measured(*(torch.tensor([sign * 1.7e308, 1.0], dtype=torch.float64) for sign in (1, -1)))
    assert (result.max_absolute_error, result.mean_absolute_error, result.kl_divergence) == (INF, INF, None)
    assert close(result.cosine_similarity, -1.0)


def test_kl_where_mine_puts_nothing_is_huge_not_infinite() -> None:
    golden, mine = (
        torch.tensor([1000.0, 0.0], dtype=torch.float64),
        torch.tensor([0.0, 1000.0], dtype=torch.float64),
    )
    assert measured(golden, mine).kl_divergence == pytest.approx(1000.0, rel=1e-12)
    far = measured(torch.tensor([1e5, 0.0]), torch.tensor([-1e5, 1e5]))
    assert far.kl_divergence == pytest.approx(2e5, rel=1e-9)


def test_tolerances() -> None:
    golden = torch.tensor([1.0, 2.0, 4.0])
    mine = golden + torch.tensor([0.25, 0.25, 1.0])
    assert measured(golden, mine, tolerance=ElementTolerance(0.25)).beyond_tolerance == 1
    assert measured(golden, mine, tolerance=ElementTolerance(0.0, 0.125)).beyond_tolerance == 2
    assert measured(golden, mine, tolerance=ElementTolerance(0.0, 0.25)).beyond_tolerance == 0
    # an error below the tolerance of one element may be beyond that of another
    assert measured(torch.tensor([100.0, 0.0]), torch.tensor([100.0, 5e-5])).beyond_tolerance == 1
    assert measured(golden, mine).rtol == 1.3e-6
    assert measured(golden.half(), mine).beyond_tolerance == 3
    with pytest.raises(SettingsError, match="rtol must be >= 0, got -1"):
        ElementTolerance(0.0, -1)


def builtins_only(value: object) -> bool:
    if is_dataclass(value) and not isinstance(value, type):
        return all(builtins_only(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, (tuple, list)):
        return all(builtins_only(item) for item in value)
    if isinstance(value, dict):
        return all(builtins_only(item) for item in (*value, *value.values()))
    return value is None or type(value) in (bool, int, float, complex, str)


@pytest.mark.parametrize(
    "dtype", [*FLOATS, torch.bool, torch.int64, torch.complex64, torch.float8_e5m2], ids=str
)
def test_only_builtin_scalars_leave_the_kernel(dtype: torch.dtype) -> None:
    result = measured(torch.ones(3).to(dtype), torch.zeros(3).to(dtype))
    assert builtins_only(result)
    assert pickle.loads(pickle.dumps(result)) == result


def same_value(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))


WIDE = st.floats(width=64)
PAIRS = st.lists(st.tuples(WIDE, WIDE), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(pairs=PAIRS, dtype=st.sampled_from(FLOATS), block=st.integers(1, 45))
def test_any_floats_at_all(pairs: list[tuple[float, float]], dtype: torch.dtype, block: int) -> None:
    """Counts are right, metrics are in range and never NaN, whatever the values and the block size."""
    golden, mine = (torch.tensor(side, dtype=torch.float64).to(dtype) for side in zip(*pairs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "BLOCK", block)
        result = measured(golden, mine)
    gs, ms = golden.double().tolist(), mine.double().tolist()
    finite = [(g, m) for g, m in zip(gs, ms) if math.isfinite(g) and math.isfinite(m)]
    agreeing = sum(not math.isfinite(g) and same_value(g, m) for g, m in zip(gs, ms))
    counts = result.nonfinite
    assert result.compared == len(finite)
    assert counts.common_nan + counts.common_inf == agreeing
    assert counts.disagreeing == len(gs) - len(finite) - agreeing
    assert not any(isinstance(value, float) and math.isnan(value) for value in metrics(result).values())
    if finite:
        # The worst element is chosen by differences rounded to float32 (2^-24 each), then taken exactly: it
        # may be the second worst by that much.
        largest = max(abs(m - g) for g, m in finite)
        found: dict[str, Any] = metrics(result)
        assert largest * (1 - 2**-23) <= found["max_absolute_error"] <= largest
        assert -1 <= found["cosine_similarity"] <= 1
        assert 0 <= found["mean_absolute_error"] <= found["max_absolute_error"] * (1 + 1e-6)
        assert 0 <= found["mean_relative_error"] <= found["max_relative_error"] * (1 + 1e-6)
        assert result.kl_divergence is None or result.kl_divergence >= 0
        assert result.golden_max_abs == max(abs(g) for g, _ in finite)


ORDINARY = st.floats(-100, 100, width=32).map(lambda x: x if abs(x) > 1e-3 else 0.0)


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(ORDINARY, ORDINARY), min_size=1, max_size=40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    block=st.integers(1, 45),
)
def test_ordinary_floats_agree_with_the_definitions(
    pairs: list[tuple[float, float]], dtype: torch.dtype, block: int
) -> None:
    golden, mine = (torch.tensor(side, dtype=dtype) for side in zip(*pairs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "BLOCK", block)
        result = measured(golden, mine)
    for name, wanted in reference(golden, mine).items():
        # A cosine or a KL that cancels to nearly nothing has no digits to keep: absolute there.
        floor = {"cosine_similarity": 1e-6, "kl_divergence": 1e-12}.get(name, 0.0)
        assert getattr(result, name) == pytest.approx(wanted, rel=1e-6, abs=floor), name


def test_large_integers_keep_their_digits_beside_a_nan() -> None:
    golden, mine = torch.tensor([2**40 + 3, 1]), torch.tensor([2.0**40, NAN], dtype=torch.float64)
    result = measured(golden, mine)
    assert (result.max_absolute_error, result.mean_absolute_error, result.compared) == (3.0, 3.0, 1)


def test_metrics_have_values_by_name() -> None:
    golden = torch.tensor([1.0, INF, NAN, 1.0, INF])
    mine = torch.tensor([1.0, NAN, 1.0, INF, 1.0])
    custom = (
        CustomMetric("count", "x", lambda g, m: (5, "")),
        CustomMetric("text", "x", lambda g, m: ("a", "")),
    )
    result = measured(golden, mine, custom=custom)
    names = ("new_nonfinite", "lost_nonfinite", "nonfinite_mismatch", "max_absolute_error", "count")
    assert [result.value(name) for name in names] == [2.0, 2.0, 4.0, 0.0, 5.0]
    assert [result.value(name) for name in ("text", "mismatches", "no_such_metric")] == [None] * 3
