"""The directories and files of a dump, those of a kept dump included."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...errors import DumpError, FormatError
from ...tensors.atb_links import located
from ...tensors.kept_index import kept_version, names_in


class WalkEntry(NamedTuple):
    """A directory or file of a dump: its name below the top, and where to read it; empty for a directory."""

    name: str
    source: str


class Walk:
    """The files and directories at and below `paths`, named from `top`; what is `unwanted` is not met.
    `left_out` counts what is no file, by the reason."""

    def __init__(self, top: str, paths: Sequence[str], unwanted: frozenset[str] = frozenset()) -> None:
        self._top = top
        self._paths = paths
        self._unwanted = unwanted
        self.left_out: dict[str, int] = {}

    def __iter__(self) -> Iterator[WalkEntry]:
        """Directories come before what is in them. Raises `DumpError` for one that cannot be listed."""
        names = set()
        for path in self._paths:
            for entry in self._tree(path, (os.path.realpath(path),)):
                if entry.name not in names:
                    names.add(entry.name)
                    yield entry

    def _tree(self, path: str, ancestors: tuple[str, ...]) -> Iterator[WalkEntry]:
        if path in self._unwanted:
            return
        if not os.path.isdir(path):
            yield from self._file(path)
            return
        yield WalkEntry(os.path.relpath(path, self._top), "")
        try:
            names = sorted((*os.listdir(path), *names_in(path)))
        except OSError as error:
            raise DumpError(f"{path}: cannot be listed: {error.strerror}; check its permissions") from error
        for name in names:
            child = f"{path}/{name}"
            real = os.path.realpath(child)
            if os.path.islink(child) and os.path.isdir(child) and not self._may_follow(real, ancestors):
                self._leave_out("links to directories above them or outside of the dump")
                continue
            yield from self._tree(child, (*ancestors, real))

    def _may_follow(self, real: str, ancestors: tuple[str, ...]) -> bool:
        return real not in ancestors and real.startswith(f"{os.path.realpath(self._top)}/")

    def _file(self, path: str) -> Iterator[WalkEntry]:
        name = os.path.relpath(path, self._top)
        if kept_version(path):
            yield WalkEntry(name, path)
            return
        try:
            # The probe's links to absolute paths break when a dump is moved, and are found all the same.
            source = located(path, "") if path.endswith(".bin") else path
            regular = stat.S_ISREG(os.stat(source).st_mode)
        except (OSError, FormatError):
            self._leave_out("links to nowhere")
            return
        if regular:
            yield WalkEntry(name, source)
        else:
            self._leave_out("neither files nor directories")

    def _leave_out(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
