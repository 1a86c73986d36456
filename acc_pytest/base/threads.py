"""The number of threads here: torch's own, which every pass over a large tensor takes too.

What a process asks for before torch is imported is kept, and torch is told when both are there.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

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


def in_order(work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int) -> Iterator[_Result]:
    """`work` of each item, in the order of the items, by so many threads at once, the caller's one of them.

    The others end with this call: none is left that a forked process would miss. An error in any of them is
    raised here.
    """
    if threads < 2:
        yield from map(work, items)
        return
    shared = _Shared(work, items, room=4 * threads)
    with ThreadPoolExecutor(threads - 1, "acc_measure") as pool:
        helpers = [pool.submit(shared.help) for _ in range(threads - 1)]
        try:
            yield from shared.results()
        finally:
            shared.stop(threads)
    for helper in helpers:
        helper.result()


class _SharedTask(Generic[_Result]):
    """An item that a thread has taken: `result` is empty before it is finished, and after an error."""

    def __init__(self) -> None:
        self.finished = threading.Event()
        self.result: list[_Result] = []


class _Shared(Generic[_Item, _Result]):
    """Items that threads take one by one.

    At most `room` are taken whose results nobody has asked for, so that memory is bounded.
    """

    def __init__(self, work: Callable[[_Item], _Result], items: Iterable[_Item], room: int) -> None:
        self._work, self._items = work, iter(items)
        self._tasks: deque[_SharedTask[_Result]] = deque()
        self._room, self._lock = threading.Semaphore(room), threading.Lock()

    def help(self) -> None:
        """Work until nothing is left."""
        while self._room.acquire() and self._work_once():
            pass

    def results(self) -> Iterator[_Result]:
        """The results in the order of the items, up to the first that another thread has failed at.

        The caller works as long as there is room, and waits otherwise.
        """
        left = True
        while left or self._tasks:
            if left and self._room.acquire(blocking=False):
                left = self._work_once()
            elif self._tasks:
                self._tasks[0].finished.wait()
            while self._tasks and self._tasks[0].finished.is_set():
                first = self._tasks.popleft()
                if not first.result:
                    return
                self._room.release()
                yield first.result[0]

    def stop(self, threads: int) -> None:
        """Leave the items that nobody has taken, and wake so many threads."""
        with self._lock:
            self._items = iter(())
        self._room.release(threads)

    def _work_once(self) -> bool:
        """Take an item and work on it; false where none is left."""
        task: _SharedTask[_Result] = _SharedTask()
        with self._lock:
            try:
                item = next(self._items)
            except StopIteration:
                return False
            self._tasks.append(task)
        try:
            task.result.append(self._work(item))
        finally:
            task.finished.set()
        return True


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
