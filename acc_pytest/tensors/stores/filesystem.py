"""`FileStore`: an fsspec file system at one address, asked with patience and with an end to it.

Every call is made again when it fails for a reason that may pass, and is given up when nothing came for a
minute. What the store says of it is part of the sentence; what it was asked with (keys, tokens) never is.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...errors import AccError, DumpError, FormatError
from .address import Address
from .connection import connected
from .hosts import NODE
from .pages import has_pages, page_after
from .patience import Answer, is_final, said, within

PATIENCE = 60.0
"""Seconds that a store may take for one answer, beside those that the bytes take at `_SLOWEST`."""
PAUSES = (0.1, 0.4, 1.6, 6.4)
"""Seconds before each further attempt."""
_SLOWEST = 1 << 18
"""Bytes a second."""
_FEW = 64
"""Directories that a dump is split into, to be listed one after the other."""
_LEVELS = 3


class StoredFile(NamedTuple):
    """A file: its name below its source, its bytes, 64 bits that change when it is written anew, and when it
    was written, in nanoseconds (0 where the store does not say)."""

    name: str
    size: int
    version: int
    modified: int


class Span(NamedTuple):
    """Bytes from `start` up to `stop` of a file."""

    name: str
    start: int
    stop: int


class FileStore:
    """The files below one address."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._system, self._root = connected(address)

    def whole(self) -> StoredFile | None:
        """The file at the address itself; `None` where it is a directory. Raises `DumpError` for nothing."""
        try:
            found = self._asked("looked at", lambda: self._system.info(self._root))
        except FileNotFoundError:
            raise DumpError(f"{self.address}: no such file or directory; correct the address") from None
        return None if found["type"] == "directory" else _stored("", found)

    def files(self) -> Iterator[StoredFile]:
        """All files below the address, a part of them in memory at a time. Raises `DumpError`."""
        if self.has_pages:
            yield from self._files(self._paged())
        else:
            yield from self._below([self._root], _LEVELS)

    @property
    def has_pages(self) -> bool:
        """Whether all files are listed by one request for each thousand."""
        return has_pages(self._system)

    def _paged(self) -> Iterator[Any]:
        last, more = "", True
        while more:
            asking = functools.partial(page_after, self._system, self._root, last)
            page, more = self._listed(self._root, asking)
            yield from page
            last = page[-1]["Key"] if page else ""

    def _below(self, waiting: list[str], levels: int) -> Iterator[StoredFile]:
        """Directories are listed one level after the other until they are many, then each with all below."""
        for _ in range(levels):
            further: list[str] = []
            for path in waiting:
                files, directories = self.level(path)
                yield from files
                further += directories
            waiting = further
            if len(waiting) > _FEW:
                break
        for path in waiting:
            yield from self._files(self._found_below(path))
            self._system.invalidate_cache()

    def _found_below(self, path: str) -> Any:
        return self._listed(path, lambda: self._system.find(path, detail=True)).values()

    def level(self, path: str = "") -> tuple[list[StoredFile], list[str]]:
        """The files right below a directory of the store, and the paths of its sub-directories."""
        path = path or self._root
        entries = self._listed(path, lambda: self._system.ls(path, detail=True))
        here = [entry for entry in entries if entry["name"].rstrip("/") != path.rstrip("/")]
        below = [entry["name"].rstrip("/") for entry in here if entry["type"] == "directory"]
        return list(self._files(here)), below

    def path_of(self, directory: str) -> str:
        """The path of the store of a directory below the address; "" is the address itself."""
        return self._path(directory)

    def name_of(self, path: str) -> str:
        """The name below the address of a path of the store."""
        return path.rstrip("/")[len(self._root.rstrip("/")) + 1 :]

    def _listed(self, path: str, call: Callable[[], Any]) -> Any:
        try:
            return self._asked("listed", call)
        except FileNotFoundError:
            raise DumpError(f"{self.address}: {path!r:.200} was deleted while it was listed") from None

    def _files(self, entries: Any) -> Iterator[StoredFile]:
        for entry in entries:
            if entry["type"] != "directory" and not entry["name"].endswith("/"):
                yield _stored(self.name_of(entry["name"]), entry)

    def stat(self, name: str) -> StoredFile | None:
        """What the store says of a file now; `None` where there is none."""
        try:
            path = self._path(name)
            return _stored(name, self._asked("looked at", lambda: self._system.info(path)))
        except FileNotFoundError:
            return None

    def ranges(self, spans: Sequence[Span]) -> list[bytes | AccError]:
        """The bytes of each span, read side by side, or why they could not be read."""
        found: list[bytes | AccError] = [b""] * len(spans)
        left = list(range(len(spans)))
        for pause in (*PAUSES, None):
            answers = self._attempt([spans[number] for number in left])
            again = []
            for number, answer in zip(left, answers):
                span = spans[number]
                if isinstance(answer, bytes):
                    found[number] = self._checked(span, answer)
                    continue
                found[number] = FormatError(f"{self.address.joined(span.name)}: {self._refusal(answer)}")
                if not is_final(answer):
                    again.append(number)
            left = again
            if not left or pause is None:
                return found
            time.sleep(pause)
        raise AssertionError  # the last pause is None

    def _attempt(self, spans: Sequence[Span]) -> Sequence[Any]:
        paths, starts, stops = [self._path(one.name) for one in spans], [], []
        for span in spans:
            starts.append(span.start)
            stops.append(span.stop)
        seconds = PATIENCE + sum(span.stop - span.start for span in spans) / _SLOWEST
        try:
            return within(seconds, lambda: self._system.cat_ranges(paths, starts, stops, on_error="return"))
        except Exception as error:  # noqa: BLE001 - what a file system raises for all is the answer to each
            return [error] * len(spans)

    def _refusal(self, error: Exception) -> str:
        if isinstance(error, FileNotFoundError):
            return "is no longer there; was the dump deleted while in use?"
        return f"cannot be read{'' if self.address.protocol == NODE else ' from the store'}: {said(error)}"

    def _checked(self, span: Span, answer: bytes) -> bytes | AccError:
        if len(answer) == span.stop - span.start:
            return answer
        return FormatError(
            f"{self.address.joined(span.name)}: became shorter while it was read; is the dump being written?"
        )

    def get(self, name: str, most: int) -> bytes:
        """A file, but no more than so many bytes of it. Raises `FormatError`."""
        found = self.stat(name)
        if found is None:
            raise FormatError(f"{self.address.joined(name)}: no such file in the store")
        answer = self.ranges([Span(name, 0, min(found.size, most))])[0] if found.size else b""
        if isinstance(answer, AccError):
            raise answer
        return answer

    def put(self, name: str, source: str) -> None:
        """Upload a file of the disk; it is in the store whole or not at all. Raises `AccError`."""
        path = self._path(name)
        seconds = PATIENCE + os.path.getsize(source) / _SLOWEST
        self._asked("written", lambda: self._system.put_file(source, path), seconds, name)

    def make_room(self) -> None:
        """Make the directory of the address, in stores that have directories."""
        self._asked("written", lambda: self._system.makedirs(self._root, exist_ok=True))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _asked(
        self, done: str, call: Callable[[], Answer], seconds: float | None = None, name: str = ""
    ) -> Answer:
        """The answer to a call. Raises `FileNotFoundError` as it comes, `DumpError` for everything else."""
        for pause in (*PAUSES, None):
            try:
                return within(PATIENCE if seconds is None else seconds, call)
            except FileNotFoundError:
                raise
            except Exception as error:  # noqa: BLE001 - file systems document no errors of theirs
                if pause is None or is_final(error):
                    raise DumpError(f"{self.address.joined(name)}: cannot be {done}: {said(error)}") from None
            time.sleep(pause)
        raise AssertionError  # the last pause is None


@functools.lru_cache(maxsize=64)
def _store_of(address: Address, _process: int) -> FileStore:
    return FileStore(address)


def store_of(address: Address) -> FileStore:
    """The store at an address, one for each process. Raises `DumpError` where a package is missing."""
    return _store_of(address, os.getpid())


_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


def _stored(name: str, entry: Any) -> StoredFile:
    """The file that an entry of fsspec is. The keys of such entries are those of the stores."""
    written = next((entry[key] for key in _TIMES if entry.get(key)), None)
    modified = _nanoseconds(written)
    # One store gives one time as a datetime here and as a float there.
    time_tag = str(modified // 1_000_000) if modified else str(written or "")
    tag = next((str(entry[key]).strip('"') for key in _TAGS if entry.get(key)), time_tag)
    size = int(entry.get("size") or 0)
    return StoredFile(name, size, version_number(tag, size), modified)


def version_number(tag: str, size: int) -> int:
    """64 bits of what tells the versions of a file apart."""
    text = f"{size} {tag}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _nanoseconds(found: Any) -> int:
    if hasattr(found, "timestamp"):
        found = found.timestamp()
    return round(found * 1000) * 1_000_000 if isinstance(found, (int, float)) else 0


def matching(pattern: Address) -> list[str]:
    """The addresses that a pattern with `*`, `?` or `[...]` means. Raises `DumpError`."""
    system, path = connected(pattern)
    try:
        found = within(PATIENCE, lambda: system.glob(path))
    except Exception as error:  # noqa: BLE001 - as above
        raise DumpError(f"{pattern}: cannot be listed: {said(error)}") from None
    before = len(pattern.rest) - len(path.lstrip("/"))
    return [f"{pattern.protocol}://{pattern.rest[:before]}{one.lstrip('/')}" for one in found]
