"""Threads that share the stretches of a pair show in nothing but time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from acc_pytest.errors import FormatError
from acc_pytest.metrics import kernel
from acc_pytest.metrics.kernel import measure
from acc_pytest.metrics.native.library import VARIABLE
from acc_pytest.tensors.file_bytes import mapped
from acc_pytest.tensors.read_source import ReadSource, source_of
from acc_pytest.tensors.source import TensorSource
from tests.each_case import check_each
from tests.metrics.native.test_native_block import random_pair
from tests.slow import slow


@pytest.fixture(autouse=True)
def small_stretches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of 64 elements, in blocks of 8; torch's number of threads is restored."""
    monkeypatch.setattr(kernel, "BLOCK", 8)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def measured_on(threads: int, golden: torch.Tensor, mine: torch.Tensor) -> str:
    """Every digit of what is measured."""
    torch.set_num_threads(threads)
    return repr(measure(TensorSource(golden), TensorSource(mine)))


@pytest.mark.parametrize(("kernel", "seeds"), [("auto", 30), slow("python", 10)])
def test_every_digit_is_the_same_on_any_number_of_threads(
    kernel: str, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, kernel)

    def check(seed: int) -> None:
        golden, mine = random_pair(seed)
        one = measured_on(1, golden, mine)
        assert measured_on(2, golden, mine) == one
        assert measured_on(3, golden, mine) == one

    check_each(((f"seed {seed}", seed) for seed in range(seeds)), check)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.complex64], ids=str)
def test_so_are_those_of_types_that_the_native_kernel_leaves(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    golden, mine = ((100 * torch.randn(40, 30)).to(dtype) for _ in range(2))
    assert measured_on(3, golden, mine) == measured_on(1, golden, mine)


@pytest.mark.parametrize("largest", [1.0, 1e30], ids=["ordinary", "left to Python"])
def test_so_are_those_of_a_file(largest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 4096)
    torch.manual_seed(5)
    tensors = [torch.randn(300, 200) for _ in range(2)]
    tensors[0][7, 7] = largest
    for name, values in zip("gm", tensors):
        values.numpy().tofile(tmp_path / name)
    for threads in (1, 3):
        opened = [mapped(str(tmp_path / name), torch.float32, (300, 200), 0) for name in "gm"]
        sources = [source_of(tensor) for tensor in opened]
        assert all(isinstance(source, ReadSource) for source in sources)
        torch.set_num_threads(threads)
        assert repr(measure(*sources)) == measured_on(1, *tensors)


class Noting(TensorSource):
    """Notes which threads read it, and with how many threads of torch."""

    seen: set[tuple[str, int]]

    def read(self, start: int, stop: int) -> torch.Tensor:
        time.sleep(0.0001)  # so that all threads have their turn
        self.seen.add((threading.current_thread().name, torch.get_num_threads()))
        return super().read(start, stop)


def test_they_read_too_with_one_thread_of_torch_each() -> None:
    source = Noting(torch.ones(64 * 200))
    source.seen = set()
    torch.set_num_threads(3)
    assert measure(source, source).identical
    assert len(source.seen) >= 2
    assert {count for _, count in source.seen} == {1}
    assert torch.get_num_threads() == 3


def test_a_small_tensor_starts_no_thread() -> None:
    source = Noting(torch.ones(64))
    source.seen = set()
    torch.set_num_threads(3)
    assert measure(source, source).identical
    assert source.seen == {("MainThread", 1)}


def test_an_error_of_one_thread_is_that_of_the_pass() -> None:
    class Broken(TensorSource):
        def read(self, start: int, stop: int) -> torch.Tensor:
            time.sleep(0.001)  # so that all threads have their turn
            if start >= 320:
                raise FormatError("the file ends here")
            return super().read(start, stop)

    torch.set_num_threads(2)
    with pytest.raises(FormatError, match="the file ends here"):
        measure(TensorSource(torch.ones(1000)), Broken(torch.ones(1000)))
    assert not [one for one in threading.enumerate() if one.name.startswith("acc_measure")]


def test_the_first_of_several_places_is_named() -> None:
    golden, mine = torch.zeros(1000), torch.zeros(1000)
    mine[[100, 500, 900]] = 2.0
    mine[[300, 700]] = math.nan
    torch.set_num_threads(3)
    found = measure(TensorSource(golden), TensorSource(mine))
    assert found.worst is not None
    assert found.worst.index == (300,)
