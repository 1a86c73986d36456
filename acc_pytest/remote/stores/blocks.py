"""The bytes that were read of files in stores, kept on the disk up to a limit.

    CACHE/acc_blocks/3f/3f2a...        of one version of one file: its bytes where they were fetched and holes
                                       elsewhere
    CACHE/acc_blocks/3f/3f2a....parts  for each fetch, from where to where, and the check sum of the bytes

A block is as long as its file, so that a tensor is mapped from it as from the file, and who needs the file by
its path opens the block. Parts are appended when their bytes are written: who is killed in between fetches
them again, and so does who finds other bytes than the check sum says. Several processes share the blocks;
what two of them fetch at once they write twice, alike. The oldest go when all take more than the limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ...errors import AccError, FormatError
from ...tensors.address import BLOCKS, DEFAULT_LIMIT, MIRRORS, check_cache
from ...tensors.sized_file import SizedFile
from ...tensors.whole_file import make_directory, new_file, whole_file
from .filesystem import Span
from .mirror import Placed

_LIMIT = "limit"
_RECORD = struct.Struct("<QQQ")
_RECORDS = ".parts"
_AFTER_SWEEP = 0.8
"""Share of the limit down to which blocks are removed."""
_SWEEP = 64 << 20
"""Bytes that a process writes, at most, between two looks at the limit."""
_IN_USE = 10.0
"""Seconds that a block stays after it was opened: between the return of its path and the opening."""
_written_bytes = 0


class StoredBlock:
    """An open block, at `path`. Close it by `close`; what is mapped of it stays."""

    def __init__(self, file: Placed) -> None:
        check_cache(file.mirror.cache)
        self.size = file.row.size
        self.path = _path_of(file)
        try:
            self.descriptor = _descriptor(self.path, self.size)
            content = _content(self.path + _RECORDS)
            if len(content) % _RECORD.size:  # somebody was killed, or the disk was full: begin anew
                os.close(self.descriptor)
                _remove(self.path)
                self.descriptor, content = _descriptor(self.path, self.size), b""
        except OSError as error:
            raise _refused(self.path, error) from None
        self._records = [*_RECORD.iter_unpack(content)]
        self._spans: list[tuple[int, int]] = []

    def missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The spans of these bytes that were not fetched yet, or have changed since."""
        near = {record for record in self._records if record[0] < stop and record[1] > start}
        self._records = [record for record in self._records if record not in near]
        self._spans = _joined([*self._spans, *(record[:2] for record in near if self._is_sound(*record))])
        for begin, end in self._spans:
            if end > start and begin < stop:
                if begin > start:
                    yield start, begin
                start = max(start, end)
        if start < stop:
            yield start, stop

    def _is_sound(self, start: int, stop: int, check: int) -> bool:
        if not start < stop <= self.size:
            return False
        return check == self._check(start, os.pread(self.descriptor, stop - start, start))

    def _check(self, start: int, content: bytes) -> int:
        """The check sum of bytes of this file, from `start` on."""
        return zlib.crc32(content, zlib.crc32(f"{os.path.basename(self.path)} {start}".encode()))

    def write(self, start: int, content: bytes) -> None:
        """Take the bytes from `start` on. Raises `AccError` where the disk refuses."""
        try:
            view, at = memoryview(content), start
            while view:
                done = os.pwrite(self.descriptor, view, at)
                view, at = view[done:], at + done
            with open(self.path + _RECORDS, "ab", buffering=0) as records:
                records.write(_RECORD.pack(start, at, self._check(start, content)))
        except OSError as error:
            raise _refused(self.path, error) from None
        self._spans = _joined([*self._spans, (start, at)])

    @property
    def is_complete(self) -> bool:
        """Whether all of the file was fetched."""
        return not any(self.missing(0, self.size))

    def close(self) -> None:
        os.close(self.descriptor)


def _refused(path: str, error: OSError) -> AccError:
    return AccError(
        f"{path}: the cache cannot be written: {error.strerror}; give another acc_cache_dir or a smaller "
        "acc_cache_size"
    )


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined


def _path_of(file: Placed) -> str:
    text = f"{file.source_path}\0{file.row.version:016x}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{file.mirror.cache}/{BLOCKS}/{digest[:2]}/{digest}"


def _descriptor(path: str, size: int) -> int:
    """A block, which is used now; made where there is none of this size."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(descriptor).st_size == size:
            os.utime(descriptor)
            return descriptor
        os.close(descriptor)
    _remove(path)
    make_directory(os.path.dirname(path))
    new_descriptor, name = new_file(path)
    try:
        os.ftruncate(new_descriptor, size)
        with contextlib.suppress(FileExistsError):  # another process was faster, and that one counts
            os.link(name, path)
    finally:
        os.close(new_descriptor)
        os.unlink(name)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _remove(path: str) -> None:
    """Remove a block, its bytes before what says that they are there."""
    for name in (path, path + _RECORDS):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _content(path: str) -> bytes:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read()
    return b""


def is_fetched(file: Placed) -> bool:
    """Whether there is a block of a file, whole or not."""
    return os.path.exists(_path_of(file))


def set_limit(cache: str, limit: int) -> None:
    """Say how many bytes the blocks below `cache` may take. Raises `AccError`, also as `check_cache`."""
    check_cache(cache)
    if _limit_of(cache) != limit:
        with whole_file(f"{cache}/{MIRRORS}/{_LIMIT}") as file:
            file.write(b"%d" % limit)


def _limit_of(cache: str) -> int:
    try:
        with open(f"{cache}/{MIRRORS}/{_LIMIT}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return DEFAULT_LIMIT


def count_written(cache: str, nbytes: int) -> None:
    """Count bytes that this process wrote; remove the oldest blocks where all take more than the limit."""
    global _written_bytes
    _written_bytes += nbytes
    limit = _limit_of(cache)
    if _written_bytes < min(_SWEEP, limit // 16):
        return
    _written_bytes = 0
    blocks = sorted(_blocks(f"{cache}/{BLOCKS}"))
    usage = sum(size for _, size, _ in blocks)
    if usage <= limit:
        return
    for used, size, path in blocks:
        if usage <= _AFTER_SWEEP * limit or used > time.time() - _IN_USE:
            break
        with contextlib.suppress(OSError):
            _remove(path)
            usage -= size


def _blocks(home: str) -> Iterator[tuple[float, int, str]]:
    """Time of the last use, bytes on the disk and path of each block."""
    with contextlib.suppress(OSError), os.scandir(home) as directories:
        for directory in directories:
            with contextlib.suppress(OSError), os.scandir(directory.path) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        if entry.name.endswith(_RECORDS):
                            continue
                        status = entry.stat()
                        yield status.st_mtime, status.st_blocks * 512, entry.path


# Bytes of files in stores brought to their blocks: side by side, some megabytes in memory at a time.


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


# A file of a store, read like any other: what is read is fetched first.


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
