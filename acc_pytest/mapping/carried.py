"""States of recurrent models: tensors that a model returned at the step before and is called with again.

Such an input is computed from all that the state was computed from, though its step shows it as an input.
"""

from __future__ import annotations

from dataclasses import replace

from .pair import Pair, Plan

CARRIED = "cache"


def with_carried(plan: Plan) -> Plan:
    """The plan in which inputs that the step before returned have that result as a parent, with its dtypes
    and depth."""
    steps = list(dict.fromkeys(pair.step for pair in plan.pairs))
    previous = dict(zip(steps[1:], steps))
    results = {
        (pair.step, pair.rank, pair.mine.node, pair.golden.slot, pair.mine.slot): number
        for number, pair in enumerate(plan.pairs)
        if pair.mine.slot.startswith("output")
    }
    pairs, parents = list(plan.pairs), list(plan.parents)
    for number, pair in enumerate(plan.pairs):
        if pair.fed != "input" or pair.step not in previous:
            continue
        slots = (_returned(pair.golden.slot), _returned(pair.mine.slot))
        source = results.get((previous[pair.step], pair.rank, pair.mine.node, *slots))
        if source is not None:
            pairs[number] = _carried(pair, plan.pairs[source])
            parents[number] = (*parents[number], source)
    return replace(plan, pairs=tuple(pairs), parents=tuple(parents))


def _returned(slot: str) -> str:
    return slot.replace("input", "output", 1)


def _carried(pair: Pair, source: Pair) -> Pair:
    return replace(pair, fed=CARRIED, depth=source.depth, computed_in=source.computed_in)
