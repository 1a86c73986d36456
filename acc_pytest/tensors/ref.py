"""`TensorRef`: where one tensor lies on disk. Cheap to make, hash and send to another process.

Nothing is read until `header()` (a few hundred bytes, remembered) or `open()` (a memory map).
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..guard import guarded
from .dtypes import DType

if TYPE_CHECKING:
    import torch


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
class TensorRef:
    """One tensor on disk.

    `path` is the file, `member` the name inside it for formats that hold several tensors (a
    safetensors key, `Output/0` in a torch `statistics.csv`), empty otherwise. `root` is the
    directory below which an alias or a broken absolute link of this file may be looked up: the
    execution directory of an ATB dump, empty for a file that stands alone.
    """

    path: str
    member: str = ""
    root: str = ""

    def header(self) -> TensorHeader:
        """Read (once per process, until the file changes) what the file says of the tensor.

        Raises `FormatError` when the file is cut, lies or is of no known format.
        """
        return _header(self, version_of(self.path))

    def open(self) -> torch.Tensor:
        """Map the tensor into memory, read-only by convention, in its own dtype and shape.

        Raises `FormatError`, `CannotDecode` or `NoPayload`.
        """
        from .formats import format_of

        with guarded(f"opening {self}", (OSError,)):
            return format_of(self.path).open(self)

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else self.path


def version_of(path: str) -> tuple[int, ...]:
    """What changes when a file is written or replaced; empty for what cannot be looked at.

    What is remembered of a file is remembered under this key. A link to nowhere has none, yet may
    still be found elsewhere in its dump.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ()
    return found.st_size, found.st_mtime_ns, found.st_ino


@functools.lru_cache(maxsize=65536)
def _header(ref: TensorRef, _version: tuple[int, ...]) -> TensorHeader:
    from .formats import format_of

    if not os.path.lexists(ref.path):
        from ..errors import FormatError

        raise FormatError(f"{ref.path}: no such file; was the dump moved or cleaned while in use?")
    with guarded(f"reading {ref}", (OSError,)):
        return format_of(ref.path).header(ref)
