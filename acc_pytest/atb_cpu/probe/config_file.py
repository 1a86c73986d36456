"""A config file that a probe reads again while its process runs, and when the probe trusts it."""

from __future__ import annotations

import json
import os
import stat
import time
import warnings
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

_LARGEST = 1 << 30
_PERIOD = 5.0
"""Seconds between two looks at the file."""
_IDLE_CALLS = 16384
"""Until dumping was on for the first time, only every so many calls look at the file."""


class Switched(Protocol):
    """Settings that say whether dumping is on."""

    @property
    def enabled(self) -> bool: ...


T = TypeVar("T", bound=Switched)


def trusted(path: str) -> bool:
    """Whether the probe would read the file: regular, the user's alone to write, readable, 1 B to 1 GiB."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    mine = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return (
        stat.S_ISREG(status.st_mode) and mine and 0 < status.st_size <= _LARGEST and os.access(path, os.R_OK)
    )


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in a config file's text; empty for a text that holds none."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


class WatchedConfig(Generic[T]):
    """The settings in the file at `path`; `off` stand for a file that is not trusted."""

    def __init__(
        self, path: str, parse: Callable[[str], T], off: T, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._parse = parse
        self._off = self._current = off
        self._clock = clock
        self._calls = 0
        self._was_on = False
        self._read_at = 0.0

    def current(self) -> T:
        """The settings now; to be called once for every operation."""
        call, self._calls = self._calls, self._calls + 1
        now = self._clock()
        due = now - self._read_at >= _PERIOD if self._was_on else call % _IDLE_CALLS == 0
        if due:
            self._read_at = now
            self._current = self._read()
            self._was_on = self._was_on or self._current.enabled
        return self._current

    def _read(self) -> T:
        if not trusted(self._path):
            warnings.warn(
                f"{self._path}: is not a config file for the probe (a regular file of yours that nobody else "
                "may write, not empty); dumping is off",
                stacklevel=4,
            )
            return self._off
        with open(self._path, encoding="utf-8", errors="replace") as file:
            return self._parse(file.read())
