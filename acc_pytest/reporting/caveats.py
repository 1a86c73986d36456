"""Limits of what a run proves: the first line of its summary, and a reason to fail."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..mapping.pair import LAST_OUTPUT
from ..vocabulary import INCOMPLETE
from .printable import printable
from .row import Row

if TYPE_CHECKING:
    from ..mapping.pair import Plan

WHOLE = 0.9
"""The part of golden's nodes from which on a comparison is not called partial."""
_CAPPED = "capped at 0.25"
"""The words in the reason of a bound whose T is `judging.tolerance.CAP`."""
_ANYTHING = ("mask", "cache", "buffer")
"""Kinds of feed that may hold NaN and Inf: masks do, and caches what the memory held."""


class Caveats:
    """Counts rows whose comparison proves little as they arrive, and keeps the first of a golden not finite.

    NaN in golden is no value to compare with. Inf is none where nothing else is there, and in results of
    modules and layers: operators inside of attention mask with it.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: tuple[int, Row] | None = None

    def add(self, row: Row) -> None:
        """Take a row into account, in any order."""
        self._counts["absent"] += row.strict and row.verdict == INCOMPLETE and LAST_OUTPUT not in row.sentence
        self._counts["end"] += row.strict and LAST_OUTPUT in row.sentence
        self._counts["capped"] += any(_CAPPED in check.reason for check in row.checks)
        if row.case or not row.counts:
            return
        place = row.number if row.number is not None else 2**62
        if _is_not_finite(row) and (self._first is None or place < self._first[0]):
            self._first = place, row
        if not row.fed:
            self._counts["results"] += 1
            ends = row.golden.min, row.golden.max, row.mine.min, row.mine.max
            self._counts["empty"] += row.counts.get("elements") == 0
            self._counts["nothing but zeros"] += all(end == 0 for end in ends)

    @property
    def not_finite(self) -> list[str]:
        """A sentence on the first tensor of golden that is not finite; none where all are."""
        if self._first is None:
            return []
        row = self._first[1]
        name = printable(row.golden.name or row.name, 120) + ("" if row.step == "" else f" (step {row.step})")
        return [f"golden is not finite from {name} on, so the run fails; dump one without NaN and Inf"]

    def first(self, plan: Plan | None) -> list[str]:
        """The sentences of the first line of a summary."""
        sentences = self.not_finite
        if plan is not None and plan.golden_mapped < WHOLE * plan.golden_total:
            share = 100 * plan.golden_mapped / plan.golden_total
            sentences.append(f"partial: {share:.0f} % of golden's tensors were compared")
        if plan is not None and plan.golden_root == plan.mine_root and plan.golden_kind not in ("", "manual"):
            sentences.append("golden and mine are the same directory")
        sentences += [LAST_OUTPUT] if self._counts["end"] else []
        sentences += ["incomplete: a dump lacks what it states"] if self._counts["absent"] else []
        results = self._counts["results"]
        for what in ("empty", "nothing but zeros"):
            sentences += (
                [f"{self._counts[what]} of {results} results are {what}"] if self._counts[what] else []
            )
        return sentences

    @property
    def at_cap(self) -> list[str]:
        """The line on pairs that were judged by the largest bound."""
        capped = self._counts["capped"]
        pairs = "pair was" if capped == 1 else "pairs were"
        return [f"{capped} {pairs} held against the cap of 0.25"] if capped else []


def _is_not_finite(row: Row) -> bool:
    nan, inf = (row.counts.get(f"golden_{what}") for what in ("nan", "inf"))
    computed = row.level not in ("op", "") and not row.golden.slot.startswith("input")
    infinite = inf and (computed or inf == row.counts.get("elements"))
    return row.fed not in _ANYTHING and bool(nan or infinite)
