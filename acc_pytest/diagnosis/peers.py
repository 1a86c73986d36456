"""Outliers among peers (one operator in all layers and steps) although every bound holds.

Most pairs of a run are right, so that the same operator elsewhere says what rounding does here. Two things
are told, and change no verdict:

    outlier    a pair whose share of what is allowed is 3 times the median of its peers, and 8 times their
               usual distance from it (the median absolute one, as a standard deviation) above that
    bias       all operators of one kind that are too large, or too small, by more together than

                   u / 16 + what the other computation has + 4 standard errors of their mean

               where the bound of each alone has u / 4 (`row_bounds`): errors of random sign average out over
               layers and steps, a scale that is off does not

A pair has a share by replay where its operator was computed again, which is its own whatever came before it;
else the largest of its shares of bounds against golden. The prefill is no peer of decode steps. Where a pair
of the run fails, its roots say more, and nothing is told.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ..reporting.row import Row
from ..tensors.dtypes import by_name
from .folding import path_in_model
from .names import shown
from .pair_state import FAILING, level_of
from .replayed import replay_of

if TYPE_CHECKING:
    from ..mapping.pair import Pair, Plan

MOST_OF_A_SORT = 3
FEWEST = 4
"""Peers, the pair among them, that say what is usual."""
TIMES = 3.0
DISTANCES = 8.0
_OF_NORMAL = 1.4826
"""A standard deviation in median absolute distances of a normal distribution."""
_LEAST = 0.1
"""The usual distance is taken as no less than this part of the median."""
DIRECTED = 1 / 16
_SIGMAS = 4.0
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class _OperatorBias:
    """The bias of one operator, that of the other computation, its standard error, and u."""

    mean: float
    expected: float
    deviation: float
    roundoff: float


@dataclass(frozen=True, slots=True)
class _Peer:
    name: str
    share: float
    replayed: bool
    bias: _OperatorBias | None


class Peers:
    """Takes the rows of a run in any order, and keeps a few numbers of each."""

    def __init__(self) -> None:
        self._peers: dict[int, _Peer] = {}
        self._fails = False

    def add(self, row: Row) -> None:
        """Take the row of a pair into account."""
        self._fails |= row.verdict in FAILING
        if row.number is None or row.fed or row.verdict != "pass":
            return
        replay = replay_of(row)
        local = replay.measured.get("error") if replay is not None and replay.outcome == "right" else None
        share = level_of(row) if local is None or not local[1] else local[0] / local[1]
        fmt = by_name(row.mine.dtype).format if row.mine.dtype else None
        bias = None
        if replay is not None and fmt is not None and replay.bias is not None and replay.bias_deviation:
            bias = _OperatorBias(replay.bias, replay.bias_noise or 0.0, replay.bias_deviation, fmt.roundoff)
        self._peers[row.number] = _Peer(row.name, share, local is not None, bias)

    def lines(self, plan: Plan) -> tuple[str, ...]:
        """A line for each that stands out, the farthest first; `MOST_OF_A_SORT` of each sort."""
        if self._fails:
            return ()
        groups: dict[object, list[int]] = defaultdict(list)
        for number in sorted(self._peers):
            if number < len(plan.pairs):
                groups[_kind(plan.pairs[number])].append(number)
        outliers = sorted(self._outliers(groups.values(), plan), reverse=True)
        biased = sorted(self._biased(groups.values(), plan), reverse=True)
        return tuple(line for _, line in (*biased[:MOST_OF_A_SORT], *outliers[:MOST_OF_A_SORT]))

    def _outliers(self, groups: Iterable[Sequence[int]], plan: Plan) -> Iterator[tuple[float, str]]:
        for peers in self._comparable(groups, plan):
            shares = [self._peers[number].share for number in peers]
            middle = median(shares)
            usual = _OF_NORMAL * median(abs(share - middle) for share in shares)
            limit = max(TIMES * middle, middle + DISTANCES * max(usual, _LEAST * middle))
            for number, share in zip(peers, shares):
                if middle and limit < share < math.inf:
                    yield (
                        share / middle,
                        self._sentence(number, plan.pairs[number], share / middle, len(peers) - 1),
                    )

    def _sentence(self, number: int, pair: Pair, times: float, count: int) -> str:
        peer = self._peers[number]
        what = "error on its own inputs" if peer.replayed else "share of its bounds"
        sentence = f"its {what} is {times:.2g} times that of its {count} peers, and within its bounds"
        return f"outlier: {shown(peer.name)} step {pair.step}: {sentence}"

    def _comparable(self, groups: Iterable[Sequence[int]], plan: Plan) -> Iterator[Sequence[int]]:
        """Peers that are judged in one way, of prefills or of decode steps."""
        first = min((str(pair.step) for pair in plan.pairs), default="")
        for group in groups:
            by_kind: dict[object, list[int]] = defaultdict(list)
            for number in group:
                by_kind[self._peers[number].replayed, str(plan.pairs[number].step) == first].append(number)
            yield from (members for members in by_kind.values() if len(members) >= FEWEST)

    def _biased(self, groups: Iterable[Sequence[int]], plan: Plan) -> Iterator[tuple[float, str]]:
        for group in groups:
            biases = [bias for number in group if (bias := self._peers[number].bias) is not None]
            if len(biases) < FEWEST:
                continue
            weights = [bias.deviation**-2 for bias in biases]
            total = sum(weights)
            mean = sum(weight * (bias.mean - bias.expected) for weight, bias in zip(weights, biases)) / total
            expected = sum(weight * abs(bias.expected) for weight, bias in zip(weights, biases)) / total
            allowed = DIRECTED * biases[0].roundoff + expected + _SIGMAS / math.sqrt(total)
            if abs(mean) > allowed:
                name = _everywhere(plan.pairs[group[0]])
                yield (
                    abs(mean) / allowed,
                    f"bias: all {len(biases)} of {shown(name)} are {abs(mean):.2g} too "
                    f"{'large' if mean > 0 else 'small'} together, rounding may do {allowed:.2g}",
                )


def _kind(pair: Pair) -> tuple[str, ...]:
    """The key that an operator shares with those of other layers, steps and ranks."""
    path = _NUMBER.sub("*", path_in_model(pair.mine.node))
    return pair.mine.op_type, path, _everywhere(pair), pair.mine.slot


def _everywhere(pair: Pair) -> str:
    """The name of golden's node, without the numbers of layers."""
    return _NUMBER.sub("*", pair.golden.node)
