"""A store in memory that fails as it is told to: a protocol of fsspec, registered while a test runs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

PROTOCOL = "broken"


class BrokenFiles(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
    """`calls` counts by method. Of every `fails_every` reads one fails; `denied` is refused, `short` cut."""

    protocol = PROTOCOL
    cachable = False
    calls: ClassVar[Counter[str]] = Counter()
    fails_every: ClassVar[int] = 0
    denied: ClassVar[str] = ""
    short: ClassVar[str] = ""
    delay: ClassVar[float] = 0.0
    hangs: ClassVar[threading.Event | None] = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace(f"{PROTOCOL}://", "memory://")))

    def _count(self, method: str, path: str) -> None:
        type(self).calls[method] += 1
        time.sleep(self.delay)
        if self.hangs is not None:
            self.hangs.wait(30)
        if self.denied and path.endswith(self.denied):
            raise PermissionError(13, "not for you")
        if self.fails_every and sum(self.calls.values()) % self.fails_every == 0:
            raise OSError(5, "try again")

    def cat_file(self, path: str, start: Any = None, end: Any = None, **more: Any) -> bytes:
        self._count("cat_file", path)
        content = bytes(super().cat_file(path, start, end, **more))
        return content[:-1] if self.short and path.endswith(self.short) else content

    def put_file(self, lpath: str, rpath: str, *given: Any, **more: Any) -> None:
        self._count("put_file", rpath)
        super().put_file(lpath, rpath, *given, **more)

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        self._count("info", path)
        return dict(super().info(path, **more))

    def find(self, path: str, *given: Any, **more: Any) -> Any:
        self._count("find", path)
        return super().find(path, *given, **more)


@contextmanager
def broken_store(files: dict[str, bytes]) -> Iterator[type[BrokenFiles]]:
    """`broken://here` with these files, and nothing broken yet."""
    fsspec.register_implementation(PROTOCOL, BrokenFiles, clobber=True)
    BrokenFiles.calls = Counter()
    BrokenFiles.fails_every, BrokenFiles.delay, BrokenFiles.hangs = 0, 0.0, None
    BrokenFiles.denied = BrokenFiles.short = ""
    memory = fsspec.filesystem("memory")
    if memory.exists("/here"):
        memory.rm("/here", recursive=True)
    for name, content in files.items():
        memory.pipe_file(f"/here/{name}", content)
    BrokenFiles.calls.clear()
    yield BrokenFiles
    if memory.exists("/here"):
        memory.rm("/here", recursive=True)
