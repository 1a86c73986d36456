"""Info files instead of tensors: what `acc dump-info` does to a dump of the Graph Engine or of FX.

The dump may still be written: nothing is read before it rests.

A file is ready when two scans, `SETTLE_SECONDS` apart, found it unchanged. It is checked once more before
its info file gets its name, and before it is deleted. A file that cannot be read is a line in `failed` and
costs no other; it is tried again when it changes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..errors import AccError, CannotDecode, DumpError, NoPayload
from ..tensors.ge_record import read_record
from ..tensors.header import Statistics, version_of
from ..tensors.info_file import Info, info_of, write_fx_info, write_ge_info
from ..tensors.numpy_file import stored_dtype
from ..tensors.ref import TensorRef

SETTLE_SECONDS = 0.5


@dataclass(slots=True)
class _FileState:
    version: tuple[int, ...]
    since: float
    done: bool = False


class InfoConversion:
    """The files at or below `path`, and what became of them.

    With `delete` a file goes when its info file is on the disk and says all that can be said of it.
    """

    def __init__(
        self, path: str, *, delete: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self.converted = 0
        """Files converted by us."""
        self.nbytes = 0
        """Bytes of them."""
        self.before = 0
        """Files that had an up-to-date info file already."""
        self.deleted = 0
        self.arguments = 0
        """FX files that hold no tensor (None, a dtype, text); they are left as they are."""
        self.partly: dict[str, str] = {}
        """Files with a tensor that cannot be decoded, and why; they are never deleted."""
        self.failed: dict[str, str] = {}
        """Files that cannot be read or replaced, and why."""
        self.waiting = 0
        """Files that the last scan found changing, or new."""
        self.changed = clock()
        """The time of the last scan that found something new or changed, by the clock."""
        self._delete = delete
        self._clock = clock
        self._states: dict[str, _FileState] = {}

    @property
    def pending(self) -> int:
        """Files that were found and are not done."""
        return sum(not state.done for state in self._states.values())

    @property
    def found(self) -> int:
        """Files that were ever found."""
        return len(self._states) + self.deleted

    def scan(self) -> list[TensorFile]:
        """The files that rest and are not done. Raises `DumpError` for a path that is not there."""
        now, ready, self.waiting = self._clock(), [], 0
        states: dict[str, _FileState] = {}
        for file in tensor_files(self.path):
            state = self._states.get(file.path)
            if state is None or state.version != file.version:
                state = _FileState(file.version, now)
                self.changed = now
            states[file.path] = state
            if state.done:
                continue
            if now - state.since >= SETTLE_SECONDS:
                ready.append(file)
            else:
                self.waiting += 1
        self._states = states  # a file that somebody removed is not waited for
        return ready

    def convert(self, file: TensorFile) -> None:
        """Write the info file of one file that `scan` gave, unless it is there. A bad file raises nothing."""
        self.failed.pop(file.path, None)
        self.partly.pop(file.path, None)
        try:
            complete = self._convert(file)
        except ChangedWhileRead:
            self._leave(file)
            return
        except AccError as error:
            if not file.unchanged():
                self._leave(file)
                return
            if is_argument(file):
                self.arguments += 1
            else:
                self.failed[file.path] = str(error)
            complete = False
        self._states[file.path].done = True
        if self._delete and complete and file.unchanged():
            self._remove(file)

    def _convert(self, file: TensorFile) -> bool:
        """Whether the info file now says everything."""
        # Whether an earlier info file says everything, only the tensors can tell; nothing goes on trust.
        if file.converted() and not self._delete:
            self.before += 1
            return True
        reasons = convert(file)
        if reasons:
            self.partly[file.path] = "; ".join(reasons)
        self.converted += 1
        self.nbytes += file.nbytes
        return not reasons

    def _leave(self, file: TensorFile) -> None:
        """A file that changed while it was read waits for the next scan; one that is gone does not."""
        if not os.path.lexists(file.path):
            del self._states[file.path]

    def _remove(self, file: TensorFile) -> None:
        try:
            with open(file.info, "rb") as info:
                os.fsync(info.fileno())  # a machine that goes down must not lose both
            os.unlink(file.path)
        except OSError as error:
            self.failed[file.path] = f"{file.path}: cannot be deleted: {error.strerror}"
            return
        del self._states[file.path]
        self.deleted += 1


# One file with tensors to its info file: minimum, maximum, mean and norm of each tensor.


_NOTHING = Info(Statistics(None, None, None, None))


class ChangedWhileRead(Exception):
    """The file changed while it was read; the numbers are of neither version."""


def convert(file: TensorFile) -> list[str]:
    """Write the info file of a file; returns why a tensor has no numbers though it has values.

    The info file appears whole or not at all. Raises `FormatError` for a file that is cut or lies, `AccError`
    where the info file cannot be written, `ChangedWhileRead`.
    """
    if file.is_fx:
        info = info_of(TensorRef(file.path).open())
        _check_unchanged(file)
        write_fx_info(file.info, info)
        return []
    reasons: list[str] = []
    record = read_record(file.path)
    sides = [
        [_info(TensorRef(file.path, f"{side}/{index}"), reasons) for index in range(count)]
        for side, count in (("inputs", len(record.inputs)), ("outputs", len(record.outputs)))
    ]
    _check_unchanged(file)
    write_ge_info(file.info, *sides)
    return reasons


def _check_unchanged(file: TensorFile) -> None:
    if not file.unchanged():
        raise ChangedWhileRead(file.path)


def _info(ref: TensorRef, reasons: list[str]) -> Info:
    try:
        return info_of(ref.open())
    except NoPayload:  # a null address: there never were values
        return _NOTHING
    except CannotDecode as error:
        reasons.append(str(error))
        return _NOTHING


def is_argument(file: TensorFile) -> bool:
    """Whether an FX file holds an argument that is no tensor: None, a dtype, text."""
    if not file.is_fx:
        return False
    dtype = stored_dtype(file.path)
    return dtype is not None and (dtype.hasobject or dtype.kind in "SU")


# The files of a TorchAir dump that hold tensors, and the info file of each.
#
# An FX file is `.npy`; a file of the Graph Engine ends in numbers, or is one (a hash, for names that were
# too long). Whether it is really a record, its content says when it is read. Files of other kinds (graph
# texts, statistics, what an editor left) are none of our business.


_INFO = re.compile(r"_min_max\.np[yz]$")
_RECORD = re.compile(r"\d+|.+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class TensorFile:
    """One file with tensors. `version` is what changes while it is written."""

    path: str
    version: tuple[int, ...]

    @property
    def is_fx(self) -> bool:
        """Whether it is one tensor of an FX dump; otherwise it is a record of the Graph Engine."""
        return self.path.endswith(".npy")

    @property
    def info(self) -> str:
        """The info file, beside it under the name that the readers of dumps look for."""
        return f"{self.path[:-4]}_min_max.npy" if self.is_fx else f"{self.path}_min_max.npz"

    @property
    def nbytes(self) -> int:
        return self.version[0]

    def unchanged(self) -> bool:
        """Whether the file is what it was when it was found."""
        return version_of(self.path) == self.version

    def converted(self) -> bool:
        """Whether its info file is there, and not older than the file itself."""
        try:
            return os.stat(self.info).st_mtime_ns >= self.version[1]
        except OSError:
            return False


def tensor_files(path: str) -> Iterator[TensorFile]:
    """The files with tensors at or below a path, folder by folder, in the order of their names.

    A folder that several links lead to is entered once, and what vanishes meanwhile is left out. Raises
    `DumpError` for a path that is not there, and for a file that is none of these.
    """
    if not os.path.isdir(path):
        if not _is_source(os.path.basename(path)):
            raise DumpError(
                f"{path}: is neither an FX file (.npy) nor a GE record (type.name.task.stream.time)"
            )
        if not (version := version_of(path)):
            raise DumpError(f"{path}: cannot be opened; is it there, and may you read it?")
        yield TensorFile(path, version)
        return
    entered: set[tuple[int, int]] = set()
    for folder, names, files in os.walk(path, followlinks=True):
        if not _enter(folder, entered):
            names.clear()
            continue
        names.sort()
        for name in sorted(filter(_is_source, files)):
            place = os.path.join(folder, name)
            if version := version_of(place):
                yield TensorFile(place, version)


def _enter(folder: str, entered: set[tuple[int, int]]) -> bool:
    """Whether a folder is there and was not entered before, be it by another way."""
    try:
        status = os.stat(folder)
    except OSError:
        return False
    place = status.st_dev, status.st_ino
    new = place not in entered
    entered.add(place)
    return new


def _is_source(name: str) -> bool:
    if name.startswith("."):  # a file that is being written by us or by an editor
        return False
    if name.endswith(".npy"):
        return not _INFO.search(name)
    return _RECORD.fullmatch(name) is not None
