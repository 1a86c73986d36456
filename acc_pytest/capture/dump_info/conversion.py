"""Converting a tree of dump files while the dump may still be written: nothing is read before it rests.

A file is ready when two scans, `SETTLE_SECONDS` apart, found it unchanged. It is checked once more before
its info file gets its name, and before it is deleted. A file that cannot be read is a line in `failed` and
costs no other; it is tried again when it changes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import AccError
from .convert import ChangedWhileRead, convert, is_argument
from .tensor_files import TensorFile, tensor_files

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
