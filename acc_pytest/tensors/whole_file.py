"""Files that are whole or not there: written beside their place under another name, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import AccError

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
"""Modes of everything the probe writes; a dump is nobody else's business."""


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes its place (replacing what is there) when the block ends well.

    Its directory is made where it is missing. When the block raises, or the process dies in it, what
    lay at `path` is untouched. Raises `AccError` naming the file where the system refuses.
    """
    target = Path(os.path.abspath(path))
    try:
        make_directory(target.parent)
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    except (OSError, ValueError) as error:
        raise _refused(target, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), FILE_MODE)
            yield file
        os.replace(name, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise _refused(target, error) from error
        raise


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, all with `DIRECTORY_MODE` (less what the umask takes).

    Raises `OSError` where that cannot be.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error


def _refused(path: Path, error: OSError | ValueError) -> AccError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return AccError(f"{path}: cannot be written: {reason}")
