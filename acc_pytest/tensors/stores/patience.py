"""Calls that end: what a file system returns or raises in time, and what its errors mean."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
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
"""What a message has of a signed request."""
_SAID = 300
Answer = TypeVar("Answer")


class NoAnswer(Exception):
    """A file system neither answered nor failed in time."""


def within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """What a call returns or raises; `NoAnswer` when it does neither in time, and is left to itself."""
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


def is_final(error: Exception) -> bool:
    """Whether to ask again is of no use."""
    return isinstance(error, (*_FINAL, NoAnswer)) or type(error).__name__ in _FINAL_NAMES


def said(error: Exception) -> str:
    """The message of an error, without what could be a secret in it."""
    text = _QUERY.sub("?***", " ".join(str(error).split()))[:_SAID]
    return text or type(error).__name__
