"""A readable file of a known size, whatever its bytes come from."""

from __future__ import annotations

import io
import os


class SizedFile(io.RawIOBase):
    """Position of the next read in a file of `size` bytes. A subclass has `readinto`, which moves it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._place = 0

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
