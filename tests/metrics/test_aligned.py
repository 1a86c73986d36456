"""Buffers of the kernel in Python: where they begin, and what is kept of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from acc_pytest.metrics import single_block
from acc_pytest.metrics.single_block import FEW, Buffers, Flushed
from tests.metrics.metric_reference import measured


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
