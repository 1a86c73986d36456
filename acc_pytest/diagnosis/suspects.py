"""Suspects: operators above a root, or between it and its inputs, that are wrong on their own inputs or have
other parameters."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from .ancestors import Ancestors
from .names import full_name
from .pair_state import PairState
from .recomputation import Recomputer

if TYPE_CHECKING:
    from ..mapping.pair import Pair, Plan
    from ..reporting.row import Row

LOOKED_AT = 12
"""Pairs above a root whose operators are computed again to find the one that is wrong. Of operators that are
not compared at all it is as many as the plan names (`nearest.MOST_BETWEEN`)."""
_PLAIN = re.compile("Elewise|Split|Concat|Slice|Transpose|Reshape|AllReduce|AllGather")
"""Operators without weights, and whose parameters hardly differ: they only move, add and multiply."""


def may_differ(row: Row, number: int, pair: Pair) -> bool:
    """Whether the operator of a pair that passes may have other weights or parameters than golden's: it has
    some, and is further off than one operator rounds. Rows of a tie or of experts may be others."""
    if _PLAIN.match(pair.mine.op_type) or pair.golden.experts is not None or row.after_tie:
        return False
    state = PairState.of(row, number)
    return state.error is not None and not state.near


class Suspects:
    """The operators around the pairs of a plan; names are those that roots are called by."""

    def __init__(self, plan: Plan, ancestors: Ancestors, local: Recomputer) -> None:
        self._plan = plan
        self._ancestors = ancestors
        self._local = local

    def wrong_between(self, number: int) -> str:
        """The operator that is wrong, and not compared, between a pair and those above it; or empty."""
        for path in self._plan.between.get(number, ()):
            if self._local.of_operator(number, path).outcome == "wrong":
                return full_name(path)
        for parent in self._ancestors.passed(number)[:LOOKED_AT]:
            local = self._local.of_pair(parent)
            if local.outcome == "wrong":
                return local.culprit or self._plan.pairs[parent].mine.name
        return ""

    def unlike_between(self, number: int) -> tuple[str, str]:
        """The operator that has other parameters than golden's and is not compared, and why; or empty.

        One whose parameters are not those of the other layers; else the nearest that has any, above an
        operator that has none itself: a sum or a split cannot be off where it is right.
        """
        paths = self._plan.between.get(number, ())
        for path in paths:
            if unlike := self._local.unlike(number, path):
                return full_name(path), unlike
        if not _PLAIN.match(self._plan.pairs[number].mine.op_type):
            return "", ""
        nearest = next((name for name in map(full_name, paths) if not _PLAIN.match(name)), "")
        return nearest, "its weights or parameters are other ones than golden's"

    def wrong_above(self, number: int) -> str:
        """The nearest operator above that is wrong although it is within its thresholds; or empty."""
        count = 0
        for state, _ in self._ancestors.walk(number, lambda _: False):
            if count == LOOKED_AT:
                break
            local = self._local.of_pair(state.number)
            count += bool(local.outcome)
            if local.outcome == "wrong":
                return local.culprit or state.name
        return ""

    def unlike_above(self, number: int) -> tuple[str, str]:
        """The nearest operator above with a parameter that other layers do not have, and which; or empty."""
        near = (state for state, _ in self._ancestors.walk(number, lambda _: False))
        for state in islice(near, LOOKED_AT):
            if unlike := self.unlike(state.number):
                return state.name, unlike
        return "", ""

    def unlike(self, number: int) -> str:
        """A sentence on parameters of a pair's operator that other layers do not have; or empty."""
        return self._local.unlike(number, self._plan.pairs[number].mine.node)
