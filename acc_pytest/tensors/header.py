"""What a file says of one tensor, and where that lies: plain data that every format shares."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .dtypes import DType


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a statistics dump keeps of a tensor; `None` where the writer could not say (`N/A`)."""

    max: float | None
    min: float | None
    mean: float | None
    l2norm: float | None


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What is known of a tensor before its payload is touched.

    `payload` says what the file holds: `data`, `description` (dtype and shape only), `statistics`,
    or `alias` (the values are in `alias`, a file name to be resolved by the dump).
    `counted` is false where statistics do not say of how many elements they are; `shape` is then ().
    `offset` and `nbytes` locate the payload inside the file, both already checked against its size.
    """

    dtype: DType
    shape: tuple[int, ...]
    payload: str = "data"
    offset: int = 0
    nbytes: int = 0
    layout: str = "nd"
    statistics: Statistics | None = None
    alias: str = ""
    counted: bool = True

    @property
    def numel(self) -> int:
        """Number of elements: the product of `shape`, 1 for a 0-d tensor."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class Location:
    """Where one tensor lies on disk.

    `path` is the file, `member` the name inside it for formats that hold several tensors (a
    safetensors key, `Output/0` in a torch `statistics.csv`), empty otherwise. `root` is the
    directory below which an alias or a broken absolute link of this file may be looked up: the
    execution directory of an ATB dump, empty for a file that stands alone.
    """

    path: str
    member: str = ""
    root: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else self.path


def version_of(path: str) -> tuple[int, ...]:
    """What changes when a file is written or replaced; empty for what cannot be looked at.

    What is remembered of a file is remembered under this key. A link to nowhere has none, yet may
    still be found elsewhere in its dump.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino
