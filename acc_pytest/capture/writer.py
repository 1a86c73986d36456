"""Background writing: files are handed over while a model runs, and are all there when `finish` returns.

The bytes that wait are bounded, so a model that is faster than the disk waits for it instead of filling the
memory. Nothing is half-written: a file gets its name when it is whole. The first thing that goes wrong is
kept and raised by `finish`, naming the file; what was handed over after it is still tried.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..errors import AccError
from ..tensors.whole_file import whole_file

QUEUE_BYTES = 256 << 20
"""Bytes of tensors that may wait to be written, unless told."""
_IDLE_SECONDS = 1.0
_BATCH_BYTES = 1 << 18
"""Small files are handed to a thread together; waking one costs more than writing a file."""

Parts = Iterable["bytes | memoryview"]


@dataclass(slots=True)
class _Job:
    path: str
    nbytes: int
    content: Callable[[], Parts] | None
    done: Callable[[str], None]


class BackgroundWriter:
    """Writes files with `threads` threads that start when needed and end when idle."""

    def __init__(self, queue_bytes: int = QUEUE_BYTES, threads: int = 2) -> None:
        self._room = queue_bytes
        self._threads = threads
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._queue: deque[list[_Job]] = deque()
        self._batch: list[_Job] = []
        self._batch_bytes = 0
        self._waiting = 0
        self._unfinished = 0
        self._running = 0
        self._idle = 0
        self._error: AccError | None = None
        self.peak_bytes = 0
        """Most bytes that ever waited, those being written included."""

    def put(
        self, path: str, nbytes: int, content: Callable[[], Parts], done: Callable[[str], None] | None = None
    ) -> None:
        """Have `content()` written to `path`; it holds `nbytes` of memory until then.

        Blocks while the queue is full. A single file larger than the queue is let in when nothing else waits.
        `done` is called on the writing thread with an empty text, or with what went wrong.
        """
        job = _Job(path, nbytes, content, done or _ignore)
        with self._lock:
            while self._waiting and self._waiting + nbytes > self._room:
                self._hand_over()
                self._progress.wait()
            self._waiting += nbytes
            self._unfinished += 1
            self.peak_bytes = max(self.peak_bytes, self._waiting)
            self._batch.append(job)
            self._batch_bytes += nbytes
            if self._batch_bytes >= _BATCH_BYTES:
                self._hand_over()

    def finish(self) -> None:
        """Wait until everything is written. Raises the first `AccError` since the last call, once."""
        with self._lock:
            self._hand_over()
            while self._unfinished:
                self._progress.wait()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _hand_over(self) -> None:
        """Queue the batch and see that there is a thread for it. The lock is held."""
        if not self._batch:
            return
        self._queue.append(self._batch)
        self._batch, self._batch_bytes = [], 0
        if self._idle:
            self._work.notify()
        elif self._running < self._threads:
            self._running += 1
            threading.Thread(target=self._run, name="acc_pytest writer", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._idle += 1
                    self._work.wait(_IDLE_SECONDS)
                    self._idle -= 1
                if not self._queue:
                    self._running -= 1
                    return
                batch = self._queue.popleft()
            for job in batch:
                self._write(job)

    def _write(self, job: _Job) -> None:
        problem = ""
        failure: AccError | None = None
        try:
            assert job.content is not None
            with whole_file(job.path) as file:
                for part in job.content():
                    file.write(part)
        except AccError as error:
            problem, failure = str(error), error
        except Exception as error:  # noqa: BLE001 - whatever it is must reach `finish`, not die with a thread
            problem = f"{job.path}: cannot be written: {type(error).__name__}: {error}"
            failure = AccError(problem)
        job.content = None  # lets go of the tensor before its bytes are counted as free
        job.done(problem)
        with self._lock:
            self._waiting -= job.nbytes
            self._unfinished -= 1
            self._error = self._error or failure
            self._progress.notify_all()


def _ignore(_problem: str) -> None:
    """Nobody wants to know."""
