"""Calls that end: what a file system returns or raises in time, how often it is asked, what errors mean."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ...errors import AccError
from .hosts import HostIsGone

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
