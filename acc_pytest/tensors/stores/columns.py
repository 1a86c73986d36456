"""Columns of numbers and names in one file: a zip of numpy arrays, the head of which is JSON.

Nothing in it is unpickled. What it says of lengths is checked before any memory is taken for it.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import FormatError
from ...json_text import parsed

Column = npt.NDArray[Any]
_HEAD = "head"
LARGEST = 1 << 30
"""Bytes of an index, packed or not."""
# Errors that zipfile, zlib and numpy raise for damaged files.
_REFUSALS = (
    *(ValueError, LookupError, OSError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error),
)
_BETWEEN = "\0"
"""No name of a file holds it."""


def packed(head: Mapping[str, Any], columns: Mapping[str, Column]) -> bytes:
    """The bytes of a file of columns."""
    file = io.BytesIO()
    text = np.frombuffer(json.dumps(head, sort_keys=True).encode("ascii"), dtype=np.uint8)
    arrays: dict[str, Any] = {_HEAD: text, **columns}
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def unpacked(content: bytes, where: str, form: str, version: int) -> tuple[dict[str, Any], dict[str, Column]]:
    """The head and the columns in `content`, which was read from `where`.

    Raises `FormatError` for anything but a file of columns of this format and version.
    """
    if len(content) > LARGEST:
        raise FormatError(
            f"{where}: has {len(content)} bytes, so it is no {form}; make it anew with acc index"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                raise ValueError(f"it would take more than {LARGEST >> 30} GiB")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            columns = {name: archive[name] for name in archive.files}
        head = parsed(columns.pop(_HEAD).tobytes())
    except _REFUSALS as error:
        raise FormatError(f"{where}: is damaged: {error!s:.200}; make it anew with acc index") from None
    if type(head) is not dict or head.get("format") != form:
        raise FormatError(f"{where}: is no {form}; make it anew with acc index")
    if head.get("version") != version:
        raise FormatError(
            f"{where}: has version {head.get('version')!r:.20}, but this acc-pytest reads version {version}; "
            "make it anew with acc index"
        )
    return head, columns


def names_column(names: Sequence[str]) -> Column:
    """Names as one column of bytes."""
    return np.frombuffer(_BETWEEN.join(names).encode("utf-8", "surrogatepass"), dtype=np.uint8)


def names_of(column: Column, count: int) -> list[str]:
    """The names in a column of `names_column`. Raises `ValueError` where they are not `count`."""
    text = column.astype(np.uint8, copy=False).tobytes().decode("utf-8", "surrogatepass")
    names = text.split(_BETWEEN) if count else []
    if len(names) != count:
        raise ValueError(f"has {len(names)} names where {count} were written")
    return names
