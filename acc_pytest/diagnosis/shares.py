"""How much of the final output's error each root explains: added-error accounting.

Let e be a pair's relative L2 error. Errors that operators add are taken as independent, so squares add:

    e_out^2 = sum over what it computes from of g_p^2 e_p^2 + a^2

with g_p the operator's gain for that input and `a` what it adds itself. Gains are not measured; two cases
need none of them by name:

- of an inherited pair a = 0 (that is what the verdict says). With equal gains the part of the square that
  comes by way of p is e_p^2 / sum e_q^2;
- of a root, and of a pair that passes (which adds its rounding), g = 1 is taken, so that it adds
  a^2 = e_out^2 - max e_p^2. Of a second mistake below a first `a` is measured: the local error of its
  operator, computed again from the inputs that mine has.

The final output of a step has the part 1. Going up from it, each pair hands on to what is above it, in
these proportions, what it has not added itself; it keeps a^2 / e_out^2 of what arrives. What roots keep is
their share; what pairs that pass keep is explained by no root. So shares are at least 0 and together at
most 1.

Where a pair has no relative error (statistics, whole numbers) its level takes its place, on that step of
the way; a new NaN is infinite beside any number.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..reporting.row import Cause
from .pair_state import PairState


def shares(
    final: int,
    first: int,
    parents: Sequence[Sequence[int]],
    states: Mapping[int, PairState],
    causes: Mapping[int, Cause],
) -> dict[int, float]:
    """The share of each root between the pairs `first` and `final`, both of one step, that has one.

    `causes` has every failing pair. A `final` that passes has nothing to explain: no root has a share.
    """
    if final not in causes:
        return {}
    parts: dict[int, float] = defaultdict(float, {final: 1.0})
    explained: dict[int, float] = {}
    for number in range(final, first - 1, -1):
        part = parts.pop(number, 0.0)
        if not part:
            continue
        state, cause = states.get(number), causes.get(number)
        above = _between(first, parents[number] if number < len(parents) else (), number)
        if state is None or not state.compared:
            # Nothing is known of it, so what is above it gets equal parts.
            weights = _equal(above)
        else:
            if cause is not None and cause.kind == "inherited" and not set(cause.parents) & set(above):
                above = _between(first, cause.parents, number)
            kept, weights = _divided(state, cause, above, states)
            if cause is not None and cause.kind == "root":
                explained[number] = min(1.0, part * kept)  # parts of 1 may sum to a rounding more
            part *= 1.0 - kept
        for parent, weight in weights.items():
            parts[parent] += part * weight
    return explained


def _between(first: int, numbers: Sequence[int], last: int) -> list[int]:
    return [number for number in numbers if first <= number < last]


def _equal(numbers: Sequence[int]) -> dict[int, float]:
    return dict.fromkeys(numbers, 1.0 / len(numbers)) if numbers else {}


def _divided(
    state: PairState, cause: Cause | None, above: Sequence[int], states: Mapping[int, PairState]
) -> tuple[float, dict[int, float]]:
    """What a pair keeps of the part that arrives, and how the rest goes to those above it."""
    known = [states[parent] for parent in above if parent in states]
    hidden = [parent for parent in above if parent not in states or not states[parent].compared]
    return _added(state, cause, known), _weights(state, known) or _equal(hidden)


def _added(state: PairState, cause: Cause | None, above: Sequence[PairState]) -> float:
    """The part of its squared error that a pair adds itself: nothing where it is inherited."""
    if cause is not None and cause.kind != "root":
        return 0.0
    own, others = _sizes(state, above)
    if cause is not None and cause.parents and cause.local_error is not None and 0 < own < math.inf:
        return min(1.0, (cause.local_error / own) ** 2)
    most = max(others, default=0.0)
    if math.isinf(own):
        return 0.0 if math.isinf(most) else 1.0
    if own <= 0.0:
        return 0.0 if above else 1.0
    return max(0.0, 1.0 - (most / own) ** 2)


def _sizes(state: PairState, above: Sequence[PairState]) -> tuple[float, list[float]]:
    """Errors in one unit, infinite for a new NaN: relative ones where all have them, else levels."""
    compared = [parent for parent in above if parent.compared]
    known = all(parent.error is not None for parent in (state, *compared))

    def size(parent: PairState) -> float:
        if math.isinf(parent.level) or not known:
            return parent.level
        return parent.error if parent.error is not None and not math.isnan(parent.error) else math.inf

    return size(state), [size(parent) for parent in compared]


def _weights(state: PairState, above: Sequence[PairState]) -> dict[int, float]:
    """The parts that the pairs above have in what came in, by number; they sum to 1, or nothing came in."""
    numbers = [parent.number for parent in above if parent.compared]
    sizes = dict(zip(numbers, _sizes(state, above)[1]))
    infinite = [number for number, size in sizes.items() if math.isinf(size)]
    if infinite:
        return dict.fromkeys(infinite, 1.0 / len(infinite))
    largest = max(sizes.values(), default=0.0)
    if largest <= 0.0:
        return {}
    squares = {number: (size / largest) ** 2 for number, size in sizes.items()}
    total = sum(squares.values())
    return {number: square / total for number, square in squares.items()}
