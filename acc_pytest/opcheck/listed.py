"""All entries that a session checks: from every source, selected, each with the names of its test."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import DumpError
from ..guard import guarded
from ..vocabulary import selectable
from .context import ROOT
from .entry import Entry
from .select import selected
from .settings import OpcheckSettings
from .source_csv import entries_of_csv
from .source_directory import entries_of_directory

Named = tuple[tuple[str, ...], Entry]
"""The names of the collectors above an entry and its own, and the entry."""

_NOT_IN_IDS = re.compile(r"[^\w+\-.]")


def listed(settings: OpcheckSettings) -> tuple[Named, ...]:
    """The chosen entries in order. Raises `AccError` for what is no source, and when nothing is chosen."""
    sources = ", ".join(settings.sources)
    with guarded(f"listing the operations of {sources}"):
        entries = list(_all(settings.sources))
        chosen = list(selected(entries, settings.ids, settings.names))
    if not entries:
        raise DumpError(f"{sources}: lists no operation; was it dumped with --type op tensor?")
    if not chosen:
        kinds = ", ".join(sorted({entry.name for entry in entries})[:8])
        raise DumpError(
            f"none of {len(entries)} operations is selected by --acc-opcheck-ids and --acc-opcheck-opname; "
            f"there are {kinds}, with ids such as {entries[0].ids or '(none)'}; commas separate several"
        )
    return tuple(_named(chosen))


def _all(sources: Iterable[str]) -> Iterator[Entry]:
    number, groups = 0, Counter[str]()
    for source in sources:
        if os.path.isdir(source):
            entries = entries_of_directory(Path(source), number)
        else:
            stem = selectable(Path(source).stem, _NOT_IN_IDS)
            group = f"{stem}-{groups[stem]}" if groups[stem] else stem
            groups[stem] += 1
            entries = entries_of_csv(Path(os.path.abspath(source)), group, number)
        for entry in entries:
            number += 1
            yield entry


def _named(entries: Iterable[Entry]) -> Iterator[Named]:
    """Entries with names that are unique: an operation that is listed again gets a number in brackets."""
    counts: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        group, name = (selectable(text, _NOT_IN_IDS) for text in (entry.group, entry.full_name))
        again = counts[group, name]
        counts[group, name] += 1
        yield (ROOT, group, f"{name}[{again}]" if again else name), entry
