"""What a whole run says: where errors start, and what follows from each. Made by the room `diagnosis`."""

from __future__ import annotations

from dataclasses import dataclass

from .row import Row


@dataclass(frozen=True, slots=True)
class Root:
    """A failing pair whose inputs agree.

    `inherited` counts the pairs whose failure starts here. `amplification` is the largest excess among
    them over its own, `share` the part of the final output's squared error that it explains (0 to 1), both
    `None` where unknown. `sentence` is what the summary says after `root cause: `.
    """

    number: int
    name: str
    test_id: str
    row: Row
    inherited: int
    amplification: float | None
    share: float | None
    basis: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All roots in execution order, the number of inherited failures, and how lineage was known."""

    roots: tuple[Root, ...]
    inherited: int
    basis: str
    notes: tuple[str, ...] = ()
