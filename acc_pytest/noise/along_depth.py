"""`AlongDepth`: how far the layers before a tensor are off, in the comparison itself.

Rounding errors of tokens grow smoothly along the residual stream. Those of whole tensors do not: a few tokens
of trained networks have a thousand times the norm of the others, from one layer to another. With e_k the
error of the typical row (or of the last rows) of layer k's output, and d_k its depth,

    level = max(median of e_k * sqrt((1 + depth) / (1 + d_k)), median of e_k * exp(max(0, s) * (depth - d_k)))
            * max(1, exp(7.49 * spread) / 4)
    s     = median over all pairs of layers of the slope of log e

over the `LAYERS` layers before: the random walk of `tolerance.py`, or the growth that the run shows where
that is more (Theil 1950, Sen 1968). One wrong layer of eight hardly moves it; the slope breaks down at three.
The spread is the median distance of log e from the line of slope s, as a standard deviation. A value beside
eight that are normally distributed is 7.06 * sqrt(1 + 1/8) of these away once in 10,000 (Student's t of 7);
where that is more than the factor 4 of the bound (`judging.derive`), the level is larger by so much.

What attention and gates make of rounding may have a direction, another one in each layer. So a bias may be as
far off as a ninth beside those of the same tensor, 7.49 times their standard deviation.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import median, stdev

from ..errors import AccError
from ..judging.threshold import RowLevel
from ..judging.tolerance import SAFETY
from ..mapping.pair import Pair
from ..mapping.reconcile import open_pair
from ..metrics.kernel import measure

LAYERS = 8
"""Layers that say how errors grow: of fewer a line and its outliers are not told apart."""
DEVIATIONS = 7.06 * math.sqrt(1 + 1 / LAYERS)
"""Standard deviations of eight values that a further one exceeds once in 10,000."""
OF_NORMAL = 1.4826
"""A standard deviation in median absolute distances of a normal distribution."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_OUTSIDE = "model"
"""The layer of pairs outside of any."""

Key = tuple[object, ...]


class AlongDepth:
    """Levels of the errors of a plan's pairs; a pair is measured once in a process."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._errors: dict[int, RowLevel] = {}
        self._roles: dict[Key, list[int]] = defaultdict(list)
        for number, pair in enumerate(pairs):
            self._roles[_role(pair)].append(number)
        self._streams = list(_streams(pairs))

    def note(self, number: int, errors: RowLevel) -> None:
        """Take the errors of a pair that was measured anyway."""
        self._errors[number] = errors

    def stream(self, number: int) -> RowLevel | None:
        """The level of the residual stream before a pair; `None` where too few layers ran before it. Outside
        of layers nothing says what an operator makes of a single token: heads multiply the errors of some."""
        stream = self._streams[number]
        level = self._level(stream, number) if stream is not None else None
        if level is None:
            return None
        outside = self._pairs[number].layer == _OUTSIDE
        return level._replace(bias=None, last=None if outside else level.last)

    def beside_peers(self, number: int, stream: RowLevel) -> RowLevel | None:
        """The level of the stream, or that of the same tensor of the layers before where it is larger; `None`
        where too few layers before have that tensor. Outside of layers it is that of the stream."""
        pair = self._pairs[number]
        if pair.layer == _OUTSIDE:
            return stream
        peers = self._level(_role(pair), number)
        if peers is None:
            return None
        typical, last = (max(a, b) if a and b else None for a, b in zip(stream[:2], peers[:2]))
        return RowLevel(typical, last, stream.rows, peers.bias)

    def _level(self, role: Key, number: int) -> RowLevel | None:
        numbers = self._roles[role]
        before = numbers[: bisect_left(numbers, number)][-LAYERS:]
        if len(before) < LAYERS:
            return None
        depth, depths = self._pairs[number].depth, [self._pairs[peer].depth for peer in before]
        errors = [self._of(peer) for peer in before]
        typical, last, biases = zip(*((peer.typical, peer.last, peer.bias) for peer in errors))
        bias = None if None in biases else DEVIATIONS * stdev(biases)
        levels = level_at(depth, depths, typical), level_at(depth, depths, last)
        return RowLevel(*levels, rows=errors[-1].rows, bias=bias)

    def _of(self, number: int) -> RowLevel:
        if number not in self._errors:
            self._errors[number] = _measured(self._pairs[number])
        return self._errors[number]


def level_at(depth: int, depths: Sequence[int], errors: Sequence[float | None]) -> float | None:
    """The level at a depth, by errors at `depths` before it; `None` where one of them is none, or is zero."""
    if not errors or not all(errors):
        return None
    logs = [math.log(error) for error in errors if error]
    points = list(zip(depths, logs))
    slopes = [
        (b - a) / (after - before) for (before, a), (after, b) in combinations(points, 2) if after > before
    ]
    slope = median(slopes) if slopes else 0.0
    walk = median(log + 0.5 * math.log((1 + depth) / (1 + at)) for at, log in points)
    line = median(log + max(0.0, slope) * (depth - at) for at, log in points)
    apart = [log - slope * at for at, log in points]
    middle = median(apart)
    spread = OF_NORMAL * median(abs(log - middle) for log in apart)
    return math.exp(max(walk, line) + max(0.0, DEVIATIONS * spread - math.log(SAFETY**2)))


def _measured(pair: Pair) -> RowLevel:
    """The errors of the rows of a pair, of its replicas the largest."""
    try:
        measured = [measure(each.golden, each.mine) for each in open_pair(pair).comparisons]
    except (AccError, OSError):
        return RowLevel()
    return max(map(RowLevel.of, measured), key=lambda errors: errors.typical or 0.0, default=RowLevel())


def _role(pair: Pair) -> Key:
    """The key that a tensor shares with those of other layers."""
    golden = pair.golden
    return pair.step, pair.rank, pair.graph, pair.fed, _NUMBER.sub("*", golden.node), golden.slot


def _streams(pairs: Sequence[Pair]) -> Iterator[Key | None]:
    """The role of the layers' outputs that each pair is held against: of the layers that it is in, else of
    those before it."""
    layers = {
        (_place(pair), pair.golden.node): _role(pair)
        for pair in reversed(pairs)
        if pair.level == "layer" and pair.layer != _OUTSIDE and not pair.fed
    }
    latest: dict[Key, Key] = {}
    for pair in pairs:
        place, node = _place(pair), pair.golden.node
        while node and (place, node) not in layers:
            node = node.rpartition(".")[0]
        inside = layers.get((place, node))
        if inside is not None:
            latest[place] = inside
        outside = latest.get(place) if pair.layer == _OUTSIDE else None
        yield None if pair.fed else inside or outside


def _place(pair: Pair) -> Key:
    return pair.step, pair.rank, pair.graph
