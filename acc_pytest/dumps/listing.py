"""Directory listings, read once and remembered. Opening a dump of 100,000 files must not touch them all."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from ..errors import DumpError
from ..tensors.kept_index import directories_in, names_in
from ..tensors.stores.caches import is_mirrored
from ..tensors.stores.indexes import entries_indexed
from ..tensors.stores.place import entries_at

_NUMBER = re.compile(r"(\d+)")


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts `10_x` after `9_x`: of numbers without leading zeros the longer is the larger."""
    segments = _NUMBER.split(name)
    return [
        (len(segment.lstrip("0")), segment.lstrip("0")) if index % 2 else (-1, segment)
        for index, segment in enumerate(segments)
    ]


class Listing:
    """The entries of each directory, sorted by natural order; a missing directory holds nothing."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def directories(self, path: str | Path) -> tuple[str, ...]:
        """Names of the sub-directories of `path`. Raises `DumpError` where it may not be read."""
        return self._scan(path)[0]

    def files(self, path: str | Path) -> tuple[str, ...]:
        """Names of everything else in `path`, broken links included. Raises `DumpError` as above."""
        return self._scan(path)[1]

    def _scan(self, path: str | Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
        key = os.fspath(path)
        if key not in self._entries:
            indexed = entries_at(key.rstrip("/")) or entries_indexed(key)
            if is_mirrored(key):
                indexed_directories, indexed_files = indexed or ([], [])
                indexed = (
                    [*{*indexed_directories, *directories_in(key)}],
                    [*indexed_files, *names_in(key)],
                )
            if indexed is not None:
                self._entries[key] = _in_order(indexed[0]), _in_order(indexed[1])
                return self._entries[key]
            directories: list[str] = []
            files: list[str] = []
            try:
                with os.scandir(key) as entries:
                    for entry in entries:
                        (directories if entry.is_dir() else files).append(entry.name)
                files += names_in(key)
            except (FileNotFoundError, NotADirectoryError, ValueError):
                pass  # a ValueError is for names that no file can have, which files may hold all the same
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    return (), ()
                raise DumpError(
                    f"{key}: cannot be listed: {error.strerror}; check its permissions"
                ) from error
            self._entries[key] = _in_order(directories), _in_order(files)
        return self._entries[key]


def _in_order(names: list[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=natural)) if len(names) > 1 else tuple(names)
