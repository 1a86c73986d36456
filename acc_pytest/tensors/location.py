"""Status and entries of a path, on the disk or below a mirror: readers of dumps use it in place of `os`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..base.texts import Pairs, parsed
from ..errors import FormatError
from .address import indexes, is_mirrored

if TYPE_CHECKING:
    from ..remote.stores.mirror import Placed


_noted: set[str] | None = None


def placed_at(path: str) -> Placed | None:
    """The file that a path below a mirror stands for; `None` for any other path.

    Raises `FormatError` where the index of the mirror is broken.
    """
    if not is_mirrored(path):
        return None
    from ..remote.stores.mirror import placed  # numpy is imported by those who read dumps

    return placed(path)


def entries_at(path: str) -> tuple[list[str], list[str]] | None:
    """Names of sub-directories and files of a directory below a mirror; `None` for any other path."""
    if not is_mirrored(path):
        return None
    from ..remote.stores.mirror import mirror_at

    mirror = mirror_at(path)
    name = mirror.name_of(path) if mirror is not None else None
    return mirror.table.entries(name) if mirror is not None and name is not None else None


def listed_at(path: str) -> tuple[list[str], list[str]] | None:
    """Names of sub-directories and files of a directory below a mirror or of an index in use, else `None`."""
    if is_mirrored(path) or not indexes:
        return entries_at(path.rstrip("/"))
    from ..remote.stores.indexes import entries_indexed

    return entries_indexed(path)


def names_at(path: str) -> list[str]:
    """All names in a directory, on the disk or below a mirror. Raises `OSError`."""
    entries = entries_at(path)
    return os.listdir(path) if entries is None else [*entries[0], *entries[1]]


def walked_at(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk`, on the disk or below a mirror. Directories taken out of a list are not entered."""
    if entries_at(path) is None:
        yield from os.walk(path)
        return
    waiting = [path]
    while waiting:
        place = waiting.pop()
        directories, files = entries_at(place) or ([], [])
        yield place, directories, files
        waiting += [f"{place}/{name}" for name in reversed(directories)]


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Whether a directory is at a path, on the disk or below a mirror."""
    text = os.fspath(path)
    return os.path.isdir(text) or entries_at(text.rstrip("/")) is not None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is at a path, on the disk or below a mirror."""
    text = os.fspath(path)
    return os.path.isfile(text) or placed_at(text) is not None


def is_there(path: str | os.PathLike[str]) -> bool:
    """Whether anything is at a path, a link to nowhere included."""
    text = os.fspath(path)
    return os.path.lexists(text) or placed_at(text) is not None or entries_at(text) is not None


def may_be_entered(path: str | os.PathLike[str]) -> bool:
    """Whether a directory can be listed."""
    text = os.fspath(path)
    return os.access(text, os.R_OK | os.X_OK) or entries_at(text) is not None


def on_disk(path: str | os.PathLike[str]) -> str:
    """A path of the same bytes on the disk: of a file in a store, a copy in the cache.

    Raises `FormatError` where it cannot be fetched, `AccError` where the cache cannot be written.
    """
    text = os.fspath(path)
    if _noted is not None:
        _noted.add(text)
    file = placed_at(text)
    if file is None:
        return text
    if file.path:
        return file.path
    from ..remote.stores.blocks import opened_with

    block = opened_with(file, 0, file.row.size)
    try:
        return block.path
    finally:
        block.close()


@contextlib.contextmanager
def noting_files() -> Iterator[set[str]]:
    """Within this, the paths that `on_disk` is asked for are put into the set that it gives."""
    global _noted
    before, _noted = _noted, set()
    try:
        yield _noted
    finally:
        _noted = before


def shown_at(path: str) -> str:
    """A path as the user may read it: of one below a mirror, the address or path that it stands for."""
    if not is_mirrored(path):
        return path
    from ..remote.stores.mirror import readable_path

    return readable_path(path)


# Texts of a dump, read wherever they lie.


def bytes_of(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file. Raises `OSError`, and `FormatError` for one that a store does not give."""
    with open(on_disk(path), "rb") as file:
        return file.read()


def opened_text(path: str | os.PathLike[str], newline: str | None = None) -> TextIO:
    """A text opened, of which bytes that are no UTF-8 stay what they are. Raises as `bytes_of`."""
    return open(on_disk(path), encoding="utf-8", errors="surrogateescape", newline=newline)


def read_json(
    path: Path,
    what: str,
    hint: str = "",
    *,
    pairs: Pairs | None = None,
    constant: Callable[[str], Any] | None = None,
) -> Any:
    """The value in a file. Raises `FormatError` with its path, `what` it should have been, and the `hint`."""
    try:
        return parsed(bytes_of(path), pairs=pairs, constant=constant)
    except ValueError as error:
        raise FormatError(f"{path}: is not a readable {what} ({error}){hint}") from error
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
