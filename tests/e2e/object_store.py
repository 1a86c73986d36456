"""An S3 server on the loopback whose answers are counted, delayed, and refused as a test asks."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Start = Callable[..., Any]


class Wire:
    """Between the server and its clients: what of each object was read, what was listed, what goes wrong."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget what was counted; nothing goes wrong any more."""
        self.read: Counter[str] = Counter()
        self.asked = self.listed = self.bytes_listed = 0
        self.failed = 0
        self.fails_every = 0
        self.denied = self.broken = ""
        self.delay = 0.0

    @property
    def bytes_read(self) -> int:
        return sum(self.read.values())

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path, is_read = environ["PATH_INFO"], environ["REQUEST_METHOD"] == "GET"
        with self._lock:  # each request has a number of its own
            self.asked += 1
            number = self.asked
        time.sleep(self.delay)
        if self.denied and path.endswith(self.denied) and is_read:
            return _refused(start, "403 Forbidden", "AccessDenied", "this object is not for you")
        is_broken = bool(self.broken) and path.endswith(self.broken) and is_read
        if is_broken or (self.fails_every and number % self.fails_every == 0):
            self.failed += 1
            return _refused(start, "500 Internal Server Error", "InternalError", "try again")

        def counted(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            length = sum(int(value) for name, value in headers if name.lower() == "content-length")
            if is_read and "list-type" in environ["QUERY_STRING"]:
                self.listed += 1
                self.bytes_listed += length
            elif is_read and status[:2] == "20":
                self.read[path] += length
            return start(status, headers, *rest)

        return self._application(environ, counted)


def _refused(start: Start, status: str, code: str, said: str) -> Iterable[bytes]:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{said}</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


class ObjectStore:
    """The server; `wire` is between it and everybody else."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._backend()  # imported within a session of pytester, it would be forgotten with all that it holds
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        inner = self._server._server
        assert inner is not None
        self.wire = Wire(inner.app)
        inner.app = self.wire
        self.endpoint = f"http://127.0.0.1:{self._server.get_host_and_port()[1]}"

    def upload(self, bucket: str, directory: Path, below: str) -> str:
        """Put the files of a directory into a bucket, not over the wire; returns the address."""
        backend = self._backend()
        if bucket not in backend.buckets:
            backend.create_bucket(bucket, "us-east-1")
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                backend.put_object(bucket, f"{below}/{path.relative_to(directory)}", path.read_bytes())
        return f"s3://{bucket}/{below}"

    def keys(self, bucket: str) -> list[str]:
        return sorted(self._backend().buckets[bucket].keys)

    def size(self, address: str) -> int:
        """Bytes of the object at an address."""
        bucket, _, key = address.removeprefix("s3://").partition("/")
        return int(self._backend().get_object(bucket, key).size)

    def content(self, bucket: str, key: str) -> bytes:
        return bytes(self._backend().get_object(bucket, key).value)

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self._backend().put_object(bucket, key, content)

    @staticmethod
    def _backend() -> Any:
        from moto.s3.models import s3_backends

        return s3_backends["123456789012"]["aws"]

    def stop(self) -> None:
        self._server.stop()
