"""A format, its sound files, and one case of it: a file mutated, or renamed, in a copy of its folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .byte_mutations import Mutate

_LARGEST = 4 << 20
"""Bytes of a case: repeats of repeats say nothing that takes more."""


@dataclass(frozen=True)
class Seed:
    """A sound file, and the folder that a reader needs with it."""

    home: Path
    file: str


@dataclass(frozen=True)
class Format:
    """One kind of file, how it is mutated, and the door by which it is read.

    `seeds` writes sound files below a directory. `read` gets the copy of a seed's folder and the file in it;
    it returns, or raises `AccError`. With `renames` not the file's content is mutated but its name. A quick
    run has `sample` mutations.
    """

    name: str
    seeds: Callable[[Path], Sequence[Seed]]
    mutate: Mutate
    read: Callable[[Path, str], object]
    renames: bool = False
    sample: int = 5


@dataclass
class Place:
    """Where a process has copies of the seeds' folders, each with at most one file that is not sound."""

    directory: Path
    copies: dict[Path, Path] = field(default_factory=dict)

    def copy_of(self, home: Path) -> Path:
        """This process's copy of a folder."""
        if home not in self.copies:
            self.copies[home] = self.directory / f"{len(self.copies)}"
            shutil.copytree(home, self.copies[home], symlinks=True)
        return self.copies[home]


@dataclass(frozen=True)
class Prepared:
    """A format whose sound files are written and remembered."""

    format: Format
    seeds: Sequence[Seed]
    contents: Sequence[bytes]

    @classmethod
    def of(cls, format_: Format, directory: Path) -> Prepared:
        """The format with its seeds below a directory of its own."""
        seeds = format_.seeds(directory / format_.name)
        if format_.renames:
            return cls(format_, seeds, [os.fsencode(os.path.basename(seed.file)) for seed in seeds])
        return cls(format_, seeds, [(seed.home / seed.file).read_bytes() for seed in seeds])

    def drawn(self, seed: int, number: int) -> tuple[Seed, bytes]:
        """The seed of case `number` and what it is mutated to."""
        random = Random(f"{self.format.name}:{seed}:{number}")
        at = random.randrange(len(self.seeds))
        others = [content for other, content in enumerate(self.contents) if other != at]
        return self.seeds[at], self.format.mutate(random, self.contents[at], others)[:_LARGEST]

    @contextlib.contextmanager
    def written(self, place: Place, seed: Seed, mutated: bytes) -> Iterator[tuple[Path, str]]:
        """The case on disk: a copy of the folder, and the file in it. Afterwards the copy is sound again."""
        home = place.copy_of(seed.home)
        file = home / seed.file
        if self.format.renames:
            with _renamed(file, mutated) as name:
                yield home, os.path.relpath(name, home)
            return
        sound = file.read_bytes()
        _replace(file, mutated)
        try:
            yield home, seed.file
        finally:
            _replace(file, sound)


def _replace(file: Path, content: bytes) -> None:
    """A new file in place of the old one: what readers remember of a file goes by its inode too."""
    with contextlib.suppress(FileNotFoundError):
        file.unlink()
    file.write_bytes(content)


@contextlib.contextmanager
def _renamed(file: Path, mutated: bytes) -> Iterator[str]:
    """The file or directory under another name of the same folder, as far as the system takes it for one."""
    name = mutated.replace(b"/", b"_").replace(b"\0", b"_")[:255]
    target = os.path.join(os.fsencode(file.parent), b"_" if name in (b"", b".", b"..") else name)
    if os.path.lexists(target):
        yield str(file)
        return
    os.rename(file, target)
    try:
        yield os.fsdecode(target)
    finally:
        os.rename(target, file)
