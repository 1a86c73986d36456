"""Bytes of files in stores brought to their blocks: side by side, some megabytes in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...errors import AccError, FormatError
from .blocks import StoredBlock, written
from .filesystem import Span
from .mirror import Placed

_PIECE = 4 << 20
"""Bytes that are asked for at once."""
_SIDE_BY_SIDE = 16
"""Pieces that are read at once; memory holds no more than these."""
_WHOLE = 4 << 10
"""Files up to this size are read whole."""
_HEAD = 1 << 10
_WITH_TAIL = (".pth", ".pt", ".npz", ".zip")
"""Archives have their directory at the end; all other formats say first what they hold."""
_NEIGHBOURS = 8


class Wanted(NamedTuple):
    """Bytes from `start` up to `stop` of a file."""

    found: Placed
    start: int
    stop: int


def opened_with(found: Placed, start: int, stop: int, *, alone: bool = False) -> StoredBlock:
    """The block of a file, with these bytes in it, and as it is likely that others will be asked for the same
    (`alone`: it is not), with theirs. Raises `FormatError` where they cannot be read."""
    _check_believed(found)
    block = StoredBlock(found)
    try:
        fetch(found, start, stop, block, alone=alone)
    except BaseException:
        block.close()
        raise
    return block


def fetch(found: Placed, start: int, stop: int, block: StoredBlock, *, alone: bool = False) -> None:
    """Bring these bytes of a file to its block. Raises `FormatError` where they cannot be read."""
    wanted = Wanted(found, start, min(stop, found.row.size))
    if [*block.missing(wanted.start, wanted.stop)]:
        _fill([wanted] if alone else _around(wanted), block)


def _around(wanted: Wanted) -> list[Wanted]:
    """The bytes that are wanted; where they are of the head of a file, also the heads of its neighbours."""
    found, start, stop = wanted
    heads = heads_of(found)
    if not any(one.start <= start and stop <= one.stop for one in heads):
        return [wanted]
    beside = found.mirror.table.after(found.row.number, _NEIGHBOURS)
    others = [Placed(found.mirror, name, row) for name, row in beside if row.source == found.row.source]
    return [wanted, *heads, *(one for other in others[1:] for one in heads_of(other))]


def heads_of(found: Placed) -> list[Wanted]:
    """What is read of a file to know what it holds."""
    size = found.row.size
    if size <= _WHOLE:
        return [Wanted(found, 0, size)]
    heads = [Wanted(found, 0, _HEAD)]
    return [*heads, Wanted(found, size - _HEAD, size)] if found.name.endswith(_WITH_TAIL) else heads


def fetch_heads(files: Iterable[Placed]) -> None:
    """Bring the heads of many files, side by side. What cannot be read is left to whoever asks for it."""
    waiting: list[Wanted] = []
    for found in files:
        waiting += heads_of(found)
        if len(waiting) >= _SIDE_BY_SIDE * 4:
            _fill_together(waiting)
            waiting = []
    _fill_together(waiting)


def _fill_together(wanted: Sequence[Wanted]) -> None:
    for one in wanted[:1]:
        block = StoredBlock(one.found)
        try:
            _fill([*wanted], block, strict=False)
        finally:
            block.close()


def _fill(wanted: Sequence[Wanted], first: StoredBlock, *, strict: bool = True) -> None:
    """Fetch what is missing of `wanted`, all of one source. `first` is the block of the first of them.

    Raises `FormatError` where the first cannot be read, if that matters; of others, nobody asked yet.
    """
    blocks = {wanted[0].found.name: first}
    store = wanted[0].found.store
    try:
        pieces = [*_pieces(wanted, blocks)]
        for begin in range(0, len(pieces), _SIDE_BY_SIDE):
            batch = pieces[begin : begin + _SIDE_BY_SIDE]
            spans = [Span(one.found.there, one.start, one.stop, one.found.row.version) for one in batch]
            answers = store.ranges(spans)
            for one, answer in zip(batch, answers):
                if not isinstance(answer, AccError):
                    blocks[one.found.name].write(one.start, answer)
                elif strict and one.found.name == wanted[0].found.name:
                    raise answer
            written(wanted[0].found.mirror.cache, sum(one.stop - one.start for one in batch))
    finally:
        for name, block in blocks.items():
            if name != wanted[0].found.name:
                block.close()


def _pieces(wanted: Sequence[Wanted], blocks: dict[str, StoredBlock]) -> Iterator[Wanted]:
    """What is missing, each byte once, in pieces."""
    asked: dict[str, list[tuple[int, int]]] = {}
    for found, start, stop in wanted:
        if found.name not in blocks:
            blocks[found.name] = StoredBlock(found)
        for begin, end in blocks[found.name].missing(start, stop):
            for left, right in _without(begin, end, asked.setdefault(found.name, [])):
                asked[found.name].append((left, right))
                for at in range(left, right, _PIECE):
                    yield Wanted(found, at, min(at + _PIECE, right))


def _without(begin: int, end: int, asked: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, stop in sorted(asked):
        if stop > begin and start < end:
            if start > begin:
                yield begin, start
            begin = max(begin, stop)
    if begin < end:
        yield begin, end


def _check_believed(found: Placed) -> None:
    """Raise `FormatError` where an index that was not made in this run says what is no longer true."""
    now = found.store.version_of(found.there) if found.mirror.believed else found.row.version
    if now != found.row.version:
        raise FormatError(
            f"{found.shown}: {'was written anew' if now else 'is gone'} since the index of its dump "
            "was made; run acc index again"
        )
