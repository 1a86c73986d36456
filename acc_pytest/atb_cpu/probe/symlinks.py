"""De-duplication: a tensor that was written before becomes a symbolic link to its first file.

The probe compares nothing but a 64-bit hash in the manner of FNV-1a: attributes of the header, places
of the objects, payload, each taken in little-endian words of eight bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from ...errors import DumpError
from ...tensors.whole_file import make_directory

_BASIS = 14695981039346656037
_PRIME = 1099511628211
_MASK = (1 << 64) - 1


def hash_of(attributes: Mapping[str, str], payload: bytes | None) -> int:
    """The probe's key of a file: header attributes (`format`, `dtype`, `dims`, ...) and payload if any."""
    state = _mixed(_BASIS, "".join(name + value for name, value in attributes.items()).encode("ascii"))
    if payload is None:
        return state
    return _mixed(_mixed(state, struct.pack("<QQ", 0, len(payload))), payload)


def _mixed(state: int, data: bytes) -> int:
    padded = data + bytes(-len(data) % 8)
    for word in struct.unpack(f"<{len(padded) // 8}Q", padded):
        state = ((state ^ word) * _PRIME) & _MASK
    return state


class FirstFiles:
    """The first file of every hash in this process."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    def link(self, path: str, key: int) -> bool:
        """Make `path` a link to the first file with this key; `False` when it is that file itself.

        The target is the first path as the probe built it, so with a relative output directory the
        link leads nowhere, as the real one does. Raises `DumpError` where the system refuses.
        """
        first = self._paths.setdefault(key, path)
        if first == path:
            return False
        try:
            make_directory(Path(path).parent)
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(first, path)
        except OSError as error:
            raise DumpError(f"{path}: cannot be written: {error.strerror or error}") from error
        return True
