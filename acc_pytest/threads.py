"""`one_thread`: keep torch on the calling thread for a while."""

from __future__ import annotations

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
