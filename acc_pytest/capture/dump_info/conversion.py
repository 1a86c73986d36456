"""Converting a tree of dump files while the dump may still be written: nothing is read before it rests.

A file is ready when two looks, `SETTLE_SECONDS` apart, found it unchanged. It is looked at once more before
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
    version: tuple[int, int, int]
    since: float
    done: bool = False


class InfoConversion:
    """What is known of the files at or below `path`, and what became of them.

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
        """Files that the last look found changing, or new."""
        self.changed = clock()
        """When a look last found something new or changed, by the clock."""
        self._delete = delete
        self._clock = clock
        self._seen: dict[str, _FileState] = {}

    @property
    def pending(self) -> int:
        """Files that were found and are not done."""
        return sum(not seen.done for seen in self._seen.values())

    @property
    def found(self) -> int:
        """Files that were ever found."""
        return len(self._seen) + self.deleted

    def scan(self) -> list[TensorFile]:
        """The files that rest and are not done. Raises `DumpError` for a path that is not there."""
        now, ready, self.waiting = self._clock(), [], 0
        there: dict[str, _FileState] = {}
        for source in tensor_files(self.path):
            seen = self._seen.get(source.path)
            if seen is None or seen.version != source.version:
                seen = _FileState(source.version, now)
                self.changed = now
            there[source.path] = seen
            if seen.done:
                continue
            if now - seen.since >= SETTLE_SECONDS:
                ready.append(source)
            else:
                self.waiting += 1
        self._seen = there  # what others took away is nothing that waits
        return ready

    def convert(self, source: TensorFile) -> None:
        """Write the info file of one file that `look` gave, unless it is there. A bad file raises nothing."""
        self.failed.pop(source.path, None)
        self.partly.pop(source.path, None)
        try:
            whole = self._convert(source)
        except ChangedWhileRead:
            self._leave(source)
            return
        except AccError as error:
            if not source.unchanged():
                self._leave(source)
                return
            if is_argument(source):
                self.arguments += 1
            else:
                self.failed[source.path] = str(error)
            whole = False
        self._seen[source.path].done = True
        if self._delete and whole and source.unchanged():
            self._remove(source)

    def _convert(self, source: TensorFile) -> bool:
        """Whether the info file now says everything."""
        # Whether an earlier info file says everything, only the tensors can tell; nothing goes on trust.
        if source.converted() and not self._delete:
            self.before += 1
            return True
        reasons = convert(source)
        if reasons:
            self.partly[source.path] = "; ".join(reasons)
        self.converted += 1
        self.nbytes += source.nbytes
        return not reasons

    def _leave(self, source: TensorFile) -> None:
        """A file that changed while it was read waits for the next look; one that is gone does not."""
        if not os.path.lexists(source.path):
            del self._seen[source.path]

    def _remove(self, source: TensorFile) -> None:
        try:
            with open(source.info, "rb") as file:
                os.fsync(file.fileno())  # a machine that goes down must not lose both
            os.unlink(source.path)
        except OSError as error:
            self.failed[source.path] = f"{source.path}: cannot be deleted: {error.strerror}"
            return
        del self._seen[source.path]
        self.deleted += 1
