"""Files of a dump: what may be written where, texts that are replaced, and texts that grow line by line."""

from __future__ import annotations

import os
import re

from ...errors import DumpError
from ...tensors.whole_file import whole_file

_LONGEST_PATH = 4096
_LONGEST_NAME = 255
_MAX_SLASHES = 32
_PATH = re.compile(r"[a-zA-Z0-9_./-]+")
_NAME = re.compile(r"""[_A-Za-z0-9"'><=\[\])(,}{: /.~-]+""")


def check_path(path: str) -> None:
    """Raises `DumpError` for a path to which the real probe writes nothing, without a word."""
    absolute = os.path.abspath(path)
    reason = ""
    if not _PATH.fullmatch(absolute):
        reason = "holds other characters than letters, digits and _ . / -"
    elif len(absolute) > _LONGEST_PATH or any(len(p) > _LONGEST_NAME for p in absolute.split("/")):
        reason = f"is longer than {_LONGEST_PATH} characters, or a part of it than {_LONGEST_NAME}"
    elif absolute.count("/") > _MAX_SLASHES:
        reason = f"has more than {_MAX_SLASHES} slashes"
    if reason:
        raise DumpError(f"{absolute}: the probe refuses this path because it {reason}; dump elsewhere")


def check_name(name: str) -> None:
    """Raises `DumpError` for a name of an operation or model under which the real probe writes no JSON."""
    if len(name) > _LONGEST_PATH or not _NAME.fullmatch(name):
        raise DumpError(
            f"{name[:80]!r}: the probe writes no topology under this name; use letters and digits"
        )


def replace_text(path: str, text: str) -> None:
    """Write a whole file. Raises `AccError` naming it where the system refuses."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def append_text(path: str, text: str) -> None:
    """Add whole lines to a file, in one write. Raises `AccError` naming it where the system refuses.

    The file appears with its first lines. A write that the system cuts short is taken back, so that no half
    line stays.
    """
    if not os.path.exists(path):
        replace_text(path, text)
        return
    data = text.encode("utf-8")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            count = os.write(descriptor, data)
            if count != len(data):
                os.ftruncate(descriptor, size)
                raise OSError(f"{count} of {len(data)} bytes fit")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DumpError(f"{path}: cannot be written: {error.strerror or error}") from error
