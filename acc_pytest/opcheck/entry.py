"""`Entry`: one operation as a source lists it, before anybody looks for its files.

Entries are cheap, because ten thousand of them are made before the first test runs, and they hold nothing
but strings and numbers, because they are sent to xdist workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of an operation CSV, or one operator's directory.

    `number` counts the entries of a session. `source` says where it was listed (`op.csv:12`, a
    directory), `origin` is the CSV file or the directory that was given. `group` is the name of its
    collector: the CSV's or the step's. `step` is the number of the execution, -1 where the source
    does not say. `cells` are the columns of a CSV row, empty for a directory; `directory` and `base`
    (the execution's directory above it) are empty for a CSV row.

    `problem` is why nothing can be checked; `skipped` says that it is nobody's mistake.
    """

    number: int
    full_name: str
    source: str
    origin: str
    group: str
    step: int = -1
    cells: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    base: str = ""
    problem: str = ""
    skipped: bool = False

    @property
    def name(self) -> str:
        """ATB's class name: what stands before the first `_`."""
        return self.full_name.partition("_")[0]

    @property
    def ids(self) -> str:
        """The ids of its path, joined by `_`; empty where the name has none."""
        return self.full_name.partition("_")[2]
