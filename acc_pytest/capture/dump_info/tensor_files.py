"""The files of a TorchAir dump that hold tensors, and the info file of each.

An FX file is `.npy`; a file of the Graph Engine ends in numbers, or is one (a hash, for names that were
too long). Whether it is really a record, its content says when it is read. Files of other kinds (graph
texts, statistics, what an editor left) are none of our business.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import DumpError
from ...tensors.header import version_of

_INFO = re.compile(r"_min_max\.np[yz]$")
_RECORD = re.compile(r"\d+|.+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class TensorFile:
    """One file with tensors. `version` is what changes while it is written."""

    path: str
    version: tuple[int, ...]

    @property
    def is_fx(self) -> bool:
        """Whether it is one tensor of an FX dump; otherwise it is a record of the Graph Engine."""
        return self.path.endswith(".npy")

    @property
    def info(self) -> str:
        """The info file, beside it under the name that the readers of dumps look for."""
        return f"{self.path[:-4]}_min_max.npy" if self.is_fx else f"{self.path}_min_max.npz"

    @property
    def nbytes(self) -> int:
        return self.version[0]

    def unchanged(self) -> bool:
        """Whether the file is what it was when it was found."""
        return version_of(self.path) == self.version

    def converted(self) -> bool:
        """Whether its info file is there, and not older than the file itself."""
        try:
            return os.stat(self.info).st_mtime_ns >= self.version[1]
        except OSError:
            return False


def tensor_files(path: str) -> Iterator[TensorFile]:
    """The files with tensors at or below a path, folder by folder, in the order of their names.

    A folder that several links lead to is entered once, and what vanishes meanwhile is left out. Raises
    `DumpError` for a path that is not there, and for a file that is none of these.
    """
    if not os.path.isdir(path):
        if not _is_source(os.path.basename(path)):
            raise DumpError(
                f"{path}: is neither an FX file (.npy) nor a GE record (type.name.task.stream.time)"
            )
        if not (version := version_of(path)):
            raise DumpError(f"{path}: cannot be opened; is it there, and may you read it?")
        yield TensorFile(path, version)
        return
    entered: set[tuple[int, int]] = set()
    for folder, names, files in os.walk(path, followlinks=True):
        if not _enter(folder, entered):
            names.clear()
            continue
        names.sort()
        for name in sorted(filter(_is_source, files)):
            place = os.path.join(folder, name)
            if version := version_of(place):
                yield TensorFile(place, version)


def _enter(folder: str, entered: set[tuple[int, int]]) -> bool:
    """Whether a folder is there and was not entered before, be it by another way."""
    try:
        status = os.stat(folder)
    except OSError:
        return False
    place = status.st_dev, status.st_ino
    new = place not in entered
    entered.add(place)
    return new


def _is_source(name: str) -> bool:
    if name.startswith("."):  # a file that is being written by us or by an editor
        return False
    if name.endswith(".npy"):
        return not _INFO.search(name)
    return _RECORD.fullmatch(name) is not None
