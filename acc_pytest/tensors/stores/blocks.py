"""The bytes that were read of files in stores, kept on the disk up to a limit.

    CACHE/acc_blocks/3f/3f2a...        of one version of one file: its bytes where they were fetched and holes
                                       elsewhere, then, for each fetch, from where to where (and a check)
    CACHE/acc_blocks/3f/3f2a....whole  the file, as whoever opens it by its path needs it

A block is as long as its file, so that a tensor is mapped from it as from the file. Pairs are appended when
their bytes are written: who is killed in between fetches them again. Several processes share the blocks; what
two of them fetch at once they write twice, alike. The oldest blocks go when all take more than the limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import time
from collections.abc import Iterator

from ...errors import AccError
from ..whole_file import make_directory, new_file, whole_file
from .address import DEFAULT_LIMIT
from .mirror import BLOCKS, MIRRORS, Placed

_LIMIT = "limit"
_PAIR = struct.Struct("<QQQ")
_CHECK = 0x6163635F626C6F63
"""Combined with both numbers of a pair, it is the third one: what is no pair is not taken for one."""
_LEFT = 0.8
"""Share of the limit down to which blocks are removed."""
_SWEEP = 64 << 20
"""Bytes that a process writes, at most, between two looks at the limit."""
_IN_USE = 10.0
"""Seconds that a block stays after it was opened: between its path being told and being opened."""
_WHOLE = ".whole"
_written = 0


class StoredBlock:
    """An open block. Close it by `close`; what is mapped of it stays."""

    def __init__(self, found: Placed) -> None:
        self.size = found.row.size
        self._path = _path_of(found)
        try:
            whole = _opened(self._path + _WHOLE)
            self.descriptor = _descriptor(self._path, self.size) if whole is None else whole
        except OSError as error:
            raise _refused(self._path, error) from None
        self._spans = self._fetched() if whole is None else [(0, self.size)]

    def _fetched(self) -> list[tuple[int, int]]:
        length = os.fstat(self.descriptor).st_size - self.size
        content = os.pread(self.descriptor, max(length, 0), self.size)
        pairs = [] if length % _PAIR.size else [*_PAIR.iter_unpack(content)]
        if length % _PAIR.size or any(start ^ stop ^ _CHECK != check for start, stop, check in pairs):
            # Somebody was killed, or the disk was full, while a pair was written: begin anew.
            os.close(self.descriptor)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self.descriptor = _descriptor(self._path, self.size)
            return []
        return _joined([(start, stop) for start, stop, _ in pairs])

    def missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """What of these bytes was not fetched yet."""
        for begin, end in self._spans:
            if end > start and begin < stop:
                if begin > start:
                    yield start, begin
                start = max(start, end)
        if start < stop:
            yield start, stop

    def write(self, start: int, content: bytes) -> None:
        """Take the bytes from `start` on. Raises `AccError` where the disk refuses."""
        try:
            view, at = memoryview(content), start
            while view:
                done = os.pwrite(self.descriptor, view, at)
                view, at = view[done:], at + done
            with _appending(self._path, self.descriptor) as end:
                os.write(end, _PAIR.pack(start, at, start ^ at ^ _CHECK))
        except OSError as error:
            raise _refused(self._path, error) from None
        self._spans = _joined([*self._spans, (start, at)])

    def whole(self) -> str:
        """The path of the file, all of which was fetched. Raises `AccError` where the disk refuses."""
        path = self._path + _WHOLE
        if not os.path.exists(path):
            with whole_file(path) as file:
                at = 0
                while at < self.size:
                    at += os.sendfile(file.fileno(), self.descriptor, at, self.size - at)
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        return path

    @property
    def is_whole(self) -> bool:
        """Whether all of the file was fetched."""
        return not any(self.missing(0, self.size))

    def close(self) -> None:
        os.close(self.descriptor)


def _refused(path: str, error: OSError) -> AccError:
    return AccError(
        f"{path}: the cache cannot be written: {error.strerror}; give another --acc-cache-dir or a smaller "
        "--acc-cache-size"
    )


@contextlib.contextmanager
def _appending(path: str, descriptor: int) -> Iterator[int]:
    """The block opened once more, so that what is written goes to its end, whoever else writes to it."""
    end = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        yield end
    finally:
        os.close(end)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined


def _path_of(found: Placed) -> str:
    text = f"{found.shown}\0{found.row.version:016x}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{found.mirror.cache}/{BLOCKS}/{digest[:2]}/{digest}"


def _descriptor(path: str, size: int) -> int:
    known = _opened(path)
    if known is not None:
        return known
    make_directory(os.path.dirname(path))
    made, name = new_file(path)
    try:
        os.ftruncate(made, size)
        with contextlib.suppress(FileExistsError):  # another process was faster, and that one counts
            os.link(name, path)
    finally:
        os.close(made)
        os.unlink(name)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _opened(path: str) -> int | None:
    """A block that is there, which is used now; `None` where there is none."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    os.utime(descriptor)
    return descriptor


def is_fetched(found: Placed) -> bool:
    """Whether there is a block of a file, whole or not."""
    path = _path_of(found)
    return os.path.exists(path) or os.path.exists(path + _WHOLE)


def set_limit(cache: str, limit: int) -> None:
    """Say how many bytes the blocks below `cache` may take. Raises `AccError`."""
    if _limit_of(cache) != limit:
        with whole_file(f"{cache}/{MIRRORS}/{_LIMIT}") as file:
            file.write(b"%d" % limit)


def _limit_of(cache: str) -> int:
    try:
        with open(f"{cache}/{MIRRORS}/{_LIMIT}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return DEFAULT_LIMIT


def written(cache: str, nbytes: int) -> None:
    """Count bytes that this process wrote; remove the oldest blocks where all take more than the limit."""
    global _written
    _written += nbytes
    limit = _limit_of(cache)
    if _written < min(_SWEEP, limit // 16):
        return
    _written = 0
    found = sorted(_blocks(f"{cache}/{BLOCKS}"))
    taken = sum(size for _, size, _ in found)
    if taken <= limit:
        return
    for used, size, path in found:
        if taken <= _LEFT * limit or used > time.time() - _IN_USE:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            taken -= size


def _blocks(home: str) -> Iterator[tuple[float, int, str]]:
    """Time of the last use, bytes on the disk and path of each block."""
    with contextlib.suppress(OSError), os.scandir(home) as directories:
        for directory in directories:
            with contextlib.suppress(OSError), os.scandir(directory.path) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        status = entry.stat()
                        yield status.st_mtime, status.st_blocks * 512, entry.path
