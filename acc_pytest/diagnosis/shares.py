"""How much of the final output's error each root explains: added-error accounting.

Let e be a pair's relative L2 error. Errors that operators add are taken as independent, so squares add:

    e_out^2 = sum over what it computes from of g_p^2 e_p^2 + a^2

with g_p the operator's gain for that input and `a` what it adds itself. Gains are not measured; two cases
need none of them by name:

- of an inherited pair a = 0 (that is what the verdict says). With equal gains the part of the square that
  comes by way of p is e_p^2 / sum e_q^2;
- of a root, and of a pair that passes (which adds its rounding), g = 1 is taken, so that it adds
  a^2 = e_out^2 - max e_p^2. Of a second mistake below a first `a` is measured: the local error of its
  operator, computed again on mine's own inputs.

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
from .standing import Standing


def shares(
    final: int,
    first: int,
    parents: Sequence[Sequence[int]],
    standings: Mapping[int, Standing],
    causes: Mapping[int, Cause],
) -> dict[int, float]:
    """The share of each root between the pairs `first` and `final`, both of one step, that has one.

    `causes` has every failing pair. A `final` that passes has nothing to explain: no root has a share.
    """
    if final not in causes:
        return {}
    parts: dict[int, float] = defaultdict(float)
    parts[final] = 1.0
    found: dict[int, float] = {}
    for number in range(final, first - 1, -1):
        part = parts.pop(number, 0.0)
        if not part:
            continue
        standing, cause = standings.get(number), causes.get(number)
        above = [one for one in (parents[number] if number < len(parents) else ()) if first <= one < number]
        if standing is None or not standing.compared:
            # Nothing is known of it, so what is above it gets equal parts.
            for one in above:
                parts[one] += part / len(above)
            continue
        if cause is not None and cause.kind == "inherited" and not set(cause.parents) & set(above):
            above = [one for one in cause.parents if first <= one < number]
        if cause is None or cause.kind == "root":
            kept = _added(standing, cause, [standings[one] for one in above if one in standings])
            if cause is not None:
                found[number] = min(1.0, part * kept)  # parts of 1 may sum to a rounding more
            part *= 1.0 - kept
        weights = _weights(standing, [standings[one] for one in above if one in standings])
        hidden = [one for one in above if one not in standings or not standings[one].compared]
        for one, weight in weights.items():
            parts[one] += part * weight
        if not weights:
            for one in hidden:
                parts[one] += part / len(hidden)
    return found


def _added(standing: Standing, cause: Cause | None, above: Sequence[Standing]) -> float:
    """The part of its squared error that a root, or a pair that passes, adds itself."""
    own, others = _sizes(standing, above)
    if cause is not None and cause.parents and cause.local_error is not None and 0 < own < math.inf:
        return min(1.0, (cause.local_error / own) ** 2)
    most = max(others, default=0.0)
    if math.isinf(own):
        return 0.0 if math.isinf(most) else 1.0
    if own <= 0.0:
        return 0.0 if above else 1.0
    return max(0.0, 1.0 - (most / own) ** 2)


def _sizes(standing: Standing, above: Sequence[Standing]) -> tuple[float, list[float]]:
    """Errors in one unit, infinite for a new NaN: relative ones where all have them, else levels."""
    compared = [one for one in above if one.compared]
    known = all(one.error is not None for one in (standing, *compared))

    def size(one: Standing) -> float:
        if math.isinf(one.level) or not known:
            return one.level
        return one.error if one.error is not None and not math.isnan(one.error) else math.inf

    return size(standing), [size(one) for one in compared]


def _weights(standing: Standing, above: Sequence[Standing]) -> dict[int, float]:
    """The parts that the pairs above have in what came in, by number; they sum to 1, or nothing came in."""
    numbers = [one.number for one in above if one.compared]
    sizes = dict(zip(numbers, _sizes(standing, above)[1]))
    infinite = [number for number, size in sizes.items() if math.isinf(size)]
    if infinite:
        return dict.fromkeys(infinite, 1.0 / len(infinite))
    largest = max(sizes.values(), default=0.0)
    if largest <= 0.0:
        return {}
    squares = {number: (size / largest) ** 2 for number, size in sizes.items()}
    total = sum(squares.values())
    return {number: square / total for number, square in squares.items()}
