"""xdist workers share the cores, and nobody gets more threads than were asked for."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from acc_pytest.base import threads


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(threads, "_requests", [])
    monkeypatch.setattr(threads, "_applied", [])
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("workers", "had", "has"), [("2", 8, 4), ("8", 8, 1), ("20", 8, 1), ("2", 1, 1), ("", 6, 6), ("x", 6, 6)]
)
def test_a_worker_takes_its_share_at_most(
    monkeypatch: pytest.MonkeyPatch, workers: str, had: int, has: int
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", workers)
    torch.set_num_threads(had)
    threads.share_cores()
    assert torch.get_num_threads() == has


def test_it_does_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "4")
    torch.set_num_threads(8)
    threads.share_cores()
    torch.set_num_threads(3)
    threads.share_cores()
    assert torch.get_num_threads() == 3


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize(
    ("asked", "workers", "said", "expected"),
    [
        (None, "", "", 8),
        (None, "", "3", 3),
        (None, "", "3,1", 3),
        (None, "", "x", 8),
        (None, "2", "", 4),
        (None, "2", "3", 3),
        (5, "2", "3", 5),
    ],
)
def test_before_torch_is_imported_it_is_as_many_as_torch_would_take(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, workers: str, said: str, expected: int
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", workers)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    threads.share_cores(asked)
    with threads.one_thread() as number:
        assert number == expected


def test_torch_that_is_imported_within_takes_one_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        patch.setattr(threads, "import_torch", patch.undo)
        with threads.one_thread() as number:
            threads.torch_on_one_thread()
            assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == number == 8


def test_torch_is_told_when_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        threads.share_cores(5)
    assert torch.get_num_threads() == 2
    with threads.one_thread() as number:
        assert number == 5
    assert torch.get_num_threads() == 5


def test_one_thread_is_given_back_after_an_error() -> None:
    torch.set_num_threads(3)
    with pytest.raises(ZeroDivisionError):
        _fail_on_one_thread()
    assert torch.get_num_threads() == 3


def _fail_on_one_thread() -> float:
    with threads.one_thread():
        return 1 / (torch.get_num_threads() - 1)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_results_come_in_the_order_of_their_items_and_few_are_kept(count: int) -> None:
    def square(number: int) -> int:
        time.sleep(0.0002 * (number % 3))
        return number * number

    def counted() -> Iterator[int]:
        for number in range(200):
            taken.append(number)
            assert len(taken) - len(found) <= 4 * count
            yield number

    taken: list[int] = []
    found: list[int] = []
    for result in threads.in_order(square, counted(), count):
        found.append(result)
    assert found == [number * number for number in range(200)]


@pytest.mark.parametrize("at", [0, 5, 99])
def test_an_error_of_any_thread_and_of_the_items_is_raised(at: int) -> None:
    def half(number: int) -> float:
        time.sleep(0.0002)
        return 1 / (number - at)

    def items() -> Iterator[int]:
        yield from range(at)
        raise LookupError("no item")

    with pytest.raises(ZeroDivisionError):
        list(threads.in_order(half, range(100), 3))
    with pytest.raises(LookupError, match="no item"):
        list(threads.in_order(float, items(), 3))
    assert not [one for one in threading.enumerate() if one.name.startswith("acc_measure")]


def test_who_stops_asking_stops_the_threads() -> None:
    results = threads.in_order(float, itertools.count(), 3)
    assert [next(results) for _ in range(20)] == list(range(20))
    results.close()  # type: ignore[attr-defined]
    assert not [one for one in threading.enumerate() if one.name.startswith("acc_measure")]
