"""The texts of a dump (topology, manifests) in its index, so that it opens with one request.

t_row, t_begin, t_bytes      the files, by their rows; where the bytes of each begin; all bytes
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

import numpy as np

from .blocks import StoredBlock, is_fetched
from .columns import Column
from .mirror import Mirror, Placed
from .table import FileTable

_SUFFIXES = (".json", ".csv", ".txt")
_LARGEST = 64 << 20
"""Bytes of all texts that an index holds; what is beyond is read when it is needed."""


def texts_of_mirror(mirror: Mirror) -> dict[str, Column]:
    """The texts that were read since the mirror was made, as columns."""
    return _columns(_fetched(mirror))


def texts_of_disk(table: FileTable, root: str, read: Iterable[str]) -> dict[str, Column]:
    """The texts of a dump on the disk, at `root`, that are among the files that were `read`, as columns."""
    texts = (path for path in sorted(read) if path.startswith(f"{root}/") and path.endswith(_SUFFIXES))
    files = ((name, table.row(name)) for name in (path[len(root) + 1 :] for path in texts))
    return _columns(_on_disk(root, ((row.number, name, row.size) for name, row in files if row is not None)))


def _fetched(mirror: Mirror) -> Iterator[tuple[int, bytes]]:
    budget = _LARGEST
    for row in range(len(mirror.table)):
        file = mirror.placed(row)
        if not file.name.endswith(_SUFFIXES) or file.row.size > budget or not is_fetched(file):
            continue
        budget -= file.row.size
        block = StoredBlock(file)
        try:
            if block.is_complete:
                yield row, os.pread(block.descriptor, block.size, 0)
        finally:
            block.close()


def _on_disk(root: str, files: Iterable[tuple[int, str, int]]) -> Iterator[tuple[int, bytes]]:
    budget = _LARGEST
    for row, name, size in files:
        with contextlib.suppress(OSError):
            if size <= budget:
                with open(f"{root}/{name}", "rb") as file:
                    yield row, file.read()
                budget -= size


def _columns(texts: Iterable[tuple[int, bytes]]) -> dict[str, Column]:
    rows, contents = [], []
    for row, content in texts:
        rows.append(row)
        contents.append(content)
    return {
        "t_row": np.array(rows, np.int64),
        "t_begin": np.cumsum([0, *map(len, contents)], dtype=np.int64),
        "t_bytes": np.frombuffer(b"".join(contents), np.uint8),
    }


def take_texts(mirror: Mirror) -> None:
    """Put the texts of an index into blocks, where readers find them. Raises `AccError`."""
    columns = mirror.table.more
    rows, begin, content = (columns.pop(name, None) for name in ("t_row", "t_begin", "t_bytes"))
    if rows is None or begin is None or content is None or len(begin) != len(rows) + 1:
        return
    text = content.astype(np.uint8, copy=False).tobytes()
    for number, row in enumerate(rows.tolist()):
        first, end = int(begin[number]), int(begin[number + 1])
        file: Placed | None = mirror.placed(row) if 0 <= row < len(mirror.table) else None
        if file is None or file.row.size != end - first or is_fetched(file):
            continue
        block = StoredBlock(file)
        try:
            block.write(0, text[first:end])
        finally:
            block.close()
