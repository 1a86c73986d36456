"""`one_thread`: keep torch on the calling thread for a while. `share_cores`: leave some to other workers."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Set torch's thread count to 1 and restore it at the end, also after an error.

    For blocks and tensors so small that waiting for other threads costs more than they do (on two
    cores with other work beside it, two threads were measured up to sixty times slower than one),
    and for sums that must be the same on every machine.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share_cores() -> None:
    """In an xdist worker, take its share of the cores: torch would start one thread per core in each.

    Fewer stay fewer (`OMP_NUM_THREADS`). Once in a process, so that a test may choose otherwise for itself.
    """
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "")
    if workers.isdigit():
        _limit(max(1, (os.cpu_count() or 1) // int(workers)))


@functools.cache
def _limit(threads: int) -> None:
    torch.set_num_threads(min(threads, torch.get_num_threads()))
