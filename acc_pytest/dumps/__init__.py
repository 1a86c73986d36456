"""Dump directories of every kind and era: steps x ranks x nodes -> tensor references.

What reads them is imported where a dump is opened: plans hold labels and references only, and a worker that
has received one needs no torch before its first pair.
"""

from __future__ import annotations

from ..errors import guarded
from ..tensors.address import Cache, Places, path_alone, text_of_places
from .base import Dump, Rank, Slot, Step, StepLabel

__all__ = ["Dump", "Rank", "Slot", "Step", "StepLabel", "open_dump"]


def open_dump(
    path: Places, *, token_policy: str = "auto", golden: Dump | None = None, cache: Cache | None = None
) -> Dump:
    """Open the dump that `path` means: a dump, a place inside one, or a parent of exactly one.

    It may be an address of a store (`s3://bucket/dump`, whose bytes are kept in `cache`), and several places
    that are one dump (`remote/places.py`).

    `token_policy` (auto, raw, no-warmup, warmup, torch-like) labels the directories of ATB dumps; `golden`
    is the golden, already open, whose token ids and lengths `auto` takes as evidence. Nothing but the
    topology, directory listings and those token ids is read.

    Raises `DumpError` for a path that is no dump or several, `FormatError` for a broken topology,
    `SettingsError` for an unknown policy.
    """
    with guarded(f"opening the dump {text_of_places(path)}"):
        from .opening import opened

        path_on_disk = path_alone(path)
        if path_on_disk is None:
            from ..remote.places import path_of

            path_on_disk = path_of(path, cache or Cache())
        return opened(path_on_disk, token_policy, golden)
