"""`keep`: the files of a dump into the stores of a kept one, in one pass; whole, or not there at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from ...dumps import open_dump
from ...dumps.discovery import locate
from ...dumps.extent import extent_of
from ...dumps.listing import Listing
from ...errors import AccError, DumpError, SettingsError
from ...tensors.file_bytes import opened
from ...tensors.json_file import write_json
from ...tensors.kept_file import modified
from ...tensors.kept_index import FILES, FORMAT, INDEX, VERSION, check_of
from ...tensors.whole_file import DIRECTORY_MODE, FILE_MODE, make_directory
from .regions import BYTES, Region, regions_of
from .selection import WHOLE, DumpPart, left_out, notes_on
from .stores import Pieces, Tensors
from .walk import Walk, WalkEntry

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
    extent = extent_of(layout)
    dump = open_dump(str(extent.root) if selection else path)
    top = str(extent.top)
    name = os.path.basename(top) or "dump"
    walk = Walk(top, [str(extent_path) for extent_path in extent.paths], left_out(dump, selection))
    with new_directory(out or f"{name}_kept") as home:
        report = Kept(home.path, dump.kind)
        _Keeping(home.staged, name, report).run(walk, os.path.relpath(extent.root, top), notify)
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
        head = {"format": FORMAT, "version": VERSION, "kind": self._report.kind, "root": root}
        head["check"] = check_of(self._index)
        write_json(f"{self._home}/{INDEX}", head, "files", self._index.items())
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
