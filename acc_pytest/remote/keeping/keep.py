"""`keep`: the files of a dump into the stores of a kept one, in one pass; whole, or not there at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from ...base.forms import written
from ...dumps import open_dump
from ...dumps.base import Listing
from ...dumps.discovery import locate
from ...errors import AccError, DumpError, FormatError, SettingsError, guarded
from ...tensors.address import path_on_disk
from ...tensors.atb_bin import located
from ...tensors.file_bytes import opened
from ...tensors.formats import format_of
from ...tensors.header import TensorHeader
from ...tensors.json_file import header, write_json
from ...tensors.kept_dump import (
    FILES,
    FORMAT,
    INDEX,
    PIECES,
    VERSION,
    IndexFile,
    check_of,
    kept_version,
    modified,
    names_in,
    read_index,
    store_name,
)
from ...tensors.ref import TensorRef
from ...tensors.whole_file import DIRECTORY_MODE, FILE_MODE, make_directory
from .selection import WHOLE, DumpPart, left_out, notes_on

_PIECE = 1 << 16
"""Bytes up to which what lies around tensors is a piece; more is stored as a tensor of bytes."""
_LEAST = 256
"""Bytes from which a tensor is worth a line in a safetensors header."""
_BLOCK = 1 << 20


@dataclass(slots=True)
class Kept:
    """A kept dump: its kind, files and their bytes, the bytes that they take now, what was left
    out."""

    path: str
    kind: str
    files: int = 0
    before: int = 0
    after: int = 0
    notes: tuple[str, ...] = ()


def keep(
    path: str,
    out: str = "",
    notify: Callable[[Kept], None] = lambda report: None,
    selection: DumpPart = WHOLE,
) -> Kept:
    """Write the dump that `path` means as a kept dump to the directory `out`; `notify` hears of each file.

    Without `out` it is `{name of the dump}_kept` in the working directory. With a `selection` no more is kept
    than it needs. Raises `DumpError` for what is no dump, `SettingsError` where something lies at `out` or
    nothing is selected, `AccError` naming the file where the system refuses; then, and when it is
    interrupted, nothing is left of it.
    """
    layout = locate(path, Listing())
    dump = open_dump(str(layout.root) if selection else path)
    top = str(layout.top)
    name = os.path.basename(top) or "dump"
    walk = Walk(top, [*map(str, layout.paths())], left_out(dump, selection))
    with new_directory(out or f"{name}_kept") as home:
        report = Kept(home.path, dump.kind)
        _Keeping(home.staged, name, report).run(walk, os.path.relpath(layout.root, top), notify)
        if selection:
            report.notes = notes_on(open_dump(home.staged), selection, selection.names(dump.ranks))
    report.notes += tuple(f"left out, {reason}: {count}" for reason, count in walk.left_out.items())
    return report


@dataclass(frozen=True, slots=True)
class NewDirectory:
    """A directory under way: where it is made, and where it goes."""

    staged: str
    path: str


@contextlib.contextmanager
def new_directory(path: str) -> Iterator[NewDirectory]:
    """A directory that takes its place when the block ends well, and else is gone with all that is in it.

    Raises `SettingsError` where something lies there, `AccError` where the system refuses.
    """
    target = os.path.abspath(path)
    if os.path.lexists(target):
        raise SettingsError(f"{path}: is there already; give another directory, or remove it first")
    parent, base = os.path.split(target)
    staged = os.path.join(parent, f".{base[:40]}.{secrets.token_hex(4)}")
    try:
        make_directory(parent)
        os.mkdir(staged, DIRECTORY_MODE)
        yield NewDirectory(staged, target)
        os.rename(staged, target)
    except BaseException as error:
        shutil.rmtree(staged, ignore_errors=True)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise AccError(f"{path}: cannot be written: {reason}; nothing was kept") from error
        raise


class _Keeping:
    """The stores of a kept dump, while files go into them."""

    def __init__(self, home: str, top: str, report: Kept) -> None:
        self._home = home
        self._top = top
        self._report = report
        self._pieces = Pieces(home)
        self._tensors = Tensors(home)
        self._index: dict[str, list[int | list[int]]] = {}

    def run(self, walk: Walk, root: str, notify: Callable[[Kept], None]) -> None:
        """Take all files along, and write the index."""
        make_directory(f"{self._home}/{FILES}/{self._top}")
        for entry in walk:
            if entry.source:
                self._take(entry)
                self._report.files += 1
                self._report.after = self._pieces.size + self._tensors.size
                notify(self._report)
            else:
                make_directory(self._place(entry.name))
        if not self._report.files:
            raise DumpError(f"{walk}: holds no file")
        self._tensors.close()
        self._pieces.close()
        root = self._top if root == "." else f"{self._top}/{root}"
        stated = written(IndexFile(self._report.kind, root, self._index, check_of(self._index)))
        write_json(f"{self._home}/{INDEX}", header(FORMAT, VERSION) | stated, "files")
        self._report.after = sum(
            os.path.getsize(os.path.join(where, name))
            for where, _, names in os.walk(self._home)
            for name in names
        )

    def _place(self, name: str) -> str:
        return os.path.normpath(f"{self._home}/{FILES}/{self._top}/{name}")

    def _take(self, entry: WalkEntry) -> None:
        with opened(entry.source) as (file, size):
            self._report.before += size
            regions = regions_of(entry.source, size)
            if regions is None:
                copy_of(entry.source, self._place(entry.name))
                return
            make_directory(os.path.dirname(self._place(entry.name)))
            name = os.path.normpath(f"{self._top}/{entry.name}")
            stored = [self._stored(file, entry.source, name, region) for region in _with_gaps(regions, size)]
            self._index[name] = [modified(entry.source), *stored]

    def _stored(self, file: BinaryIO, source: str, name: str, region: Region) -> list[int]:
        short = region.nbytes < _LEAST or (region.dtype == BYTES and region.nbytes <= _PIECE)
        if not short:
            called = f"{name}:{region.member}" if region.member else name
            return self._tensors.add(file, source, called, region)
        file.seek(region.offset)
        data = file.read(region.nbytes)
        if len(data) != region.nbytes:
            raise DumpError(f"{source}: became shorter while it was read; is the dump still being written?")
        return self._pieces.add(data)


def _with_gaps(regions: Sequence[Region], size: int) -> Iterator[Region]:
    """The regions, with what lies before, between and behind them."""
    end = 0
    for region in (*regions, None):
        begin = size if region is None else region.offset
        if begin > end:
            yield Region(end, begin - end, "", BYTES, (begin - end,))
        if region is not None:
            yield region
            end = region.offset + region.nbytes


def copy_of(source: str, path: str) -> int:
    """Copy a file, of a kept dump or any other, to a new path; returns its bytes."""
    make_directory(os.path.dirname(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with opened(source) as (file, size), os.fdopen(os.open(path, flags, FILE_MODE), "wb") as copy:
        while block := file.read(_BLOCK):
            copy.write(block)
    time = modified(source)
    os.utime(path, ns=(time, time))
    return size


# The directories and files of a dump, those of a kept dump included.


class WalkEntry(NamedTuple):
    """A directory or file of a dump: its name below the top, and where to read it; empty for a directory."""

    name: str
    source: str


class Walk:
    """The files and directories at and below `paths`, named from `top`; what is `unwanted` is not met.
    `left_out` counts what is no file, by the reason."""

    def __init__(self, top: str, paths: Sequence[str], unwanted: frozenset[str] = frozenset()) -> None:
        self._top = top
        self._paths = paths
        self._unwanted = unwanted
        self.left_out: dict[str, int] = {}

    def __iter__(self) -> Iterator[WalkEntry]:
        """Directories come before what is in them. Raises `DumpError` for one that cannot be listed."""
        names = set()
        for path in self._paths:
            for entry in self._tree(path, (os.path.realpath(path),)):
                if entry.name not in names:
                    names.add(entry.name)
                    yield entry

    def _tree(self, path: str, ancestors: tuple[str, ...]) -> Iterator[WalkEntry]:
        if path in self._unwanted:
            return
        if not os.path.isdir(path):
            yield from self._file(path)
            return
        yield WalkEntry(os.path.relpath(path, self._top), "")
        try:
            names = sorted((*os.listdir(path), *names_in(path)))
        except OSError as error:
            raise DumpError(f"{path}: cannot be listed: {error.strerror}; check its permissions") from error
        for name in names:
            child = f"{path}/{name}"
            real = os.path.realpath(child)
            is_outside = real in ancestors or not real.startswith(f"{os.path.realpath(self._top)}/")
            if os.path.islink(child) and os.path.isdir(child) and is_outside:
                self._leave_out("links to directories above them or outside of the dump")
                continue
            yield from self._tree(child, (*ancestors, real))

    def _file(self, path: str) -> Iterator[WalkEntry]:
        name = os.path.relpath(path, self._top)
        if kept_version(path):
            yield WalkEntry(name, path)
            return
        try:
            # The probe's links to absolute paths break when a dump is moved, and are found all the same.
            source = located(path, "") if path.endswith(".bin") else path
            regular = stat.S_ISREG(os.stat(source).st_mode)
        except (OSError, FormatError):
            self._leave_out("links to nowhere")
            return
        if regular:
            yield WalkEntry(name, source)
        else:
            self._leave_out("neither files nor directories")

    def _leave_out(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


# The files that a kept dump's bytes go to: tensors in safetensors files, everything else in one of pieces.
#
# Equal bytes are stored once. One block is in memory at a time.


FIRST_HEADER = 1 << 12
LARGEST_HEADER = 1 << 20
"""Bytes for the header of the first safetensors file and of the last; each file has twice those of the file
before. A header is written last, over blanks, which the format allows at its end."""
_LARGEST = 2 << 30
"""Bytes from which on the next tensor goes to another file."""
_LENGTH = 8


def new_store(home: str, number: int) -> BinaryIO:
    """An empty file for the bytes of a number in the index."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.fdopen(os.open(f"{home}/{store_name(number)}", flags, FILE_MODE), "w+b")


class Pieces:
    """The short pieces, each once."""

    def __init__(self, home: str) -> None:
        self._file = new_store(home, PIECES)
        self._stretches: dict[bytes, int] = {}
        self.size = 0

    def add(self, data: bytes) -> list[int]:
        """The stretch where these bytes lie."""
        key = hashlib.blake2b(data, digest_size=32).digest()
        if key not in self._stretches:
            self._stretches[key] = self.size
            self._file.write(data)
            self.size += len(data)
        return [PIECES, self._stretches[key], len(data)]

    def close(self) -> None:
        """All of it is on the disk, or `OSError` is raised."""
        self._file.close()


class Tensors:
    """The tensors, each once; a file of them after the other."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._stretches: dict[bytes, list[int]] = {}
        self._file: BinaryIO | None = None
        self._number = 0
        self._header = 0
        self._end = 0
        self._entries: dict[str, object] = {}
        self._described = 0
        self.size = 0

    def add(self, source: BinaryIO, path: str, name: str, region: Region) -> list[int]:
        """The stretch where the bytes of a region lie; `name` is what the tensor is called if it is new.

        Raises `FormatError` for a file that ends before its region does.
        """
        name = name.encode("utf-8", "backslashreplace").decode("utf-8")
        entry = {"dtype": region.dtype, "shape": list(region.shape), "data_offsets": [0, 0]}
        described = len(json.dumps({name: entry})) + 2 * len(str(_LARGEST + region.nbytes))
        # The file for the next tensor, whose description takes so many characters.
        full = self._described + described > self._header - _LENGTH - 2 or self._end > _LARGEST
        if self._file is None or full:
            self.close()
            self._number += 1
            self._header = max(min(FIRST_HEADER << (self._number - 1), LARGEST_HEADER), 2 * described)
            self._file = new_store(self._home, self._number)
            self._file.seek(self._header)
            self._end, self._described = self._header, 0
        file = self._file
        start = self._end
        digest = self._copied(source, path, region, file)
        stretch = self._stretches.get(digest)
        if stretch is not None:
            file.seek(start)
            file.truncate()
            self._end = start
            return stretch
        while name in self._entries:
            name += "#"
        entry["data_offsets"] = [start - self._header, self._end - self._header]
        self._entries[name] = entry
        self._described += described
        self.size += region.nbytes
        self._stretches[digest] = [self._number, start, region.nbytes]
        return self._stretches[digest]

    def _copied(self, source: BinaryIO, path: str, region: Region, file: BinaryIO) -> bytes:
        digest = hashlib.blake2b(digest_size=32)
        source.seek(region.offset)
        left = region.nbytes
        while left:
            block = source.read(min(left, _BLOCK))
            if not block:
                raise FormatError(
                    f"{path}: became shorter while it was read; is the dump still being written?"
                )
            digest.update(block)
            file.write(block)
            left -= len(block)
        self._end += region.nbytes
        return digest.digest()

    def close(self) -> None:
        """The header of the last file is written; all of it is on the disk, or `OSError` is raised."""
        file, self._file = self._file, None
        if file is None:
            return
        with file:
            text = json.dumps(self._entries, separators=(",", ":")).encode("ascii")
            header = text.ljust(self._header - _LENGTH)
            file.seek(0)
            file.write(len(header).to_bytes(_LENGTH, "little") + header)
        self._entries = {}


# The places of tensors in a file, and whether a kept dump may hold the file in pieces at all.


_IN_PIECES = frozenset({"ATB", "numpy", "torch", "safetensors", "GE record", "info"})
"""Formats whose readers open files by `file_bytes.opened` alone."""
_TO_SAFETENSORS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
}
BYTES = "U8"


@dataclass(frozen=True, slots=True)
class Region:
    """A tensor in a file: its bytes, its member, and how safetensors calls its type."""

    offset: int
    nbytes: int
    member: str
    dtype: str
    shape: tuple[int, ...]


def regions_of(path: str, size: int) -> tuple[Region, ...] | None:
    """The tensors in a file by their places, none overlapping; `None` for a file that is kept as it is.

    That is one of another format, and a torch file that only `torch.load` understands, which takes files.
    Of a file that cannot be understood nothing is a tensor; its bytes are kept all the same.
    """
    try:
        name = format_of(path).name
    except AccError:
        return None
    if name not in _IN_PIECES:
        return None
    try:
        with guarded(f"reading {path}", (OSError,)):
            regions = list(_tensors(path, name))
    except (AccError, OSError):
        regions = []
    if name == "torch" and not regions:
        return None
    return tuple(_apart(regions, size))


def _tensors(path: str, name: str) -> Iterator[Region]:
    for member in _members(path, name):
        header = TensorRef(path, member).header()
        if header.payload == "data" and header.offset:
            yield Region(header.offset, header.nbytes, member, *_described(header))


def _members(path: str, name: str) -> Sequence[str]:
    if name == "GE record":
        from ...tensors.ge_file import members

        return members(path)
    if name == "safetensors":
        from ...tensors.safetensors_file import keys

        return keys(path)
    return ("",)


def _described(header: TensorHeader) -> tuple[str, tuple[int, ...]]:
    dtype = _TO_SAFETENSORS.get(header.dtype.name)
    if dtype is None or math.prod(header.shape) * header.dtype.bits != 8 * header.nbytes:
        return BYTES, (header.nbytes,)
    return dtype, header.shape


def _apart(regions: Sequence[Region], size: int) -> Iterator[Region]:
    end = 0
    for region in sorted(regions, key=lambda region: region.offset):
        if region.nbytes and end <= region.offset and region.offset + region.nbytes <= size:
            end = region.offset + region.nbytes
            yield region


# `restore`: the files of a kept dump as they were.


def restore(path: str, out: str = "") -> Kept:
    """Write the files of the kept dump `path` below the directory `out`, byte for byte.

    Without `out` it is what the dump was called, in the working directory. Raises `DumpError` for what is no
    kept dump, else as `keep`.
    """
    home = os.path.abspath(path_on_disk(path))
    if not os.path.isfile(f"{home}/{INDEX}"):
        raise DumpError(f"{path}: is no kept dump, it has no {INDEX}; acc convert --to acc makes one")
    index = read_index(home)
    name = index.root.partition("/")[0]
    top = f"{home}/{FILES}/{name}"
    with new_directory(out or name) as new:
        report = Kept(new.path, index.kind)
        for entry in Walk(top, [top]):
            place = os.path.normpath(f"{new.staged}/{entry.name}")
            if not entry.source:
                os.makedirs(place, exist_ok=True)
                continue
            report.files += 1
            report.after += copy_of(entry.source, place)
        report.before = sum(
            os.path.getsize(f"{where}/{file}") for where, _, files in os.walk(home) for file in files
        )
    return report
