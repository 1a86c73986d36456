"""The selection of operations by ids of their path and substrings of their names, as in the old tool."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..errors import SettingsError
from ..vocabulary import words_of
from .entry import Entry

_ID = re.compile(r"^\d+(_\d+)*$")


def ids_from(text: str) -> tuple[str, ...]:
    """The ids in `24_1, 2_3_5`. Raises `SettingsError` for what is no id."""
    ids = words_of(text)
    for entry_id in ids:
        if not _ID.match(entry_id):
            raise SettingsError(
                f"--acc-opcheck-ids {entry_id}: an id is numbers joined by _; commas separate ids: 24_1,2_3_5"
            )
    return ids


def names_from(text: str) -> tuple[str, ...]:
    """The parts of names in `self, Linear`, in lower case."""
    return words_of(text.lower())


def selected(entries: Iterable[Entry], ids: Sequence[str], names: Sequence[str]) -> Iterator[Entry]:
    """Entries that one of `ids` names or lies above, and whose class name one of `names` is part of.

    No ids or no names select everything.
    """
    for entry in entries:
        if ids and not any(entry.ids == entry_id or entry.ids.startswith(f"{entry_id}_") for entry_id in ids):
            continue
        if names and not any(name in entry.name.lower() for name in names):
            continue
        yield entry
