"""A report that grows record by record; it gets its own name only when it is whole.

A run that is killed leaves what it had (`partial.py` says where) and the previous report as it was. When
the disk is full, the file is cut back to its last whole record and written no more.
"""

from __future__ import annotations

import contextlib
import os

from ..errors import AccError
from ..tensors.whole_file import make_directory, whole_file
from .partial import left_behind, new_partial, new_report
from .stream import pour
from .target import Target, opened

_BLOCK = 1 << 20


class Growing:
    """The report at `target` while it is written.

    With `numbered` it replaces nothing: where its name is taken, it gets another one (`path` says which).
    Raises `AccError` where no file can be made.
    """

    def __init__(self, target: Target, *, numbered: bool = False) -> None:
        self.path = target.path
        self.landed = False
        self._target = target
        self._partial = ""
        self._size = self._records = 0
        self._left = () if numbered or target.stream else tuple(left_behind(target.path))
        self._descriptor: int | None = None
        try:
            if target.stream:
                self._descriptor = opened(target)
                return
            make_directory(os.path.dirname(self.path))
            if numbered:
                self._descriptor, self._partial, self.path = new_report(self.path)
            else:
                self._descriptor, self._partial = new_partial(self.path)
        except OSError as error:
            raise target.refusal(error) from error

    @property
    def notes(self) -> list[str]:
        """A sentence for each file beside it that a killed run left."""
        return [
            f"unfinished: {path} is of a run that was killed; remove it when done with it"
            for path in self._left
        ]

    def write(self, data: bytes, *, head: bool = False) -> None:
        """Append one record whole, or nothing. A file of a `head` alone is not kept when the run ends.

        Raises `AccError` where the system refuses; the file is closed then and keeps the records it has.
        """
        if self._descriptor is None:
            return
        try:
            if self._target.stream:
                pour(self._descriptor, data)
            else:
                _write(self._descriptor, data)
        except OSError as error:
            raise self._abandon(error) from error
        self._size += len(data)
        self._records += not head

    def land(self) -> None:
        """Give the report its own name, replacing the previous one in one step. Raises `AccError`."""
        if self._descriptor is None:
            return
        try:
            if not self._target.stream:
                os.close(os.dup(self._descriptor))  # some file systems say only now that the disk is full
                self._rename(self._descriptor)
        except OSError as error:
            raise self._abandon(error) from error
        self.landed = True
        self.close()

    def _rename(self, descriptor: int) -> None:
        """Rename the file. If it was removed meanwhile, perhaps with its directory, it is written again."""
        if _is_at(descriptor, self._partial):
            make_directory(os.path.dirname(self.path))
            os.replace(self._partial, self.path)
            return
        with whole_file(self.path) as file:
            for start in range(0, self._size, _BLOCK):
                file.write(os.pread(descriptor, min(_BLOCK, self._size - start), start))

    def drop(self) -> None:
        """Close the report and leave nothing of it: there was nothing to be reported."""
        self._records = 0
        self.close()

    def close(self) -> None:
        """Close it as it is. Its records are in it and stay; without any it is removed."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with contextlib.suppress(OSError):
            if self._partial and not self.landed and not self._records and _is_at(descriptor, self._partial):
                os.unlink(self._partial)
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def _abandon(self, error: OSError) -> AccError:
        """Close the file behind its last whole record; the sentence that says where the records are."""
        if self._descriptor is not None and self._partial:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
        has_records = bool(self._partial and self._records)
        self.close()
        refusal = str(self._target.refusal(error))
        return AccError(
            f"{refusal}; what was written before is in {self._partial}" if has_records else refusal
        )


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _is_at(descriptor: int, path: str) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False
