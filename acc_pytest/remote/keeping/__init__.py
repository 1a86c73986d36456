"""A dump of any kind as a kept dump: the same files in little room, each tensor once. And back.

    keep(DUMP, DIR)      the dump as a few files; `open_dump(DIR)` opens it as the same kind of dump
    restore(DIR, OUT)    the files of the dump as they were, byte for byte

`tensors/kept_dump.py` says how it lies on the disk, and why so.
"""

from __future__ import annotations

from .keep import Kept, keep, restore
from .selection import DumpPart

__all__ = ["DumpPart", "Kept", "keep", "restore"]
