"""Calls of one expert: a module that runs several times in a step, each time on other tokens."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable

from ..mapping.pair import Pair, Plan
from ..tensors.ref import readable

_LATER_CALL = re.compile(r"\.call[0-9]+$")
"""The end of the path of a module's second and later calls in a step."""
_EXPERT = re.compile("expert", re.IGNORECASE)
"""In paths of modules of experts. Where their calls have as many rows each, a token that names its experts in
another order is still in another row."""


class ExpertCalls:
    """The pairs of a plan that hold the tokens of one expert, of which there may be as many as of all."""

    def __init__(self, plan: Plan) -> None:
        self._calls: dict[object, list[Pair]] = defaultdict(list)
        for pair in plan.pairs:
            self._calls[_module(pair)].append(pair)
        self._of_experts: dict[object, bool] = {}

    def holds(self, pair: Pair) -> bool:
        """Whether the pair's module is one of experts, or its calls had different numbers of rows."""
        module = _module(pair)
        if module not in self._of_experts:
            calls = self._calls[module]
            self._of_experts[module] = len(calls) > 1 and (
                bool(_EXPERT.search(pair.mine.node)) or len(_row_counts(calls)) > 1
            )
        return self._of_experts[module]


def _row_counts(calls: Iterable[Pair]) -> set[int]:
    headers = (readable(ref) for call in calls for ref in call.golden.refs)
    return {math.prod(header.shape[:-1]) for header in headers if header}


def _module(pair: Pair) -> object:
    return pair.step, pair.rank, pair.graph, _LATER_CALL.sub("", pair.mine.node), pair.mine.slot
