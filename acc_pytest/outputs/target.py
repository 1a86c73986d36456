"""The place where a run is to write: its kind, and whether it may be written, before the first test.

A place may hold nothing or a file, which is replaced whole; or something that is written as it is: a device
(`/dev/null`), a fifo, or an open descriptor of this process (`/dev/stdout`, `/dev/fd/63` of a shell's
`>(...)`). A symbolic link to a file is refused: what it leads to may be anybody's, and whoever made the
link knows whether the link or that file is to be replaced.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass

from ..errors import SettingsError
from ..tensors.whole_file import new_file

_DESCRIPTOR = re.compile(
    r"/(?:dev|proc/(?:self|thread-self|(?P<process>\d+)))/fd/(?P<number>\d{1,9})", re.ASCII
)
_STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
_MOST_LINKS = 40
"""As many as Linux follows."""


@dataclass(frozen=True, slots=True)
class Target:
    """A place that can be written. `flag` is the option that named it, for sentences.

    `stream`: it is written directly; there is nothing to replace. `descriptor` is the number of an
    open file of this process that the path stands for, if it does.
    """

    path: str
    flag: str
    stream: bool = False
    descriptor: int | None = None

    def refusal(self, error: OSError | ValueError | str) -> SettingsError:
        """The sentence for what the system said of this place."""
        return _refusal(self.flag, self.path, error)


def file_target(path: str, flag: str) -> Target:
    """As `target_of`, but only a file will do, because it is read again later. Raises `SettingsError`."""
    target = target_of(path, flag)
    if target.stream:
        raise target.refusal("it is a device, a fifo or an open descriptor; give the name of a file")
    return target


def target_of(path: str, flag: str, *, replaces: bool = True) -> Target:
    """The place `path`, checked: a file can be made there. Its directory is made when something is written.

    `replaces` is false for a file that is appended to. Raises `SettingsError`: a directory, a socket or a
    disk, a link to a file, a fifo that nobody reads, a file or directory that may not be written.
    """
    try:
        absolute = os.path.abspath(path)
        number = _descriptor(absolute)
        if number is not None:
            os.fstat(number)
            return Target(absolute, flag, stream=True, descriptor=number)
        if path.endswith(os.sep):
            raise IsADirectoryError(errno.EISDIR, "it names a directory; give the name of a file")
        if not _at(absolute, flag, replaces):
            return Target(absolute, flag, stream=True)
        if replaces or not os.path.exists(absolute):
            _try(absolute)
    except (OSError, ValueError) as error:
        raise _refusal(flag, path, error) from error
    return Target(absolute, flag)


def _at(path: str, flag: str, replaces: bool) -> bool:
    """Whether a file, or nothing, lies there. Raises `SettingsError` for what cannot be written."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return True
    link = stat.S_ISLNK(status.st_mode)
    if link and replaces and not _leads_to_stream(path):
        raise SettingsError(
            f"{flag} {path}: is a symbolic link to {os.readlink(path)}; "
            "give the name of a file, or remove the link"
        )
    mode = os.stat(path).st_mode if link else status.st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory; give the name of a file")
    if stat.S_ISFIFO(mode):
        os.close(_fifo(path))
        return False
    if stat.S_ISCHR(mode):
        return False
    if not stat.S_ISREG(mode):
        kind = "a socket" if stat.S_ISSOCK(mode) else "a disk"
        raise SettingsError(f"{flag} {path}: is {kind}; give the name of a file")
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it exists and you may not write it")
    return True


def _leads_to_stream(path: str) -> bool:
    """Whether a link ends at what is written as it is; no for a file, a directory, or nothing."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _fifo(path: str) -> int:
    """A fifo opened for writing without blocking: a plain open waits until a reader opens it."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "it is a fifo without a reader; start the reader first") from None


def _try(path: str) -> None:
    """Make a file beside `path` and remove it again: the only way to know whether that can be.

    Where the directory is yet to be made, that is tried in the nearest one above it.
    """
    while not os.path.lexists(os.path.dirname(path)):
        path = os.path.dirname(path)
    descriptor, name = new_file(path)
    os.close(descriptor)
    os.unlink(name)


def opened(target: Target) -> int:
    """A descriptor of our own for a stream. Raises `OSError`."""
    if target.descriptor is not None:
        return os.dup(target.descriptor)
    return os.open(target.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _descriptor(path: str) -> int | None:
    """The descriptor of this process that a path stands for, through links; `None` for other paths."""
    for _ in range(_MOST_LINKS):
        if path in _STANDARD:
            return _STANDARD[path]
        if match := _DESCRIPTOR.fullmatch(path):
            of_this_process = match["process"] in (None, str(os.getpid()))
            return int(match["number"]) if of_this_process else None
        if not os.path.islink(path):
            return None
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    return None


def _refusal(flag: str, path: str, error: OSError | ValueError | str) -> SettingsError:
    if isinstance(error, SettingsError):
        return error
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return SettingsError(f"{flag} {path}: cannot be written: {reason}")
