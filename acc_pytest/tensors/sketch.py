"""A count sketch: 31 numbers of a tensor from which its distance from another tensor is estimated.

Of a tensor with elements `w[i]`, `i` the flat index in row-major order, it is

    C[b] = sum of s(i) * w[i] over all i with i mod 31 = b,    b = 0..30
    s(i) = h(r) * a((c + t(r)) mod 16151),    r = i div 16151, c = i mod 16151

with `h(r)` = -1 where bit 0 of `splitmix64(r)` is set, else +1; `t(r)` = the other 63 bits mod 16151; `a(c)`
as `h`, of bit 63 of `splitmix64(c)`. (splitmix64 is the published one, its argument being the state:
`splitmix64(0)` is 0xe220a8397b1dcdaf.)

The sketch is linear, and the signs of different elements are uncorrelated, so that of `|C(x) - C(y)|^2` all
mixed terms cancel in expectation: it is `|x - y|^2`. Where the energy of the difference is spread over the
buckets, the relative standard error of the distance is `1 / sqrt(2 * 31)` = 13 %, whatever the number of
elements; with all of it in one bucket, the worst, it is 71 %. 31 and 16151 = 31 * 521 share no factor with
the row lengths of usual models, so that a changed row or column is spread over the buckets and no two rows
have the same signs; `t` does it for differences that are the same everywhere.

None of this may ever change: sketches of different versions are compared. `NAME` goes with every stored one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from ..lazy_torch import torch

NAME = "count sketch 31, signs splitmix64 16151"
BUCKETS = 31
STANDARD_ERROR = 1 / math.sqrt(2 * BUCKETS)
"""Relative standard error of `apart` where the difference is spread over the buckets."""
PERIOD = BUCKETS * 521
"""Elements after which the pattern of signs comes again, times one sign for each period."""

_64_BITS = (1 << 64) - 1


class Sketch:
    """Adds up the sketch of a tensor. Sums are in float64."""

    def __init__(self) -> None:
        self._buckets = torch.zeros(BUCKETS, dtype=torch.float64)

    def add(self, values: torch.Tensor, first: int) -> None:
        """Add flat float64 elements, a multiple of 31 of them, from index `first * PERIOD` on."""
        for number, start in enumerate(range(0, len(values), PERIOD), start=first):
            row = values[start : start + PERIOD]
            mixed = splitmix64(number)
            begin = (mixed >> 1) % PERIOD
            buckets = (row * _twice()[begin : begin + len(row)]).view(-1, BUCKETS).sum(0)
            self._buckets.add_(buckets, alpha=_sign(mixed))

    def numbers(self) -> tuple[float, ...]:
        """The sketch of what was added."""
        return tuple(self._buckets.tolist())


def apart(first: Sequence[float], second: Sequence[float]) -> float:
    """Estimate of the L2 norm of the difference of two tensors, from their sketches."""
    return math.hypot(*(x - y for x, y in zip(first, second)))


def splitmix64(state: int) -> int:
    """A well mixed 64-bit number for each 64-bit number (Steele, Lea and Flood 2014)."""
    mixed = (state + 0x9E3779B97F4A7C15) & _64_BITS
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return mixed ^ (mixed >> 31)


def _sign(bits: int) -> int:
    return -1 if bits & 1 else 1


@functools.cache
def _twice() -> torch.Tensor:
    """The signs `a`, written twice, so that all that begin somewhere in the first half lie together."""
    signs = [_sign(splitmix64(column) >> 63) for column in range(PERIOD)]
    return torch.tensor(signs + signs, dtype=torch.float64)
