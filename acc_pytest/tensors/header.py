"""Header and location of one tensor: plain data that every format shares."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from ..errors import AccError, FormatError, NoPayload
from .dtypes import DType
from .kept_dump import kept_version
from .location import placed_at

PRINTS = "prints"
_LISTED = 10
_Member = TypeVar("_Member")
_Content = TypeVar("_Content")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a tensor in a dump without values; `None` where the writer could not say (`N/A`).

    `rounding` is the relative error of mean and l2norm where these were rounded to the dtype of the tensor,
    `digits` that of all four where few digits were printed.
    """

    max: float | None
    min: float | None
    mean: float | None
    l2norm: float | None
    l1norm: float | None = None
    rounding: float = field(default=0.0, kw_only=True)
    digits: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Description of a tensor, read before its payload is touched.

    `payload` says what the file holds: `data`, `description` (dtype and shape only), `statistics`, `prints`
    (the mean, and the elements that a log prints) or `alias` (the values are in `alias`, a file name to be
    resolved by the dump).
    `digest` is a check sum of the bytes, equal for equal bytes, where a writer gives one beside statistics.
    `counted` is false where statistics do not say of how many elements they are; `shape` is then ().
    `offset` and `nbytes` locate the payload inside the file, both already checked against its size. `plain`
    says that the elements lie there as they are read: row-major, in this machine's order of bytes.
    """

    dtype: DType
    shape: tuple[int, ...]
    payload: str = "data"
    offset: int = 0
    nbytes: int = 0
    layout: str = "nd"
    statistics: Statistics | None = None
    alias: str = ""
    counted: bool = True
    digest: str = ""
    plain: bool = False

    @property
    def numel(self) -> int:
        """Number of elements: the product of `shape`, 1 for a 0-d tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Location:
    """Location of one tensor on the disk.

    `path` is the file, `member` the name inside it for formats that hold several tensors (a
    safetensors key, `Output/0` in a torch `statistics.csv`), empty otherwise. `root` is the
    directory below which an alias or a broken absolute link of this file may be looked up: the
    execution directory of an ATB dump, empty for a file that stands alone.
    """

    path: str
    member: str = ""
    root: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else self.path


def member_of(place: Location, members: Mapping[str, _Member], kind: str) -> _Member:
    """The entry of a file of several tensors at the member of `place`, empty where there is but one.

    Raises `FormatError`, which lists the members by their `kind`, where there is none.
    """
    if not place.member and len(members) == 1:
        return next(iter(members.values()))
    if place.member in members:
        return members[place.member]
    listed = ", ".join([*members][:_LISTED]) + (", ..." if len(members) > _LISTED else "")
    problem = (
        f"has no {kind} {place.member!r:.100}" if place.member else f"holds {len(members)} {kind}s, name one"
    )
    raise FormatError(f"{place.path}: {problem}; its {kind}s: {listed or '(none)'}")


def version_of(path: str) -> tuple[int, ...]:
    """The version of a file, which changes when it is written or replaced; empty for one without a status.

    Caches of a file's content use this key. A link to nowhere has none, yet may
    still be found elsewhere in its dump.
    """
    if _versions is None:
        return _version_now(path)
    if path not in _versions:
        _versions[path] = _version_now(path)
    return _versions[path]


def until_changed(
    maxsize: int,
) -> Callable[[Callable[[str], _Content]], Callable[[str | os.PathLike[str]], _Content]]:
    """Have a reader remember the content of the last `maxsize` files, each until it changes."""

    def remembering(read: Callable[[str], _Content]) -> Callable[[str | os.PathLike[str]], _Content]:
        @functools.lru_cache(maxsize)
        def as_of(path: str, _version: tuple[int, ...]) -> _Content:
            return read(path)

        @functools.wraps(read)
        def current(path: str | os.PathLike[str]) -> _Content:
            text = os.fspath(path)
            return as_of(text, version_of(text))

        return current

    return remembering


class WithoutValues:
    """A format of files that describe tensors. `lacking` says what a file holds in place of values."""

    lacking: str

    def open(self, place: Location, header: TensorHeader) -> NoReturn:
        """Never a tensor: raises `NoPayload`."""
        raise NoPayload(f"{place}: {self.lacking}")


@contextlib.contextmanager
def looking_once() -> Iterator[Mapping[str, tuple[int, ...]]]:
    """Within this each file is looked at once: a pair asks ten times what its two files say.

    Gives what was found, as `version_of` says it, by path. One inside of another is the same look.
    """
    global _versions
    before, _versions = _versions, {} if _versions is None else _versions
    try:
        yield _versions
    finally:
        _versions = before


_versions: dict[str, tuple[int, ...]] | None = None


def _version_now(path: str) -> tuple[int, ...]:
    try:
        placed = placed_at(path)
        if placed is not None and not placed.path:
            return placed.row.size, placed.row.version
        status = os.stat(path if placed is None else placed.path)
    except (OSError, ValueError, AccError):
        return kept_version(path)
    return status.st_size, status.st_mtime_ns, status.st_ino
