"""acc_threads: how many threads measure a large tensor; what is reported stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch

from acc_pytest.base import threads
from acc_pytest.lab.demo import DemoPaths
from acc_pytest.metrics import kernel
from tests.slow import slow

from .conftest import QUICKER, Run, read_rows

SAYS_HOW_MANY = """
import torch

def test_threads(acc_compare):
    acc_compare([1.0], [1.0])
    assert torch.get_num_threads() == {}
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The number of torch's threads, which a process is given once."""
    monkeypatch.setattr(threads, "_requests", [])
    monkeypatch.setattr(threads, "_applied", [])
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """On how many threads tensors of the demo are measured, which are cut into stretches of 64 elements."""

    def noting(work: Callable[[Any], Any], items: Iterable[Any], count: int) -> Iterator[Any]:
        numbers.add(count)
        return in_order(work, items, count)

    numbers: set[int] = set()
    in_order = threads.in_order
    monkeypatch.setattr(kernel, "BLOCK", 8)
    monkeypatch.setattr(kernel, "in_order", noting)
    return numbers


def test_so_many_threads_measure_a_tensor_and_the_rows_are_the_same(
    acc: Run, clean: DemoPaths, used: set[int]
) -> None:
    some = ("-k", "logits or q_proj or RmsNorm")
    acc(clean, "-oacc_threads=1", "--acc-csv=one.csv", *some)
    assert used == {1}
    acc(clean, "-oacc_threads=3", "--acc-csv=three.csv", *some)
    assert max(used) == 3
    assert read_rows("out/one.csv") == read_rows("out/three.csv")


@pytest.mark.parametrize(
    ("option", "number"), [slow("3", "3"), ("auto", f"max(1, {len(os.sched_getaffinity(0))} // 2)")]
)
@pytest.mark.usefixtures("python_with_torch")
def test_each_worker_has_as_many(pytester: pytest.Pytester, option: str, number: str) -> None:
    pytester.makepyfile(test_it=SAYS_HOW_MANY.format(number))
    result = pytester.runpytest_subprocess("-n2", f"-oacc_threads={option}", *QUICKER)
    result.assert_outcomes(passed=1)


def test_the_ini_file_may_say_so(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nacc_threads = 5\n")
    pytester.makepyfile(test_it=SAYS_HOW_MANY.format(5))
    pytester.runpytest_inprocess(*QUICKER).assert_outcomes(passed=1)


@pytest.mark.parametrize("word", ["0", "-1", "two", "1000", "1.5"])
def test_what_is_no_number_of_threads_is_refused(acc: Run, clean: DemoPaths, word: str) -> None:
    result = acc(clean, f"-oacc_threads={word}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = f"*acc_threads must be auto or a whole number from 1 to 999, got {word}*"
    result.stderr.fnmatch_lines([said])
