"""One of the places of a dump, and where the bytes of stores are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..tensors.stores.address import DEFAULT_LIMIT, address_of, default_cache, is_address, local_path
from ..tensors.stores.blocks import set_limit
from ..tensors.stores.making import mirrored


@dataclass(frozen=True, slots=True)
class Cache:
    """The directory of the bytes of stores, and their limit."""

    directory: str = ""
    limit: int = DEFAULT_LIMIT

    @property
    def path(self) -> str:
        return os.path.abspath(self.directory or default_cache())


@dataclass(frozen=True, slots=True)
class DumpRoot:
    """One of the places of a dump: a path or an address, and the numbers of the ranks there, if given."""

    place: str
    ranks: tuple[int, ...] | None = None

    def path(self, cache: Cache) -> str:
        """The path that stands for it. Raises `DumpError` for an address with nothing at it."""
        if not is_address(self.place):
            return local_path(self.place)
        set_limit(cache.path, cache.limit)
        return mirrored(address_of(self.place), cache.path)
