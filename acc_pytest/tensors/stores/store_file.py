"""A file of a store, read like any other: what is read is fetched first."""

from __future__ import annotations

import io
import os
from typing import Any

from .blocks import StoredBlock
from .fetching import fetch, opened_with
from .mirror import Placed


class StoreFile(io.RawIOBase):
    """The bytes of a file of a mirror. Raises `FormatError` where they cannot be read."""

    def __init__(self, found: Placed) -> None:
        self._found = found
        self._place = 0
        self._blocks: list[StoredBlock] = []
        self.size = found.row.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise OSError(22, "a place before the first byte")
        self._place = base + offset
        return self._place

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        stop = min(self._place + len(into), self.size)
        if stop <= self._place:
            return 0
        descriptor = self.descriptor_with(self._place, stop - self._place)
        done = 0
        while self._place < stop:
            count = os.preadv(descriptor, [into[done : done + stop - self._place]], self._place)
            done, self._place = done + count, self._place + count
        return done

    def descriptor_with(self, offset: int, nbytes: int) -> int:
        """A descriptor of a file on the disk with these bytes at the same offset, until this is closed."""
        if not self._blocks:
            self._blocks.append(opened_with(self._found, offset, offset + nbytes))
        else:
            fetch(self._found, offset, offset + nbytes, self._blocks[0])
        return self._blocks[0].descriptor

    def close(self) -> None:
        while self._blocks:
            self._blocks.pop().close()
        super().close()
