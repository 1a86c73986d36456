"""What a run proves less by than it seems to: in the first line of its summary, and what makes it fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..mapping.pair import LAST_OUTPUT
from ..vocabulary import INCOMPLETE
from .printable import printable
from .row import Row

if TYPE_CHECKING:
    from ..mapping.pair import Plan

WHOLE = 0.9
"""The part of golden's nodes from which on a comparison is not called partial."""
CAPPED = "capped at 0.25"
"""What the reason of a bound says where T is `judging.tolerance.CAP`."""
_MAY_BE_INFINITE = ("mask", "cache", "buffer")
"""What a run is fed that is no result: masks hold -inf, caches what the memory held."""
_NAME = 120


class Caveats:
    """Counts rows whose comparison proves little as they arrive; keeps where golden is not finite first.

    NaN in golden is no value to compare with. Infinities are none where nothing else is there, and in results
    of modules and layers: operators inside of attention mask with them.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._not_finite: Row | None = None

    def add(self, row: Row) -> None:
        """Take a row into account, in any order."""
        counts = row.counts
        self._counts["lost"] += row.verdict == INCOMPLETE and row.strict
        self._counts["end"] += row.strict and LAST_OUTPUT in row.sentence
        self._counts["capped"] += any(CAPPED in check.reason for check in row.checks)
        if not counts or row.case:
            return
        if not row.fed:
            self._counts["results"] += 1
            self._counts["empty"] += counts.get("elements") == 0
            self._counts["zero"] += _is_zero(row)
        if _is_not_finite(row) and (self._not_finite is None or _place(row) < _place(self._not_finite)):
            self._not_finite = row

    @property
    def not_finite(self) -> str:
        """Where golden begins not to be finite, in a sentence; empty where it is."""
        row = self._not_finite
        if row is None:
            return ""
        name = printable(row.golden.name or row.name, _NAME)
        where = "" if row.step == "" else f" (step {row.step})"
        return f"golden is not finite from {name}{where} on, so the run fails; dump one without NaN and Inf"

    def first(self, plan: Plan | None) -> list[str]:
        """What the first line of a summary says."""
        said = [self.not_finite] if self.not_finite else []
        if plan is not None and plan.golden_kind:
            if plan.golden_mapped < WHOLE * plan.golden_total:
                share = plan.golden_mapped / plan.golden_total
                said.append(f"partial: {share * 100:.0f} % of golden's tensors were compared")
            if plan.golden_root == plan.mine_root and plan.golden_kind != "manual":
                said.append("golden and mine are the same directory")
        if self._counts["end"]:
            said.append(LAST_OUTPUT)
        if lost := self._counts["lost"] - self._counts["end"]:
            said.append(f"incomplete: a dump lacks what it states ({lost} {'tests' if lost > 1 else 'test'})")
        for name, what in (("empty", "empty"), ("zero", "nothing but zeros")):
            if number := self._counts[name]:
                said.append(f"{number} of {self._counts['results']} results are {what}")
        return said

    @property
    def at_cap(self) -> list[str]:
        """How many pairs rounding says no more of, in a line."""
        number = self._counts["capped"]
        return (
            [f"{number} {'pairs were' if number > 1 else 'pair was'} held against the cap of 0.25"]
            if number
            else []
        )


def _is_zero(row: Row) -> bool:
    sides: Sequence[object] = [end for side in (row.golden, row.mine) for end in (side.min, side.max)]
    return bool(row.counts.get("elements")) and all(end == 0 for end in sides)


def _is_not_finite(row: Row) -> bool:
    nan, inf = (row.counts.get(f"golden_{what}") or 0 for what in ("nan", "inf"))
    if row.fed in _MAY_BE_INFINITE:
        return False
    return bool(nan) or bool(inf and (inf == row.counts.get("elements") or row.level not in ("op", "")))


def _place(row: Row) -> int:
    return row.number if row.number is not None else 2**62
