"""The diagnosis of a run: where errors start, and what follows from each. Made by the room `diagnosis`."""

from __future__ import annotations

from dataclasses import dataclass

from .row import Row


@dataclass(frozen=True, slots=True)
class Root:
    """A failing pair whose inputs agree, with the same operator at other steps and on other ranks.

    `row` is that of the first of its steps; `also` are the rows of the others, which `again` says in words
    (`again at steps 1, 2`). `inherited` counts the pairs whose failure starts here. `amplification` is the
    largest excess among them over its own, `share` the part of the final output's squared error at the first
    step that it explains (0 to 1), both `None` where unknown. `sentence` is what the summary says after
    `root cause: `; `fed` is what it says of inputs of the run, and empty for operators.
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
    also: tuple[Row, ...] = ()
    again: str = ""
    fed: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All roots, the number of inherited failures, and how lineage was known.

    Roots of what the run was fed come first; else they are in execution order. `peers` are lines on what
    stands out among its peers in a run whose bounds all hold.
    """

    roots: tuple[Root, ...]
    inherited: int
    basis: str
    notes: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
