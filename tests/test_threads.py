"""xdist workers share the cores, and nobody gets more threads than were asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from acc_pytest import threads


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "cores", lambda: 8)
    before = torch.get_num_threads()
    threads._set.cache_clear()
    yield
    torch.set_num_threads(before)
    threads._set.cache_clear()


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


def test_one_thread_is_given_back_after_an_error() -> None:
    torch.set_num_threads(3)
    with pytest.raises(ZeroDivisionError):
        _fail_on_one_thread()
    assert torch.get_num_threads() == 3


def _fail_on_one_thread() -> float:
    with threads.one_thread():
        return 1 / (torch.get_num_threads() - 1)
