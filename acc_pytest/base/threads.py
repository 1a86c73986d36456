"""The number of threads here: torch's own, which every pass over a large tensor takes too.

What a process asks for before torch is imported is kept, and torch is told when both are there.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

from .imports import import_torch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def one_thread() -> Iterator[int]:
    """Set torch's thread count to 1 and restore it at the end, also after an error; gives what it was.

    For blocks and tensors so small that waiting for other threads costs more than they do (on two
    cores with other work beside it, two threads were measured up to sixty times slower than one),
    and for sums that must be the same on every machine.
    """
    torch = _torch()
    before = _threads_without_torch() if torch is None else torch.get_num_threads()
    if torch is not None:
        torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch = _torch()  # it may have been imported meanwhile
        if torch is not None:
            torch.set_num_threads(before)


_FEW = 1 << 22
"""Elements of tensors that one thread is done with in about 10 ms: others cost processor time, and more of it
where the cores are shared, for little."""


def threads_for(elements: int) -> AbstractContextManager[object]:
    """Inside, torch has one thread for an operator of few elements, all weights counted, else all of them."""
    return one_thread() if elements <= _FEW else nullcontext()


def torch_on_one_thread() -> None:
    """Import torch within `one_thread`, for which it takes one thread too."""
    if "torch" not in sys.modules:
        import_torch()
        _torch().set_num_threads(1)


_WAITING = 4
"""Items for each thread that are taken and whose results nobody has asked for, so that memory is bounded."""


def in_order(work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int) -> Iterator[_Result]:
    """`work` of each item, in the order of the items, by so many threads at once.

    They end with this call: none is left that a forked process would miss. An error in any of them is raised
    here.
    """
    if threads < 2:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(threads, "acc_measure")
    pending: deque[Future[_Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) == _WAITING * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def share_cores(threads: int | None = None) -> None:
    """Give this process so many threads; `None`: in an xdist worker its share of the cores.

    Torch would start one thread per core in each worker. A share leaves fewer fewer (`OMP_NUM_THREADS`).
    Once in a process, so that a test may choose otherwise for itself.
    """
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "")
    count = None
    if threads is not None:
        count = _ThreadCount(threads, at_most=False)
    elif workers.isdigit():
        count = _ThreadCount(max(1, cores() // int(workers)), at_most=True)
    if count is not None and count not in _requests:
        _requests.append(count)
    _torch()


def cores() -> int:
    """The processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _ThreadCount(NamedTuple):
    """A number of threads that was asked for, `at_most` so many as there are."""

    threads: int
    at_most: bool

    def of(self, number: int) -> int:
        """The number of threads, of `number` so far."""
        return min(self.threads, number) if self.at_most else self.threads


_requests: list[_ThreadCount] = []
"""The requests for threads, without repeats."""
_applied: list[_ThreadCount] = []
"""The requests that torch has got."""


def _torch() -> Any:
    """torch, told what was asked for, if it is imported; else `None`."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "set_num_threads"):  # or is being imported
        return None
    for count in _requests[len(_applied) :]:
        torch.set_num_threads(count.of(torch.get_num_threads()))
        _applied.append(count)
    return torch


def _threads_without_torch() -> int:
    """The number that torch would take: one per core, or `OMP_NUM_THREADS`, and the requests."""
    variable = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    number = int(variable) if variable.isdigit() and int(variable) else cores()
    for count in _requests:
        number = count.of(number)
    return number
