"""The index of a kept dump: files that lie as stretches of a few large ones, byte for byte.

    DIR/acc_kept.json                   the index: of each file with tensors, when it was written, and the
                                        stretches that it is made of; a check sum of all these
    DIR/tensors-00001.safetensors, ...  tensors, each of them once
    DIR/pieces.bin                      short pieces: headers of files, ends of archives, small tensors
    DIR/kept_files/{dump}/...           the directories of the dump, and its texts as they were

A file that the index lists is not on the disk. Whoever opens `DIR/kept_files/{dump}/.../x.pth` by
`file_bytes.opened` gets its bytes all the same, so that every reader of a format, every layout of directories
and all that tells an operator by its files work on a kept dump as they do on the dump that it was made of.
A copy of what the readers make of a dump (trees, slots, calls) would have to know every kind of dump, and
would lose what none of them knows yet.

Nothing in an index is a path: files are numbers, and the names in it are only ever compared.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import AccError, FormatError
from .json_file import read_form
from .location import placed_at
from .sized_file import SizedFile

if TYPE_CHECKING:
    from ..remote.stores.blocks import StoreFile


FORMAT = "acc_pytest kept dump"
VERSION = 1
INDEX = "acc_kept.json"
FILES = "kept_files"
PIECES = 0
"""The number of the file of short pieces; tensors are in the files 1, 2, ..."""
_INSIDE = f"/{FILES}/"
_MOST_STRETCHES = 10_000
_LARGEST = 1 << 62


class ByteRange(NamedTuple):
    """So many bytes of a file."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, eq=False, slots=True)
class KeptIndex:
    """`kind` and `root` (below `kept_files`) of the dump; its files by name below `kept_files`; `names` and
    `directories` by the directory that they are in."""

    home: str
    kind: str
    root: str
    files: Mapping[str, Any]
    names: Mapping[str, tuple[str, ...]]
    directories: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class IndexFile:
    """The fields of an index; one of an early version has no check sum."""

    kind: str
    root: str
    files: Mapping[str, Any]
    check: str | None = None


def check_of(files: Mapping[str, Any]) -> str:
    """A check sum of what an index says of its files."""
    text = json.dumps(files, sort_keys=True).encode("ascii")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def store_name(number: int) -> str:
    """The file of a number in an index."""
    return f"tensors-{number:05d}.safetensors" if number else "pieces.bin"


def read_index(home: str) -> KeptIndex:
    """The index of the kept dump at `home`. Raises `FormatError` for a broken one, `AccError` for none."""
    return _index_as_of(home, _version(home))


def stretches(path: str) -> tuple[ByteRange, ...] | None:
    """The byte ranges that make up a file of a kept dump; `None` for every file that is on the disk.

    Raises `FormatError` for a broken index.
    """
    index_entry = _index_entry(path)
    if index_entry is None:
        return None
    index, name = index_entry
    listed = index.files[name]
    if type(listed) is not list or not 0 < len(listed) <= _MOST_STRETCHES or not _natural(listed[0]):
        raise FormatError(f"{index.home}/{INDEX}: {name!r:.200} must be a list of a time and stretches")
    byte_ranges = []
    for entry in listed[1:]:
        if type(entry) is not list or len(entry) != 3 or not all(_natural(number) for number in entry):
            raise FormatError(f"{index.home}/{INDEX}: {name!r:.200} has a stretch that is not three numbers")
        number, offset, length = entry
        byte_ranges.append(ByteRange(f"{index.home}/{store_name(number)}", offset, length))
    return tuple(byte_ranges)


def names_in(directory: str) -> tuple[str, ...]:
    """Names of the files that only the index has in a directory. Raises `FormatError` for a broken index."""
    if f"/{FILES}" not in directory:
        return ()
    home, name = _split(f"{directory.rstrip('/')}/")
    return read_index(home).names.get(name.rstrip("/"), ()) if home else ()


def kept_version(path: str) -> tuple[int, ...]:
    """The version of the index of a file, which changes with it; empty for a file that no index has."""
    try:
        index_entry = _index_entry(path)
    except AccError:
        return ()
    return _version(index_entry[0].home) if index_entry is not None else ()


def kept_time(path: str) -> int:
    """The time at which the source of a file of a kept dump was written; 0 for every other file."""
    try:
        index_entry = _index_entry(path)
    except AccError:
        return 0
    listed = index_entry[0].files[index_entry[1]] if index_entry is not None else None
    return listed[0] if type(listed) is list and listed and _natural(listed[0]) else 0


def _index_entry(path: str) -> tuple[KeptIndex, str] | None:
    if _INSIDE not in path:
        return None
    home, name = _split(path)
    index = read_index(home) if home else None
    return (index, name) if index is not None and name in index.files else None


def _split(path: str) -> tuple[str, str]:
    """The kept dump that a path lies in, and the rest of the path; both empty for any other path."""
    start = path.find(_INSIDE)
    while start >= 0:
        home = path[:start]
        if _version(home):
            return home, path[start + len(_INSIDE) :]
        start = path.find(_INSIDE, start + 1)
    return "", ""


def is_kept(path: str) -> bool:
    """Whether a path lies among the files that a kept dump was made of."""
    return bool(kept_home(path))


def kept_home(path: str) -> str:
    """The directory of the kept dump among whose files a path lies; empty for any other path."""
    return _split(f"{path.rstrip('/')}/")[0] if f"/{FILES}" in path else ""


def directories_in(directory: str) -> tuple[str, ...]:
    """Names of the sub-directories that the index has in a directory: a store has none without files.

    Raises `FormatError` for a broken index.
    """
    if f"/{FILES}" not in directory:
        return ()
    home, name = _split(f"{directory.rstrip('/')}/")
    return read_index(home).directories.get(name.rstrip("/"), ()) if home else ()


def _version(home: str) -> tuple[int, ...]:
    place = f"{home}/{INDEX}"
    placed = placed_at(place)
    if placed is not None and not placed.path:
        return placed.row.size, placed.row.version
    try:
        status = os.stat(place if placed is None else placed.path)
    except (OSError, ValueError):
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino


@functools.lru_cache(maxsize=8)
def _index_as_of(home: str, _version: tuple[int, ...]) -> KeptIndex:
    path = f"{home}/{INDEX}"
    stated = read_form(IndexFile, path, FORMAT, VERSION)
    root, files = stated.root, stated.files
    try:
        altered = stated.check not in (None, check_of(files))
    except RecursionError:
        altered = True
    if altered:
        raise FormatError(f"{path}: does not fit its own check sum; make it again with acc convert --to acc")
    names: dict[str, list[str]] = {}
    for name in (root, *files):
        if any(segment in ("", ".", "..") or "\0" in segment for segment in name.split("/")) or not _can_be(
            name
        ):
            raise FormatError(f"{path}: every name in it must be a path below {FILES}, got {name!r:.200}")
    for name in files:
        directory, _, base = name.rpartition("/")
        names.setdefault(directory, []).append(base)
    by_directory = {where: tuple(bases) for where, bases in names.items()}
    return KeptIndex(home, stated.kind, root, files, by_directory, _directories(names))


def _directories(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    children: dict[str, set[str]] = {}
    for name in names:
        while name:
            parent, _, base = name.rpartition("/")
            siblings = children.setdefault(parent, set())
            if base in siblings:
                break
            siblings.add(base)
            name = parent
    return {where: tuple(bases) for where, bases in children.items()}


def _can_be(name: str) -> bool:
    """Whether the system can have a name: one of bytes that are no text can, half a character cannot."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _natural(number: object) -> bool:
    return type(number) is int and 0 <= number <= _LARGEST


# A file of a kept dump, read from the stretches that it is made of.


class KeptFile(SizedFile):
    """The bytes of `byte_ranges`, one after the other. `read(n)` gives n bytes but at the end, as of a file.

    Raises `FormatError` where a stretch cannot be read to its end.
    """

    def __init__(self, path: str, byte_ranges: Sequence[ByteRange]) -> None:
        super().__init__(sum(stretch.length for stretch in byte_ranges))
        self._path = path
        self._byte_ranges = byte_ranges
        self._open: dict[str, int] = {}
        self._remote: dict[str, StoreFile] = {}

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        done, begin = 0, 0
        for stretch in self._byte_ranges:
            inside = self._place - begin
            begin += stretch.length
            if done < len(into) and 0 <= inside < stretch.length:
                count = min(len(into) - done, stretch.length - inside)
                self._fill(into[done : done + count], stretch, inside)
                done += count
                self._place += count
        return done

    def _fill(self, into: memoryview, stretch: ByteRange, inside: int) -> None:
        descriptor = self._descriptor(stretch.path, stretch.offset + inside, len(into))
        done = 0
        while done < len(into):
            read = os.preadv(descriptor, [into[done:]], stretch.offset + inside + done)
            if not read:
                raise FormatError(
                    f"{stretch.path}: is shorter than the index of its dump says, so {self._path} cannot be "
                    "read; was the dump copied whole?"
                )
            done += read

    def _descriptor(self, path: str, offset: int, nbytes: int) -> int:
        placed = placed_at(path)
        if placed is not None and not placed.path:
            if path not in self._remote:
                from ..remote.stores.blocks import StoreFile  # numpy is imported by those who read stores

                self._remote[path] = StoreFile(placed)
            return self._remote[path].descriptor_with(offset, nbytes)
        if path not in self._open:
            disk_path = path if placed is None else placed.path
            try:
                self._open[path] = os.open(disk_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise FormatError(f"{path}: cannot be opened: {error.strerror}") from error
        return self._open[path]

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
        while self._remote:
            self._remote.popitem()[1].close()
        super().close()


def whereabouts(byte_ranges: Sequence[ByteRange], offset: int, nbytes: int) -> tuple[str, int] | None:
    """The file in which bytes of a kept file lie side by side, and where; `None` where they do not."""
    begin = 0
    for stretch in byte_ranges:
        inside = offset - begin
        if inside >= 0 and inside + nbytes <= stretch.length:
            return stretch.path, stretch.offset + inside
        begin += stretch.length
    return None


def file_size(path: str) -> int:
    """Bytes of a file, wherever it lies. Raises `OSError` or `FormatError`."""
    byte_ranges = stretches(path)
    if byte_ranges is not None:
        return sum(stretch.length for stretch in byte_ranges)
    placed = placed_at(path)
    return os.stat(path).st_size if placed is None else placed.row.size


def modified(path: str) -> int:
    """The time at which a file was written, in nanoseconds; in a kept dump, its source. 0 for none."""
    placed = placed_at(path)
    if placed is not None:
        return placed.row.modified
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return kept_time(path)
