"""How many threads work here: torch's own, which every pass over a large tensor takes as its number too."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def one_thread() -> Iterator[int]:
    """Set torch's thread count to 1 and restore it at the end, also after an error; gives what it was.

    For blocks and tensors so small that waiting for other threads costs more than they do (on two
    cores with other work beside it, two threads were measured up to sixty times slower than one),
    and for sums that must be the same on every machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


def in_order(work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int) -> Iterator[_Result]:
    """`work` of each item, in the order of the items; on that many threads at once, from 2 on.

    Each thread has at most two items taken that nobody has asked the results of, so that memory is bounded.
    The threads are of this call alone: none is left that a forked process would miss.
    """
    if threads < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, "acc_measure") as pool:
        begun: deque[Future[_Result]] = deque()
        for item in items:
            begun.append(pool.submit(work, item))
            if len(begun) == 2 * threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


def share_cores(threads: int | None = None) -> None:
    """Give this process so many threads; `None`: in an xdist worker its share of the cores.

    Torch would start one thread per core in each worker. A share leaves fewer fewer (`OMP_NUM_THREADS`).
    Once in a process, so that a test may choose otherwise for itself.
    """
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "")
    if threads is not None:
        _set(threads, at_most=False)
    elif workers.isdigit():
        _set(max(1, cores() // int(workers)), at_most=True)


def cores() -> int:
    """The processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _set(threads: int, *, at_most: bool) -> None:
    torch.set_num_threads(min(threads, torch.get_num_threads()) if at_most else threads)
