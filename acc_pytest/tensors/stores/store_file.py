"""A file of a store, read like any other: what is read is fetched first."""

from __future__ import annotations

import os
from typing import Any

from ...errors import FormatError
from .blocks import StoredBlock
from .fetching import fetch, opened_with
from .mirror import Placed
from .sized_file import SizedFile


class StoreFile(SizedFile):
    """The bytes of a file of a mirror. Raises `FormatError` where they cannot be read.

    `alone`: what is read of it is asked of no other file, as the heads of its neighbours are.
    """

    def __init__(self, file: Placed, *, alone: bool = False) -> None:
        super().__init__(file.row.size)
        self._file = file
        self._alone = alone
        self._blocks: list[StoredBlock] = []

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        stop = min(self._place + len(into), self.size)
        if stop <= self._place:
            return 0
        descriptor = self.descriptor_with(self._place, stop - self._place)
        done = 0
        while self._place < stop:
            count = os.preadv(descriptor, [into[done : done + stop - self._place]], self._place)
            if not count:
                raise FormatError(
                    f"{self._file.source_path}: its bytes in the cache were cut meanwhile; run again"
                )
            done, self._place = done + count, self._place + count
        return done

    def descriptor_with(self, offset: int, nbytes: int) -> int:
        """A descriptor of a file on the disk with these bytes at the same offset, until this is closed."""
        if not self._blocks:
            self._blocks.append(opened_with(self._file, offset, offset + nbytes, alone=self._alone))
        else:
            fetch(self._file, offset, offset + nbytes, self._blocks[0], alone=self._alone)
        return self._blocks[0].descriptor

    def close(self) -> None:
        while self._blocks:
            self._blocks.pop().close()
        super().close()
