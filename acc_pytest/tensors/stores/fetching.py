"""Bytes of files in stores brought to their blocks: side by side, some megabytes in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...errors import AccError, FormatError
from .blocks import StoredBlock, count_written
from .filesystem import Span
from .mirror import Placed

_PIECE = 4 << 20
"""Bytes that are asked for at once."""
_SIDE_BY_SIDE = 16
"""Pieces that are read at once; memory holds no more than these."""
_SMALL = 4 << 10
"""Files up to this size are read whole."""
_HEAD = 1 << 10
_WITH_TAIL = (".pth", ".pt", ".npz", ".zip")
"""Archives have their directory at the end; all other formats say first what they hold."""
_NEIGHBOURS = 8


class FileSpan(NamedTuple):
    """Bytes from `start` up to `stop` of a file."""

    file: Placed
    start: int
    stop: int


def opened_with(file: Placed, start: int, stop: int, *, alone: bool = False) -> StoredBlock:
    """The block of a file, with these bytes in it, and as it is likely that others will be asked for the same
    (`alone`: it is not), with theirs. Raises `FormatError` where they cannot be read."""
    _check_believed(file)
    block = StoredBlock(file)
    try:
        fetch(file, start, stop, block, alone=alone)
    except BaseException:
        block.close()
        raise
    return block


def fetch(file: Placed, start: int, stop: int, block: StoredBlock, *, alone: bool = False) -> None:
    """Bring these bytes of a file to its block. Raises `FormatError` where they cannot be read."""
    span = FileSpan(file, start, min(stop, file.row.size))
    if [*block.missing(span.start, span.stop)]:
        _fill([span] if alone else _around(span), block)


def _around(span: FileSpan) -> list[FileSpan]:
    """The bytes that are wanted; where they are of the head of a file, also the heads of its neighbours."""
    file, start, stop = span
    heads = heads_of(file)
    if not any(head.start <= start and stop <= head.stop for head in heads):
        return [span]
    rows = file.mirror.table.after(file.row.number, _NEIGHBOURS)
    neighbours = [Placed(file.mirror, name, row) for name, row in rows if row.source == file.row.source]
    return [span, *heads, *(head for neighbour in neighbours[1:] for head in heads_of(neighbour))]


def heads_of(file: Placed) -> list[FileSpan]:
    """The spans of a file in which its headers lie."""
    size = file.row.size
    if size <= _SMALL:
        return [FileSpan(file, 0, size)]
    heads = [FileSpan(file, 0, _HEAD)]
    return [*heads, FileSpan(file, size - _HEAD, size)] if file.name.endswith(_WITH_TAIL) else heads


def fetch_heads(files: Iterable[Placed]) -> None:
    """Bring the heads of many files, side by side. A file that cannot be read fails when it is opened."""
    waiting: list[FileSpan] = []
    for file in files:
        waiting += heads_of(file)
        if len(waiting) >= _SIDE_BY_SIDE * 4:
            _fill_together(waiting)
            waiting = []
    _fill_together(waiting)


def _fill_together(file_spans: Sequence[FileSpan]) -> None:
    for first in file_spans[:1]:
        block = StoredBlock(first.file)
        try:
            _fill([*file_spans], block, strict=False)
        finally:
            block.close()


def _fill(file_spans: Sequence[FileSpan], first: StoredBlock, *, strict: bool = True) -> None:
    """Fetch what is missing of `file_spans`, all of one source. `first` is the block of the first of them.

    Raises `FormatError` where the first cannot be read, if that matters; of others, nobody asked yet.
    """
    blocks = {file_spans[0].file.name: first}
    store = file_spans[0].file.store
    try:
        pieces = [*_pieces(file_spans, blocks)]
        for begin in range(0, len(pieces), _SIDE_BY_SIDE):
            batch = pieces[begin : begin + _SIDE_BY_SIDE]
            spans = [
                Span(piece.file.name_in_source, piece.start, piece.stop, piece.file.row.version)
                for piece in batch
            ]
            answers = store.ranges(spans)
            for piece, answer in zip(batch, answers):
                if not isinstance(answer, AccError):
                    blocks[piece.file.name].write(piece.start, answer)
                elif strict and piece.file.name == file_spans[0].file.name:
                    raise answer
            count_written(file_spans[0].file.mirror.cache, sum(piece.stop - piece.start for piece in batch))
    finally:
        for name, block in blocks.items():
            if name != file_spans[0].file.name:
                block.close()


def _pieces(file_spans: Sequence[FileSpan], blocks: dict[str, StoredBlock]) -> Iterator[FileSpan]:
    """The missing spans, each byte once, in pieces."""
    covered: dict[str, list[tuple[int, int]]] = {}
    for file, start, stop in file_spans:
        if file.name not in blocks:
            blocks[file.name] = StoredBlock(file)
        for begin, end in blocks[file.name].missing(start, stop):
            for low, high in _without(begin, end, covered.setdefault(file.name, [])):
                covered[file.name].append((low, high))
                for at in range(low, high, _PIECE):
                    yield FileSpan(file, at, min(at + _PIECE, high))


def _without(begin: int, end: int, covered: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, stop in sorted(covered):
        if stop > begin and start < end:
            if start > begin:
                yield begin, start
            begin = max(begin, stop)
    if begin < end:
        yield begin, end


def _check_believed(file: Placed) -> None:
    """Raise `FormatError` where an index that was not made in this run says what is no longer true."""
    now = file.store.version_of(file.name_in_source) if file.mirror.believed else file.row.version
    if now != file.row.version:
        raise FormatError(
            f"{file.source_path}: {'was written anew' if now else 'is gone'} since the index of its dump "
            "was made; run acc index again"
        )
