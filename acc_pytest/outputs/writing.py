"""A report that grows record by record; it gets its own name only when it is whole.

A run that is killed leaves what it had (`partial.py` says where) and the previous report as it was. When
the disk is full, the file is cut back to its last whole record and written no more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
from collections.abc import Iterator

from ..errors import AccError
from ..tensors.whole_file import FILE_MODE, make_directory, new_file, whole_file
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


# Writing to a pipe, a fifo or a terminal. One that stops reading must not hang the
# run.


PATIENCE = 60.0
"""Seconds that a reader may let a full pipe stand. A pager or a busy consumer is waited for; one that
sleeps for ever is not."""


def pour(descriptor: int, data: bytes) -> None:
    """Write all of `data`.

    Raises `OSError`: nobody reads any more (`EPIPE`), or nobody has for `PATIENCE` seconds (`ETIMEDOUT`).
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    view = memoryview(data)
    while view:
        if not poll.poll(PATIENCE * 1000):
            raise OSError(errno.ETIMEDOUT, f"its reader has not read for {PATIENCE:.0f} s")
        # As much as a pipe that can be written takes without waiting, whoever else has it open.
        try:
            view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]
        except BlockingIOError:
            continue


# Names of reports that are being written, by which those of killed runs are found again.
#
# `report.csv` grows as `report.csv.partial` and gets its name when the run ends, so that a run that is killed
# leaves the previous `report.csv` and, beside it, the rows it had. Where that name is taken (by another run
# that is going on, or one that was killed), it is `report.csv.2.partial` and so on: nobody writes over the
# rows of another run. Whoever writes such a file holds a lock on it, which ends with the process.


SUFFIX = ".partial"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def new_partial(path: str) -> tuple[int, str]:
    """The file as which the report `path` grows: its descriptor and its name. Raises `OSError`."""
    number = 1
    while True:
        name = f"{path}{'' if number == 1 else f'.{number}'}{SUFFIX}"
        with contextlib.suppress(FileExistsError):
            return _locked(os.open(name, _FLAGS, FILE_MODE)), name
        number += 1


def new_report(path: str) -> tuple[int, str, str]:
    """As `new_partial`, for a report that replaces none: descriptor, name while it grows, own name.

    The own name is `path`, or where that is taken `{stem}_1{extension}`, `..._2`, and so on. Of two runs
    that ask at the same time each gets another one: a name is free when neither it nor its partial is
    there, and that is asked while we hold the partial, which becomes the report in one step.
    """
    stem, extension = os.path.splitext(path)
    number = 0
    while True:
        name = f"{stem}_{number}{extension}" if number else path
        number += 1
        try:
            descriptor = os.open(name + SUFFIX, _FLAGS, FILE_MODE)
        except FileExistsError:
            continue
        if not os.path.lexists(name):
            return _locked(descriptor), name + SUFFIX, name
        os.close(descriptor)
        os.unlink(name + SUFFIX)


def left_behind(path: str) -> list[str]:
    """The files that killed runs left of the report `path`, the newest first; none that a run still holds."""
    home, base = os.path.split(path)
    ours = re.compile(re.escape(base) + r"(\.\d+)?" + re.escape(SUFFIX), re.ASCII)
    dated = []
    with contextlib.suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if (
                ours.fullmatch(entry.name)
                and entry.is_file(follow_symlinks=False)
                and not is_held(entry.path)
            ):
                dated.append((entry.stat().st_mtime_ns, entry.path))
    return [name for _, name in sorted(dated, reverse=True)]


def partials(path: str) -> Iterator[str]:
    """Files that the report `path` grew as, or grows as now, in the order of their names."""
    number = 1
    while os.path.isfile(name := f"{path}{'' if number == 1 else f'.{number}'}{SUFFIX}"):
        yield name
        number += 1


def _locked(descriptor: int) -> int:
    """The descriptor, with a lock on its file where the file system has locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def is_held(path: str) -> bool:
    """Whether a run that goes on writes the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


# A report written in one piece at the end of a run: first beside its place, then into it, in two steps.
#
# All reports of a run are made before the first of them is put into its place (`Recorder.finish`), so that a
# run killed while they are made leaves the previous ones all as they were.


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
