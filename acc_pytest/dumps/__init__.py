"""Dump directories of every kind and era: steps x ranks x nodes -> tensor references.

What reads them is imported where a dump is opened: plans hold labels and references only, and a worker that
has received one needs no torch before its first pair.
"""

from __future__ import annotations

from ..guard import guarded
from .base import Dump, Rank, Slot, Step, StepLabel

__all__ = ["Dump", "Rank", "Slot", "Step", "StepLabel", "open_dump"]


def open_dump(path: str, *, token_policy: str = "auto", other: Dump | None = None) -> Dump:
    """Open the dump that `path` means: a dump, a place inside one, or a parent of exactly one.

    `token_policy` (auto, raw, no-warmup, warmup, torch-like) labels the directories of ATB dumps; `other`
    is the golden, already open, whose token ids and lengths `auto` takes as evidence. Nothing but the
    topology, directory listings and those token ids is read.

    Raises `DumpError` for a path that is no dump or several, `FormatError` for a broken topology,
    `SettingsError` for an unknown policy.
    """
    with guarded(f"opening the dump {path}"):
        from .opening import opened

        return opened(path, token_policy, other)
