"""The pieces below the kernel: sources, scaled sums, tolerances, divergence, statistics, custom metrics."""

from __future__ import annotations

import math
import os
import sys
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acc_pytest.errors import FormatError, SettingsError
from acc_pytest.judging.statistics import statistics_errors
from acc_pytest.metrics.kernel import BLOCKS, load_custom, load_customs, measure
from acc_pytest.metrics.measurement import default_tolerance
from acc_pytest.metrics.pair_sums import BLOCK
from acc_pytest.metrics.totals import (
    BlockDivergence,
    Divergence,
    _curve,
    _log1p_minus,
    as_float,
    binary_sum,
    natural_sum,
    ratio,
    root,
)
from acc_pytest.tensors.file_bytes import mapped
from acc_pytest.tensors.header import Statistics
from acc_pytest.tensors.source import TensorSource
from tests.metrics.metric_reference import measured
from tests.newer import torch_dtype

RANGE = BLOCKS * BLOCK
VIEWS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "inner transposed": lambda t: t.transpose(1, 2),
    "strided": lambda t: t[:, ::2, 1::3],
    "expanded": lambda t: t[:, :1].expand(-1, 7, -1),
    "scalar": lambda t: t[1, 2, 3],
}


@pytest.mark.parametrize("view", VIEWS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_source_reads_any_range_of_any_view(view: str, data: st.DataObject) -> None:
    tensor = VIEWS[view](torch.arange(6 * 5 * 9).reshape(6, 5, 9))
    flat = tensor.reshape(-1)
    start = data.draw(st.integers(0, flat.numel()))
    stop = data.draw(st.integers(start, flat.numel()))
    block = TensorSource(tensor).read(start, stop)
    assert block.shape == (stop - start,)
    assert torch.equal(block, flat[start:stop])


def test_a_contiguous_tensor_is_read_without_a_copy() -> None:
    tensor = torch.arange(100).reshape(10, 10)
    assert TensorSource(tensor).read(20, 30).data_ptr() == tensor[2].data_ptr()


def test_a_transposed_tensor_is_not_copied_whole() -> None:
    class Counted(torch.Tensor):
        copied = 0

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            plain: Any = super()
            result = plain.__torch_function__(func, types, args, kwargs or {})
            if func in (torch.Tensor.reshape, torch.cat) and result.data_ptr() != args[0].data_ptr():
                Counted.copied += result.numel()
            return result

    tensor = torch.zeros(1000, 1000).t().as_subclass(Counted)
    TensorSource(tensor).read(500_500, 501_500)
    assert 0 < Counted.copied <= 4000


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 5)])
def test_a_range_outside_the_tensor_is_refused(start: int, stop: int) -> None:
    with pytest.raises(IndexError, match=r"of a tensor of shape \[4\]"):
        TensorSource(torch.zeros(4)).read(start, stop)


def test_a_tensor_that_requires_grad_is_read_detached() -> None:
    assert not TensorSource(torch.ones(3, requires_grad=True)).read(0, 3).requires_grad


def test_scaled_sums_survive_what_floats_do_not() -> None:
    total = binary_sum()
    for value, exponent in ((1.0, 2000), (0.0, 9000), (1.0, 2001), (1.0, -2000)):
        total.add(value, exponent)
    assert (total.value, total.exponent, as_float(total)) == (1.5, 2001, math.inf)
    two = binary_sum()
    two.add(3.0, 2000)
    assert ratio(total, two) == 1.0
    assert as_float(root(two)) == pytest.approx(math.sqrt(3.0) * 2.0**1000)
    odd = binary_sum()
    odd.add(2.0, -2001)
    assert as_float(root(odd)) == 2.0**-1000
    logs = natural_sum()
    logs.add(1.0, 1000)
    logs.add(1.0, 1001)
    assert math.log(logs.value) + logs.exponent == pytest.approx(1001 + math.log1p(math.exp(-1)))


def test_default_tolerances_are_those_of_torch_testing() -> None:
    """Found from outside: what assert_close accepts and refuses just around rtol and atol."""
    for name in ("float16", "bfloat16", "float32", "float64"):
        dtype = getattr(torch, name)
        ours = default_tolerance(name)
        message = "Greatest absolute difference"
        with pytest.raises(AssertionError, match=message) as caught:
            torch.testing.assert_close(torch.zeros(2, dtype=dtype), torch.ones(2, dtype=dtype))
        assert f"up to {ours.rtol:g} allowed" in str(caught.value).replace("1e-03", "0.001")
        assert f"up to {ours.atol:g} allowed" in str(caught.value)


@pytest.mark.parametrize("name", ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"])
def test_default_tolerances_of_fp8_are_its_spacing_and_its_smallest_subnormal(name: str) -> None:
    dtype = torch_dtype(f"float8_{name}")
    after_one = torch.ones(1).to(dtype).view(torch.uint8) + 1
    spacing = after_one.view(dtype).item() - 1  # torch.finfo of e5m2fnuz has half of it
    tolerance = default_tolerance(f"float8_{name}")
    smallest = torch.ones(1, dtype=torch.uint8).view(dtype).item()
    assert (tolerance.rtol, tolerance.atol) == (spacing, smallest)


@pytest.mark.parametrize(
    ("name", "part"), [("complex32", "float16"), ("complex64", "float32"), ("complex128", "float64")]
)
def test_default_tolerances_of_complex_types_are_those_of_their_parts(name: str, part: str) -> None:
    assert default_tolerance(name) == default_tolerance(part)


def test_the_looser_bound_of_both_sides_counts_and_integers_are_exact() -> None:
    both = default_tolerance("float64", "float16")
    assert (both.rtol, both.atol) == (1e-3, 1e-5)
    exact = default_tolerance("int64", "bool")
    assert (exact.rtol, exact.atol) == (0.0, 0.0)


def test_divergence_without_a_block_is_undefined() -> None:
    assert Divergence().value() is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    "centers",
    [
        *((0.0, 0.0), (0.5, 0.5), (0.0, 2.0), (0.0, 50.0), (-800.0, 800.0)),
        *((0.0, 1e-4), (0.0, 2.7e-3), (2.7e-3, 0.0), (0.0, 0.06), (0.09, 0.0)),
    ],
)
def test_divergence_does_not_depend_on_centers_and_order(
    centers: tuple[float, float], order: tuple[int, int]
) -> None:
    """Two blocks of one element each, golden 0 and -1, whose d equals the centre."""
    blocks = [BlockDivergence(1.0, 0.0, 0.0, scale, scale, d) for scale, d in zip((0.0, -1.0), centers)]
    total = Divergence()
    for index in order:
        total.add(blocks[index])
    with localcontext() as context:
        context.prec = 60
        z = 1 + Decimal(-1).exp()
        p, q = 1 / z, Decimal(-1).exp() / z
        (one, other), shift = map(Decimal, centers), Decimal(max(centers))
        spread = shift + (p * (one - shift).exp() + q * (other - shift).exp()).ln()
        wanted = float(spread - p * one - q * other)
    assert total.value() == pytest.approx(wanted, rel=1e-12, abs=1e-30)


STATS = Statistics(max=1.5, min=-1.0, mean=0.0, l2norm=3.0, l1norm=4.0)


def test_statistics_errors() -> None:
    errors = statistics_errors(STATS, Statistics(max=1.0, min=-1.0, mean=1e-9, l2norm=3.3, l1norm=3.0))
    assert list(errors) == [
        f"{name}_stat_{kind}_error"
        for name in ("max", "min", "mean", "l2norm", "l1norm")
        for kind in ("absolute", "relative")
    ]
    wanted = (0.5, 0.33333334, 0.0, 0.0, 1e-9, 0.008388608, 0.3, 0.1, 1.0, 0.25)
    assert list(errors.values()) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("golden", "mine", "wanted"),
    [
        (None, 1.0, (None, None)),
        (1.0, None, (None, None)),
        (math.inf, math.inf, (0.0, 0.0)),
        (math.nan, math.nan, (0.0, 0.0)),
        (math.inf, -math.inf, (math.inf, math.inf)),
        (1.0, math.nan, (math.inf, math.inf)),
    ],
)
def test_statistics_that_are_missing_or_not_finite(
    golden: float | None, mine: float | None, wanted: tuple[float | None, float | None]
) -> None:
    errors = statistics_errors(Statistics(golden, 0, 0, 0), Statistics(mine, 0, 0, 0))
    assert (errors["max_stat_absolute_error"], errors["max_stat_relative_error"]) == wanted


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


SUM = "def total(golden, mine):\n    return (golden - mine).sum(), 'summed'\n"


def test_custom_metrics_get_flat_float32_and_land_in_the_measurement(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        SUM + "def seen(a, b):\n    return [b.dim(), f'{a.dtype} {b.dtype}']\n"
        "def text(a, b):\n    return 'fine', ''\n",
    )
    before = list(sys.path)
    metrics = load_customs([f"{path}:total", f"{path}:seen", f"{path}:text"])
    assert sys.path == before
    result = measured(torch.full((2, 4), 2).half(), torch.ones(2, 4).half(), custom=metrics)
    seen = (1.0, "torch.float32 torch.float32")
    assert result.custom == {"total": (8.0, "summed"), "seen": seen, "text": ("fine", "")}
    assert measured(torch.empty(0), torch.empty(0), custom=metrics).custom == {}


def test_equal_file_names_in_two_folders_do_not_clash(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, f"def {name}(g, m):\n    return {value}, ''\n")
    metrics = load_customs([f"{tmp_path}/a/mine.py:a", f"{tmp_path}/b/mine.py:b"])
    assert measured(torch.ones(1), torch.ones(1), custom=metrics).custom == {"a": (1.0, ""), "b": (2.0, "")}


def test_two_metrics_of_one_name_are_refused(tmp_path: Path) -> None:
    paths = [write(tmp_path, SUM, "one.py"), write(tmp_path, SUM, "two.py")]
    with pytest.raises(SettingsError, match="same name"):
        load_customs([f"{path}:total" for path in paths])


@pytest.mark.parametrize(
    ("text", "spec", "says"),
    [
        (SUM, "{}", "one colon"),
        (SUM, "{}:total:more", "one colon"),
        (SUM, ":total", "one colon"),
        (SUM, "{}x:total", "not an existing .py file"),
        (SUM, "{}.txt:total", "not an existing .py file"),
        (SUM, "{}:missing", "no function missing"),
        (
            "def one(golden):\n    return 0, ''\n",
            "{}:one",
            r"one in .* has 1 parameters; it must take exactly two, \(golden, mine\)$",
        ),
        ("def three(a, b, c):\n    return 0, ''\n", "{}:three", "has 3 parameters"),
        ("def bare(a, b):\n    return 0\n", "{}:bare", "must return a number and a message"),
        ("def no_text(a, b):\n    return 0, 1\n", "{}:no_text", "must return a number and a message"),
        ("def no_number(a, b):\n    return None, ''\n", "{}:no_number", "must return a number and a message"),
        ("def broken(:\n", "{}:broken", "cannot be imported"),
        ("import no_such_module_at_all\n", "{}:f", "cannot be imported"),
    ],
)
def test_a_bad_custom_metric_is_refused_with_the_file_and_the_fix(
    tmp_path: Path, text: str, spec: str, says: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SettingsError, match=says) as caught:
        load_custom(spec.format(path))
    assert spec.format(path) in str(caught.value)


def test_a_file_python_cannot_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acc_pytest.base.imports.spec_from_file_location", lambda *_: None)
    with pytest.raises(SettingsError, match="Python cannot import"):
        load_custom(write(tmp_path, SUM) + ":total")


def test_a_file_that_becomes_shorter_while_it_is_measured_is_named(tmp_path: Path) -> None:
    """What lies behind its end would end the process; so nothing is read of it any more."""
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(4 * (RANGE + BLOCK)))
    tensor = mapped(str(path), torch.float32, (RANGE + BLOCK,), 0)
    starts = []

    class Cut(TensorSource):
        def read(self, start: int, stop: int) -> torch.Tensor:
            starts.append(start)
            os.truncate(path, 4096)
            return torch.zeros(stop - start)

    with pytest.raises(FormatError, match=r"x\.bin: became shorter while it was read"):
        measure(Cut(tensor), TensorSource(torch.zeros(RANGE + BLOCK)))
    assert max(starts) < RANGE


@pytest.mark.parametrize("x", [-1e-3, -9.99e-4, -3e-5, 1e-9, 7e-4, 9.99e-4, 1e-3])
def test_series_near_zero_have_all_digits(x: float) -> None:
    """Against 60 digits. What the series leave out is below 3e-16 of the result at 0.001."""
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(x)
        curve, log = exact.exp() - 1 - exact, (1 + exact).ln() - exact
    few = 4e-13 if abs(x) == 1e-3 else 2e-15  # at the limit itself digits are lost
    assert _curve(x) == pytest.approx(float(curve), rel=few, abs=0)
    assert _log1p_minus(x, 0.0) == pytest.approx(float(log), rel=few, abs=0)
    both = 0.75 * x, 0.25 * x
    assert _log1p_minus(*both) == pytest.approx(float(log) + 0.25 * x, rel=1e-12, abs=0)
