"""`FileStore`: an fsspec file system at one address, asked with patience and with an end to it.

Every call is made again for 20 seconds when it fails for a reason that may pass; each attempt has a minute.
A file that failed is not asked for again in this run, nor is any for a while after several. What the store
says of it is part of the sentence; what it was asked with (keys, tokens) never is.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ...errors import AccError, DumpError, FormatError
from ...tensors.address import Address
from .hosts import NODE, HostFiles, HostIsGone

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
    """Bytes from `start` up to `stop` of a file, which must be of this version."""

    name: str
    start: int
    stop: int
    version: int


class FileStore:
    """The files below one address."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._system, self._root = connected(address)
        self._begin()

    def file_at_root(self) -> StoredFile | None:
        """The file at the address itself; `None` where it is a directory. Raises `DumpError` for nothing.

        This is how a dump begins to be opened: what could not be read before is asked for again.
        """
        self._begin()
        try:
            entry = self._answer("looked at", lambda: self._system.info(self._root))
        except FileNotFoundError:
            raise DumpError(f"{self.address}: no such file or directory; correct the address") from None
        return None if entry["type"] == "directory" else _stored("", entry)

    def _begin(self) -> None:
        self._patience = Patience()
        self._failed: dict[str, AccError] = {}
        self._versions: dict[str, int] = {}

    def files(self) -> Iterator[StoredFile]:
        """All files below the address, a part of them in memory at a time. Raises `DumpError`."""
        if self.has_pages:
            yield from self._files(self._paged())
        else:
            yield from self._walked([self._root], _LEVELS)

    @property
    def has_pages(self) -> bool:
        """Whether all files are listed by one request for each thousand."""
        return hasattr(self._system, "call_s3")

    def _paged(self) -> Iterator[Any]:
        last, is_partial = "", True
        while is_partial:
            asking = functools.partial(page_after, self._system, self._root, last)
            page, is_partial = self._listed(self._root, asking)
            yield from page
            last = page[-1]["Key"] if page else ""

    def _walked(self, waiting: list[str], levels: int) -> Iterator[StoredFile]:
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
            entries = self._listed(path, functools.partial(self._system.find, path, detail=True))
            yield from self._files(entries.values())
            self._system.invalidate_cache()

    def level(self, path: str = "") -> tuple[list[StoredFile], list[str]]:
        """The files right below a directory of the store, and the paths of its sub-directories."""
        path = path or self._root
        entries = self._listed(path, lambda: self._system.ls(path, detail=True))
        children = [entry for entry in entries if entry["name"].rstrip("/") != path.rstrip("/")]
        directories = [entry["name"].rstrip("/") for entry in children if entry["type"] == "directory"]
        return list(self._files(children)), directories

    def path_of(self, name: str) -> str:
        """The path of the store of a file or directory below the address; "" is the address itself."""
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def name_of(self, path: str) -> str:
        """The name below the address of a path of the store."""
        return path.rstrip("/")[len(self._root.rstrip("/")) + 1 :]

    def _listed(self, path: str, call: Callable[[], Any]) -> Any:
        try:
            return self._answer("listed", call)
        except FileNotFoundError:
            raise DumpError(f"{self.address}: {path!r:.200} was deleted while it was listed") from None

    def _files(self, entries: Any) -> Iterator[StoredFile]:
        for entry in entries:
            if entry["type"] != "directory" and not entry["name"].endswith("/"):
                yield _stored(self.name_of(entry["name"]), entry)

    def stat(self, name: str) -> StoredFile | None:
        """The entry of a file in the store now; `None` where there is none. Raises `DumpError`."""
        if self._patience.is_out:
            raise DumpError(self._unasked(name))
        try:
            path = self.path_of(name)
            return _stored(name, self._answer("looked at", lambda: self._system.info(path)))
        except FileNotFoundError:
            return None

    def version_of(self, name: str) -> int:
        """The version of a file when it was first asked for; 0 where there was none. Raises `DumpError`."""
        if name not in self._versions:
            file = self.stat(name)
            self._versions[name] = file.version if file is not None else 0
        return self._versions[name]

    def ranges(self, spans: Sequence[Span]) -> list[bytes | AccError]:
        """The bytes of each span, read side by side, or why they could not be read."""
        out = self._patience.is_out
        pending = [span for span in spans if not out and span.name not in self._failed]
        answers = dict(zip(pending, self._read(pending) if pending else ()))
        self._failed |= {
            span.name: answer for span, answer in answers.items() if isinstance(answer, AccError)
        }
        return [
            answers.get(span) or self._failed.get(span.name) or FormatError(self._unasked(span.name))
            for span in spans
        ]

    def _read(self, spans: Sequence[Span]) -> list[bytes | AccError]:
        answers: list[bytes | AccError] = [b""] * len(spans)
        pending, silent, nbytes = [*range(len(spans))], 0, sum(span.stop - span.start for span in spans)
        for limit in self._patience.attempts(PATIENCE, nbytes / _SLOWEST, PAUSES):
            batch, pending = pending, []
            for number, answer in zip(batch, self._attempt([spans[number] for number in batch], limit)):
                if isinstance(answer, tuple):
                    answers[number] = self._checked(spans[number], *answer)
                elif not isinstance(answer, NoAnswer) or not answers[number]:  # an attempt before says more
                    answers[number] = self._error(spans[number], answer)
                pending += [] if isinstance(answer, tuple) or is_final(answer) else [number]
                silent += isinstance(answer, NoAnswer)
            if not pending:
                break
        self._patience.count(
            len(pending) + silent, answered=any(isinstance(answer, bytes) for answer in answers)
        )
        return answers

    def _attempt(self, spans: Sequence[Span], seconds: float) -> Sequence[Any]:
        paths, starts, stops = zip(*((self.path_of(span.name), span.start, span.stop) for span in spans))

        def read() -> Sequence[Any]:
            if self.has_pages:
                return ranges_with_entries(self._system, paths, starts, stops)
            answers = self._system.cat_ranges([*paths], [*starts], [*stops], on_error="return")
            return [(answer, {}) if isinstance(answer, bytes) else answer for answer in answers]

        try:
            return within(seconds, read)
        except Exception as error:  # noqa: BLE001 - what a file system raises for all is the answer to each
            return [error] * len(spans)

    def _unasked(self, name: str) -> str:
        return (
            f"{self.address.joined(name)}: was not read, as {self._patience.failed} files in a row could not "
            "be read from the store; run again when it answers"
        )

    def _error(self, span: Span, error: Exception) -> FormatError:
        why = (
            f"cannot be read{'' if self.address.protocol == NODE else ' from the store'}: {error_text(error)}"
        )
        if isinstance(error, FileNotFoundError):
            why = "is no longer there; was the dump deleted while in use?"
        return FormatError(f"{self.address.joined(span.name)}: {why}")

    def _checked(self, span: Span, content: bytes, entry: Mapping[str, Any]) -> bytes | AccError:
        """The bytes of a span, if they are of the version that was listed: S3 says so with them, and other
        stores are asked once for each file."""
        if entry.get("ETag"):
            version = _stored("", entry).version
        else:
            try:
                version = span.version if self.address.protocol == NODE else self.version_of(span.name)
            except DumpError as error:
                return error
        if version == span.version and len(content) == span.stop - span.start:
            return content
        changed = "became shorter while it was read", "was written anew since its dump was listed"
        why = changed[version != span.version]
        return FormatError(f"{self.address.joined(span.name)}: {why}; is the dump being written?")

    def get(self, name: str, limit: int) -> bytes:
        """A file, but no more than so many bytes of it. Raises `FormatError`."""
        file = self.stat(name)
        if file is None:
            raise FormatError(f"{self.address.joined(name)}: no such file in the store")
        span = Span(name, 0, min(file.size, limit), file.version)
        answer = self.ranges([span])[0] if file.size else b""
        if isinstance(answer, AccError):
            raise answer
        return answer

    def put(self, name: str, source: str) -> None:
        """Upload a file of the disk; it is in the store whole or not at all. Raises `AccError`."""
        path, seconds = self.path_of(name), os.path.getsize(source) / _SLOWEST
        self._answer("written", lambda: self._system.put_file(source, path), seconds, name)

    def make_room(self) -> None:
        """Make the directory of the address, in stores that have directories."""
        self._answer("written", lambda: self._system.makedirs(self._root, exist_ok=True))

    def _answer(self, done: str, call: Callable[[], Answer], seconds: float = 0.0, name: str = "") -> Answer:
        """The answer to a call. Raises `FileNotFoundError` as it comes, `DumpError` for everything else."""
        for limit in self._patience.attempts(PATIENCE, seconds, PAUSES):
            try:
                return within(limit, call)
            except FileNotFoundError:
                raise
            except Exception as error:  # noqa: BLE001 - file systems document no errors of theirs
                refused = DumpError(f"{self.address.joined(name)}: cannot be {done}: {error_text(error)}")
                if is_final(error):
                    raise refused from None
        self._patience.count(1, answered=False)
        raise refused


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
    timestamp = next((entry[key] for key in _TIMES if entry.get(key)), None)
    modified = _nanoseconds(timestamp)
    # One store gives one time as a datetime here and as a float there.
    time_tag = str(modified // 1_000_000) if modified else str(timestamp or "")
    tag = next((str(entry[key]).strip('"') for key in _TAGS if entry.get(key)), time_tag)
    size = int(entry.get("size") or 0)
    return StoredFile(name, size, version_number(tag, size), modified)


def version_number(tag: str, size: int) -> int:
    """64 bits of what tells the versions of a file apart."""
    text = f"{size} {tag}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _nanoseconds(timestamp: Any) -> int:
    if hasattr(timestamp, "timestamp"):
        timestamp = timestamp.timestamp()
    return round(timestamp * 1000) * 1_000_000 if isinstance(timestamp, (int, float)) else 0


def ranges_with_entries(
    system: Any, paths: Sequence[str], starts: Sequence[int], stops: Sequence[int]
) -> list[tuple[bytes, dict[str, Any]] | BaseException]:
    """The bytes of each range with the entry of its file, or its error: `cat_ranges` of fsspec has no entry.

    Source: GetObject of the API reference of Amazon S3.
    """
    from fsspec.asyn import sync

    async def read(path: str, start: int, stop: int) -> tuple[bytes, dict[str, Any]]:
        bucket, key, _ = system.split_path(path)
        request = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{stop - 1}", **system.req_kw}
        response = await system._call_s3("get_object", **request)
        async with response["Body"] as body:
            size = response.get("ContentRange", "").rpartition("/")[2] or response["ContentLength"]
            return await body.read(), {**response, "size": size}

    async def read_all() -> list[tuple[bytes, dict[str, Any]] | BaseException]:
        return await asyncio.gather(*map(read, paths, starts, stops), return_exceptions=True)

    return sync(system.loop, read_all)  # type: ignore[no-any-return]


def page_after(system: Any, root: str, last: str) -> tuple[list[dict[str, Any]], bool]:
    """The files below a directory that follow the key `last`, up to a thousand; and whether there are more.

    Source: ListObjectsV2 of the API reference of Amazon S3.
    """
    bucket, key, _ = system.split_path(root)
    response = system.call_s3(
        "list_objects_v2", Bucket=bucket, Prefix=f"{key}/" if key else "", StartAfter=last, **system.req_kw
    )
    entries = [
        {**entry, "name": f"{bucket}/{entry['Key']}", "type": "file", "size": entry["Size"]}
        for entry in response.get("Contents", ())
    ]
    return entries, bool(response.get("IsTruncated")) and bool(entries)


# The file system of fsspec that an address is in, or the package that it needs.


_PACKAGES = {
    "s3": ("s3fs", "acc-pytest[s3]"),
    "s3a": ("s3fs", "acc-pytest[s3]"),
    "gs": ("gcsfs", "gcsfs"),
    "gcs": ("gcsfs", "gcsfs"),
    "az": ("adlfs", "adlfs"),
    "abfs": ("adlfs", "adlfs"),
    "adl": ("adlfs", "adlfs"),
    "hdfs": ("pyarrow", "pyarrow"),
    "webhdfs": ("requests", "requests"),
    "sftp": ("paramiko", "paramiko"),
    "ssh": ("paramiko", "paramiko"),
    "http": ("aiohttp", "aiohttp"),
    "https": ("aiohttp", "aiohttp"),
}
"""The package that fsspec needs for a protocol, and its name for pip."""
_UNKNOWN = "Protocol not known"
"""Start of the message of fsspec for a protocol that it does not have."""


def connected(address: Address) -> tuple[Any, str]:
    """The file system, and the path in it. Raises `DumpError` where a package is missing."""
    if address.protocol == NODE:
        return HostFiles(str(address)), f"/{address.rest.partition('/')[2]}"
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise DumpError(
            f"{address}: reading from a store needs the package fsspec: pip install 'acc-pytest[remote]'"
        ) from None
    try:
        return url_to_fs(str(address), use_listings_cache=False)  # type: ignore[no-any-return]
    except ImportError as error:
        package, requirement = _PACKAGES.get(address.protocol, (error.name or "", error.name or ""))
        raise DumpError(
            f"{address}: {address.protocol}:// needs the package {package}: pip install '{requirement}'"
        ) from None
    except Exception as error:  # noqa: BLE001 - file systems document no errors of theirs
        remedy = "correct the protocol" if _UNKNOWN in str(error) else "see the configuration of the store"
        raise DumpError(f"{address}: cannot be opened: {error_text(error)}; {remedy}") from None


# Calls that end: what a file system returns or raises in time, how often it is asked, what errors mean.


_FINAL = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError),
    *(AccError, HostIsGone),
)
_FINAL_NAMES = frozenset({"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"})
"""Errors of botocore, which need not be installed, that do not pass."""
_QUERY = re.compile(r"\?\S+")
"""Pattern of the query of a signed request in a message."""
_LONGEST_TEXT = 300
_RETRIED = 20.0
"""Seconds after the first attempt in which all others have to end, beside those that the bytes take."""
_DOWN = 3
"""Files in a row that could not be read, after which one more is asked for each `_RETRIED` seconds."""
Answer = TypeVar("Answer")


class NoAnswer(Exception):
    """A file system neither answered nor failed in time."""


def within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """The result of a call, or its error; `NoAnswer` where it has neither in time and goes on alone."""
    box: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def work() -> None:
        try:
            box.put((True, call()))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            box.put((False, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        done, answer = box.get(timeout=seconds)
    except queue.Empty:
        raise NoAnswer(f"the store gave no answer for {seconds:.0f} s") from None
    if not done:
        raise answer
    return answer  # type: ignore[no-any-return]


class Patience:
    """With one store. `failed` is how many files in a row could not be read after all attempts."""

    def __init__(self) -> None:
        self.failed = 0
        self._until = 0.0

    @property
    def is_out(self) -> bool:
        """Whether nothing is asked for at the moment."""
        return self.failed >= _DOWN and time.monotonic() < self._until

    def attempts(self, limit: float, of_bytes: float, pauses: Sequence[float]) -> Iterator[float]:
        """The seconds that each attempt of a call may take, at most `limit` and those `of_bytes`."""
        end = time.monotonic() + _RETRIED
        yield limit + of_bytes
        for pause in () if self.failed >= _DOWN else pauses:
            time.sleep(pause)
            if time.monotonic() < end:
                yield min(limit, end - time.monotonic()) + of_bytes

    def count(self, failed: int, answered: bool) -> None:
        """Take note of a call in which so many files could not be read after all attempts."""
        self.failed = 0 if answered else self.failed + failed
        self._until = time.monotonic() + _RETRIED


def is_final(error: Exception) -> bool:
    """Whether to ask again is of no use."""
    return isinstance(error, (*_FINAL, NoAnswer)) or type(error).__name__ in _FINAL_NAMES


def error_text(error: Exception) -> str:
    """The message of an error, without what could be a secret in it."""
    text = _QUERY.sub("?***", " ".join(str(error).split()))[:_LONGEST_TEXT]
    return text or type(error).__name__
