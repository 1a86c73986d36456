"""Dump directories of every kind and era: steps x ranks x nodes -> tensor references.

What reads them is imported where a dump is opened: plans hold labels and references only, and a worker that
has received one needs no torch before its first pair.
"""

from __future__ import annotations

from ..errors import guarded
from ..tensors.address import Cache, Places, index_home, is_mirrored, path_alone, text_of_places
from .base import Dump, DumpLayout, Listing, PlainLayout, Rank, Slot, Step, StepLabel

__all__ = ["Dump", "DumpLayout", "Listing", "PlainLayout", "Rank", "Slot", "Step", "StepLabel", "open_dump"]


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
        from .discovery import locate

        path_on_disk = path_alone(path)
        if path_on_disk is None:
            from ..remote.places import path_of

            path_on_disk = path_of(path, cache or Cache())
        listing = Listing()
        layout = locate(path_on_disk, listing)
        note = _index_note(str(layout.root))
        dump = layout.open(listing, token_policy, golden)
        if note:
            dump.notes += (note,)
        return dump


def _index_note(root: str) -> str:
    """Use the index of the dump at `root`, if it has one; returns why it could not be used."""
    home = root if is_mirrored(root) else index_home(root)
    if not home:
        return ""
    from ..remote.places import index_note

    return index_note(home)
