"""The texts of a dump (topology, manifests) in its index, so that it opens with one request.

t_row, t_begin, t_bytes      the files, by their rows; where the bytes of each begin; all bytes
"""

from __future__ import annotations

import numpy as np

from .blocks import StoredBlock, is_fetched
from .columns import Column
from .mirror import Mirror, Placed

_SUFFIXES = (".json", ".csv", ".txt")
_LARGEST = 64 << 20
"""Bytes of all texts that an index holds; what is beyond is read when it is needed."""


def columns_of_texts(mirror: Mirror) -> dict[str, Column]:
    """The texts that were read since the mirror was made, as columns."""
    rows: list[int] = []
    contents: list[bytes] = []
    left = _LARGEST
    for row in range(len(mirror.table)):
        found = mirror.placed(row)
        if not found.name.endswith(_SUFFIXES) or found.row.size > left or not is_fetched(found):
            continue
        block = StoredBlock(found)
        try:
            with open(block.whole(), "rb") as file:
                contents.append(file.read())
        finally:
            block.close()
        rows.append(row)
        left -= found.row.size
    return {
        "t_row": np.array(rows, np.int64),
        "t_begin": np.cumsum([0, *map(len, contents)], dtype=np.int64),
        "t_bytes": np.frombuffer(b"".join(contents), np.uint8),
    }


def take_texts(mirror: Mirror) -> None:
    """Put the texts of an index into blocks, where readers find them. Raises `AccError`."""
    more = mirror.table.more
    rows, begin, content = (more.pop(name, None) for name in ("t_row", "t_begin", "t_bytes"))
    if rows is None or begin is None or content is None or len(begin) != len(rows) + 1:
        return
    text = content.astype(np.uint8, copy=False).tobytes()
    for number, row in enumerate(rows.tolist()):
        first, end = int(begin[number]), int(begin[number + 1])
        found: Placed | None = mirror.placed(row) if 0 <= row < len(mirror.table) else None
        if found is None or found.row.size != end - first or is_fetched(found):
            continue
        block = StoredBlock(found)
        try:
            block.write(0, text[first:end])
            block.whole()
        finally:
            block.close()
