"""Texts of a dump, read wherever they lie."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from ..errors import FormatError
from ..json_text import Pairs, parsed
from .stores.place import on_disk


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
