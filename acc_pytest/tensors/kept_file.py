"""A file of a kept dump, read from the stretches that it is made of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from .kept_index import ByteRange, kept_time, stretches
from .stores.place import placed_at
from .stores.sized_file import SizedFile

if TYPE_CHECKING:
    from .stores.store_file import StoreFile


class KeptFile(SizedFile):
    """The bytes of `byte_ranges`, one after the other. `read(n)` gives n bytes but at the end, as of a file.

    Raises `FormatError` where a stretch cannot be read to its end.
    """

    def __init__(self, path: str, byte_ranges: Sequence[ByteRange]) -> None:
        super().__init__(sum(stretch.length for stretch in byte_ranges))
        self._path = path
        self._byte_ranges = byte_ranges
        self._open: dict[str, int] = {}
        self._remote: dict[str, StoreFile] = {}

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        done, begin = 0, 0
        for stretch in self._byte_ranges:
            inside = self._place - begin
            begin += stretch.length
            if done < len(into) and 0 <= inside < stretch.length:
                count = min(len(into) - done, stretch.length - inside)
                self._fill(into[done : done + count], stretch, inside)
                done += count
                self._place += count
        return done

    def _fill(self, into: memoryview, stretch: ByteRange, inside: int) -> None:
        descriptor = self._descriptor(stretch.path, stretch.offset + inside, len(into))
        done = 0
        while done < len(into):
            read = os.preadv(descriptor, [into[done:]], stretch.offset + inside + done)
            if not read:
                raise FormatError(
                    f"{stretch.path}: is shorter than the index of its dump says, so {self._path} cannot be "
                    "read; was the dump copied whole?"
                )
            done += read

    def _descriptor(self, path: str, offset: int, nbytes: int) -> int:
        placed = placed_at(path)
        if placed is not None and not placed.path:
            if path not in self._remote:
                from .stores.store_file import StoreFile  # numpy is imported by those who read stores

                self._remote[path] = StoreFile(placed)
            return self._remote[path].descriptor_with(offset, nbytes)
        if path not in self._open:
            disk_path = path if placed is None else placed.path
            try:
                self._open[path] = os.open(disk_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise FormatError(f"{path}: cannot be opened: {error.strerror}") from error
        return self._open[path]

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
        while self._remote:
            self._remote.popitem()[1].close()
        super().close()


def whereabouts(byte_ranges: Sequence[ByteRange], offset: int, nbytes: int) -> tuple[str, int] | None:
    """The file in which bytes of a kept file lie side by side, and where; `None` where they do not."""
    begin = 0
    for stretch in byte_ranges:
        inside = offset - begin
        if inside >= 0 and inside + nbytes <= stretch.length:
            return stretch.path, stretch.offset + inside
        begin += stretch.length
    return None


def file_size(path: str) -> int:
    """Bytes of a file, wherever it lies. Raises `OSError` or `FormatError`."""
    byte_ranges = stretches(path)
    if byte_ranges is not None:
        return sum(stretch.length for stretch in byte_ranges)
    placed = placed_at(path)
    return os.stat(path).st_size if placed is None else placed.row.size


def modified(path: str) -> int:
    """The time at which a file was written, in nanoseconds; in a kept dump, its source. 0 for none."""
    placed = placed_at(path)
    if placed is not None:
        return placed.row.modified
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return kept_time(path)
