"""Files that are whole or not there: written beside their place under another name, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO

from ..errors import AccError

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
"""Modes of everything the probe writes, and of everything we write, less what the umask takes: a dump is
nobody else's business, nor is a report, which has values and paths of it. A stricter umask is the user's
word."""

_NAME = 40
"""Characters of its name that a file under way has in its name: few enough for the limit of 255 bytes."""


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes its place (replacing what is there) when the block ends well.

    Its directory is made where it is missing. When the block raises, or the process dies in it, what lay at
    `path` is untouched. Raises `AccError` naming the file where the system refuses, and where a device, a
    fifo or a socket lies there: renamed over, it would be gone.
    """
    target = os.path.abspath(path)
    try:
        # Raise `OSError` for a device, a fifo or a socket. (A directory the rename refuses itself.)
        with contextlib.suppress(FileNotFoundError):
            mode = os.lstat(target).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
                raise OSError(errno.EINVAL, "it is a device, fifo or socket")
        try:
            descriptor, name = new_file(target)
        except (FileNotFoundError, NotADirectoryError):
            make_directory(os.path.dirname(target))
            descriptor, name = new_file(target)
    except (OSError, ValueError) as error:
        raise _refused(target, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(name, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise _refused(target, error) from error
        raise


def new_file(path: str | os.PathLike[str]) -> tuple[int, str]:
    """An empty file of our own beside `path`: its descriptor, for reading and writing, and its name.

    Raises `OSError` where none can be made.
    """
    home, base = os.path.split(os.fspath(path))
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        name = os.path.join(home, f".{base[:_NAME]}.{secrets.token_hex(4)}")
        with contextlib.suppress(FileExistsError):
            return os.open(name, flags, FILE_MODE), name


def make_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory and its missing parents, all with `DIRECTORY_MODE` (less what the umask takes).

    Raises `OSError` where that cannot be.
    """
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    make_directory(os.path.dirname(path))
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError as error:
        if not os.path.isdir(path):  # else another process made it
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from error


def _refused(path: str, error: OSError | ValueError) -> AccError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return AccError(f"{path}: cannot be written: {reason}")
