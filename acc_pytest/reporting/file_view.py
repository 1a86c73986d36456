"""Views that write one file: its place, its landing and its end are the same for all of them."""

from __future__ import annotations

import os
from typing import Generic, TypeVar

from ..outputs import Growing, Staged
from .view import View

File = TypeVar("File", Growing, Staged)


class FileView(View, Generic[File]):
    """A view of the file at `path`. A subclass opens `_file` in `begin`, and fills it."""

    def __init__(self, path: str = "") -> None:
        self._path = os.path.abspath(path) if path else ""
        self._file: File | None = None

    @property
    def files(self) -> list[str]:
        """The file, once it has its name."""
        return [self._file.path] if self._file is not None and self._file.landed else []

    @property
    def place(self) -> str:
        """The file."""
        return self._path if self._file is None else self._file.path

    def land(self) -> None:
        """Put the file into its place."""
        if self._file is not None:
            self._file.land()

    def close(self) -> None:
        """Close the file. What has not landed is removed; of a growing file the records stay."""
        if self._file is not None:
            self._file.close()


class GrowingFileView(FileView[Growing]):
    """A view that writes its file row by row."""

    def lines(self) -> list[str]:
        """The files that killed runs left."""
        return [] if self._file is None else self._file.notes
