"""`TensorRef`: a tensor on disk, by where it lies. Cheap to make, hash and send to another process.

Nothing is read until `header()` (a few hundred bytes, remembered) or `open()` (a memory map).
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base.imports import import_torch
from ..errors import AccError, FormatError, guarded
from .address import is_indexed
from .header import Location, TensorHeader, version_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TensorRef(Location):
    """One tensor on disk, in any format."""

    def header(self) -> TensorHeader:
        """Read (once per process, until the file changes) what the file says of the tensor.

        Raises `FormatError` when the file is cut, lies or is of no known format.
        """
        return _header(self, version_of(self.path))

    def open(self) -> torch.Tensor:
        """Map the tensor into memory, read-only by convention, in its own dtype and shape.

        Raises `FormatError`, `CannotDecode` or `NoPayload`.
        """
        import_torch()
        header = header_to_open(self)
        from .formats import format_of

        with guarded(f"opening {self}", (OSError,)):
            return format_of(self.path).open(self, header)


def header_to_open(ref: TensorRef) -> TensorHeader:
    """The header of a tensor whose values are read now.

    Raises `FormatError` as `TensorRef.header`, and where the index of a dump on the disk has another one.
    """
    header = ref.header()
    if not is_indexed(ref.path):
        return header
    from ..remote.header_rows import is_of_index

    if is_of_index(ref, version_of(ref.path)) and _read_header(ref) != header:
        raise FormatError(f"{ref}: is not what the index of its dump says of it; run acc index again")
    return header


def forget_headers() -> None:
    """Remember no header any more: most have been asked for the last time when the tests have run."""
    _header.cache_clear()


def readable(ref: TensorRef | None) -> TensorHeader | None:
    """The header of a tensor; `None` where there is no file, or it cannot be read."""
    try:
        return ref.header() if ref is not None else None
    except AccError:
        return None


@functools.lru_cache(maxsize=65536)
def _header(ref: TensorRef, version: tuple[int, ...]) -> TensorHeader:
    if not version and not os.path.lexists(ref.path):
        raise FormatError(f"{ref.path}: no such file; was the dump moved or deleted while in use?")
    if not is_indexed(ref.path):
        return _read_header(ref)
    from ..remote.header_rows import known_header, remember

    header = known_header(ref, version)
    if header is None:
        header = _read_header(ref)
        remember(ref, header)
    return header


def _read_header(ref: TensorRef) -> TensorHeader:
    from .formats import format_of  # numpy is imported by those who read

    with guarded(f"reading {ref}", (OSError,)):
        return format_of(ref.path).header(ref)
