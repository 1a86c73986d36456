"""Writing to a pipe, a fifo or a terminal. One that stops reading must not hang the
run."""

from __future__ import annotations

import errno
import os
import select

PATIENCE = 60.0
"""Seconds that a reader may let a full pipe stand. A pager or a busy consumer is waited for; one that
sleeps for ever is not."""


def pour(descriptor: int, data: bytes) -> None:
    """Write all of `data`.

    Raises `OSError`: nobody reads any more (`EPIPE`), or nobody has for `PATIENCE` seconds (`ETIMEDOUT`).
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    view = memoryview(data)
    while view:
        if not poll.poll(PATIENCE * 1000):
            raise OSError(errno.ETIMEDOUT, f"its reader has not read for {PATIENCE:.0f} s")
        # As much as a pipe that can be written takes without waiting, whoever else has it open.
        try:
            view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]
        except BlockingIOError:
            continue
