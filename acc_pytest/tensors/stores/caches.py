"""The caches in use: the only directories whose mirrors are believed, and whose they must be.

A path is below a mirror where it is below the mirrors of such a cache, whatever else is called alike.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable

from ...errors import AccError
from ..whole_file import make_directory

MIRRORS = "acc_mirror"
BLOCKS = "acc_blocks"
_mirrors: tuple[str, ...] = ()
"""Directories of mirrors, of all caches in use, with a slash at the end."""


@functools.lru_cache(maxsize=64)
def check_cache(cache: str) -> None:
    """Make the directory of a cache where it is missing, for this user alone.

    Raises `AccError` for one that others may write to: what they write would pass for what a store holds.
    """
    try:
        make_directory(os.path.dirname(cache))
        with contextlib.suppress(FileExistsError):
            os.mkdir(cache, 0o700)
        for place in (cache, f"{cache}/{MIRRORS}", f"{cache}/{BLOCKS}"):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(place)
                why = "belongs to another user" if status.st_uid not in (0, os.geteuid()) else ""
                if why or status.st_mode & 0o022:
                    raise AccError(
                        f"{place}: {why or 'can be written by others'}, who could change what is read of "
                        f"stores; {'' if why else f'chmod go-w {place}, or '}give another acc_cache_dir"
                    )
    except OSError as error:
        raise AccError(
            f"{cache}: cannot be the cache: {error.strerror}; give another acc_cache_dir"
        ) from None


def use_caches(caches: Iterable[str]) -> None:
    """Believe the mirrors of these caches: this run uses them."""
    global _mirrors
    _mirrors = tuple({*_mirrors, *(f"{cache}/{MIRRORS}/" for cache in caches)})


def caches_in_use() -> tuple[str, ...]:
    """The caches in use, for a process that takes part in the run."""
    return tuple(mirrors.removesuffix(f"/{MIRRORS}/") for mirrors in _mirrors)


def is_mirrored(path: str) -> bool:
    """Whether a path is below the mirrors of a cache in use."""
    return path.startswith(_mirrors)


def home_at(path: str) -> str:
    """The home of the mirror that a path is in or below; empty for any other path."""
    for mirrors in _mirrors:
        if path.startswith(mirrors):
            return mirrors + path[len(mirrors) :].partition("/")[0]
    return ""
