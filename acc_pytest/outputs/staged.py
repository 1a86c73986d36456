"""A report written in one piece at the end of a run: first beside its place, then into it, in two steps.

All reports of a run are made before the first of them is put into its place (`Recorder.finish`), so that a
run killed while they are made leaves the previous ones all as they were.
"""

from __future__ import annotations

import contextlib
import os

from ..tensors.whole_file import FILE_MODE, make_directory, new_file
from .stream import pour
from .target import Target, opened


class Staged:
    """The report at `target`, not yet written. `append`: the file belongs to others too."""

    def __init__(self, target: Target, *, append: bool = False) -> None:
        self.path = target.path
        self.landed = False
        self._target = target
        self._append = append
        self._stream = b""
        self._partial = ""

    def write(self, data: bytes) -> None:
        """Make the whole report; what lies at its place stays for now. Raises `AccError`."""
        if self._target.stream or self._append:
            self._stream = data
            return
        try:
            make_directory(os.path.dirname(self.path))
            descriptor, self._partial = new_file(self.path)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError as error:
            self.close()
            raise self._target.refusal(error) from error

    def land(self) -> None:
        """Put it into its place; nothing where nothing was written. Raises `AccError`."""
        try:
            if self._stream:
                self._pour()
            elif self._partial:
                os.replace(self._partial, self.path)
            else:
                return
        except OSError as error:
            self.close()
            raise self._target.refusal(error) from error
        self._partial, self._stream, self.landed = "", b"", True

    def _pour(self) -> None:
        if self._target.stream:
            descriptor = opened(self._target)
        else:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            pour(descriptor, self._stream)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Leave nothing of a report that has not landed."""
        partial, self._partial = self._partial, ""
        if partial:
            with contextlib.suppress(OSError):
                os.unlink(partial)
