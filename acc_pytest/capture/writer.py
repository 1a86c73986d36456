"""Background writing: files are handed over while a model runs, and are all there when `finish` returns.

The bytes that wait are bounded, so a model that is faster than the disk waits instead of filling the memory.
Nothing is half-written: a file gets its name when it is whole. The first thing that goes wrong is kept and
raised by `finish`, naming the file; what was handed over after it is still tried.

A dump is thousands of small files, each a handful of system calls. A thread that makes them takes turns with
the model at every call, which costs more than they do; so small files are kept together and written by who
calls `finish`, or handed to a thread by the megabyte where they are many.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import AccError
from ..tensors.whole_file import DIRECTORY_MODE, FILE_MODE, make_directory

QUEUE_BYTES = 256 << 20
"""Bytes of tensors that may wait to be written, unless told."""
_IDLE_SECONDS = 1.0
_SMALL = 1 << 16
_BATCH_BYTES = 1 << 23
_MOST_CHUNKS = 64
"""Parts given to one system call; systems allow at least 1024."""

Chunks = Iterable["bytes | memoryview"]


@dataclass(slots=True)
class _Job:
    path: str
    nbytes: int
    content: Callable[[], Chunks] | None
    done: Callable[[str], None]


class BackgroundWriter:
    """Writes files with `threads` threads that start when needed and end when idle."""

    def __init__(self, queue_bytes: int = QUEUE_BYTES, threads: int = 0) -> None:
        """`threads` are two unless told, one where there are no more than two cores."""
        self._room = queue_bytes
        self._threads = threads or max(1, min(2, (os.cpu_count() or 1) - 1))
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
        self._folders: set[str] = set()
        self.peak_bytes = 0
        """Most bytes that ever waited, those being written included."""

    def put(
        self,
        path: str,
        nbytes: int,
        content: Callable[[], Chunks],
        done: Callable[[str], None] = lambda problem: None,
    ) -> None:
        """Have `content()` written to `path`; it holds `nbytes` of memory until then.

        Blocks while the queue is full. A single file larger than the queue is let in when nothing else waits.
        `done` is called on the writing thread with an empty text, or with what went wrong.
        """
        job = _Job(path, nbytes, content, done)
        with self._lock:
            while self._waiting and self._waiting + nbytes > self._room:
                self._hand_over()
                self._progress.wait()
            self._waiting += nbytes
            self._unfinished += 1
            self.peak_bytes = max(self.peak_bytes, self._waiting)
            if nbytes > _SMALL:
                self._start([job])
                return
            self._batch.append(job)
            self._batch_bytes += nbytes
            if self._batch_bytes >= _BATCH_BYTES:
                self._hand_over()

    def finish(self) -> None:
        """Wait until everything is written. Raises the first `AccError` since the last call, once."""
        with self._lock:
            batch, self._batch, self._batch_bytes = self._batch, [], 0
        while batch:
            self._write(batch)
            with self._lock:
                batch = self._queue.popleft() if self._queue else []
        with self._lock:
            while self._unfinished:
                self._progress.wait()
            error, self._error = self._error, None
            self._folders.clear()  # the next files go elsewhere
        if error is not None:
            raise error

    def _hand_over(self) -> None:
        if self._batch:
            self._start(self._batch)
            self._batch, self._batch_bytes = [], 0

    def _start(self, jobs: list[_Job]) -> None:
        """Queue jobs and see that there is a thread for them. The lock is held."""
        self._queue.append(jobs)
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
            self._write(batch)

    def _write(self, batch: list[_Job]) -> None:
        failure: AccError | None = None
        for job in batch:
            problem = ""
            try:
                assert job.content is not None
                self._write_file(job.path, job.content())
            except Exception as error:  # noqa: BLE001 - must reach `finish`, not die with a thread
                reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
                problem = f"{job.path}: cannot be written: {reason}"
                failure = failure or AccError(problem)
            job.content = None  # lets go of the tensor before its bytes are counted as free
            job.done(problem)
        with self._lock:
            self._waiting -= sum(job.nbytes for job in batch)
            self._unfinished -= len(batch)
            self._error = self._error or failure
            self._progress.notify_all()

    def _write_file(self, path: str, chunks: Chunks) -> None:
        """Write as `whole_file` does, in the four system calls that a small file cannot do without."""
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            try:
                os.mkdir(folder, DIRECTORY_MODE)
            except OSError:  # there already, or its parent is not: the careful way
                make_directory(Path(folder))
            self._folders.add(folder)
        # No two files of a dump have one name, and no two processes one directory.
        temporary = f"{folder}/.{name[:100]}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                _write_all(descriptor, [memoryview(chunk) for chunk in chunks])
            finally:
                os.close(descriptor)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _write_all(descriptor: int, chunks: list[memoryview]) -> None:
    chunks = [chunk for chunk in chunks if chunk.nbytes]
    while chunks:
        count = os.writev(descriptor, chunks[:_MOST_CHUNKS])
        while chunks and count >= chunks[0].nbytes:
            count -= chunks.pop(0).nbytes
        if count:
            chunks[0] = chunks[0].cast("B")[count:]
