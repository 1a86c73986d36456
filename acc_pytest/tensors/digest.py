"""Digests of weights: a kilobyte that shows whether two tensors are the same weight.

    digest(tensor) -> WeightDigest       dtype, shape, CRC-32 of the bytes, moments, sketch
    one.same_values(other)               equal bits, or one is the other rounded to its dtype
    one.distance(other)                  estimate of |one - other| / |one|
    one.differs(other)                   another weight: further apart than rounding to either dtype explains

A digest says that weights differ or are the same without either of them being there. `sketch` has the formula
and the error of the distance.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from ..base.forms import must
from ..base.imports import torch
from .dtypes import by_name
from .json_file import Crc32, Finite, Natural, Shape, finite
from .source import TensorSource
from .torch_archive import memory_of

# A count sketch: 31 numbers of a tensor from which its distance from another tensor is estimated.
#
# Of a tensor with elements `w[i]`, `i` the flat index in row-major order, it is
#
#     C[b] = sum of s(i) * w[i] over all i with i mod 31 = b,    b = 0..30
#     s(i) = h(r) * a((c + t(r)) mod 16151),    r = i div 16151, c = i mod 16151
#
# with `h(r)` = -1 where bit 0 of `splitmix64(r)` is set, else +1; `t(r)` = the other 63 bits mod 16151;
# `a(c)` as `h`, of bit 63 of `splitmix64(c)`. (splitmix64 is the published one, its argument being the
# state: `splitmix64(0)` is 0xe220a8397b1dcdaf.)
#
# The sketch is linear, and the signs of different elements are uncorrelated, so that of `|C(x) - C(y)|^2`
# all mixed terms cancel in expectation: it is `|x - y|^2`. Where the energy of the difference is spread
# over the buckets, the relative standard error of the distance is `1 / sqrt(2 * 31)` = 13 %, whatever the
# number of elements; with all of it in one bucket, the worst, it is 71 %. 31 and 16151 = 31 * 521 share no
# factor with the row lengths of usual models, so that a changed row or column is spread over the buckets
# and no two rows have the same signs; `t` does it for differences that are the same everywhere.
#
# None of this may ever change: sketches of different versions are compared. `NAME` goes with every stored
# one.


NAME = "count sketch 31, signs splitmix64 16151"
TURNED = " transposed"
"""What follows the name of a weight where something is said of its columns (`weight_rows`)."""
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


_PIECE = 256 * PERIOD
"""Elements that are copied from a device, or made contiguous, together."""
_WINDOW = 2 * PERIOD
"""Elements that are looked at together: they stay in the cache, and torch starts no threads for them."""
_NARROWER = {
    "float64": ("float32", "float16", "bfloat16"),
    "float32": ("float16", "bfloat16"),
    "float16": ("bfloat16",),
    "bfloat16": ("float16",),
}
_STANDARD_ERRORS = 4


def _squares(value: object, where: str) -> float:
    if (total := finite(value, where)) >= 0:
        return total
    raise must(where, "a number >= 0", value)


def _buckets(value: object, where: str) -> tuple[float, ...]:
    if isinstance(value, list) and len(value) == BUCKETS:
        return tuple(finite(total, where) for total in value)
    raise must(where, f"a list of {BUCKETS} numbers", value)


@dataclass(frozen=True, slots=True)
class WeightDigest:
    """Digest of a tensor. Moments and sketch are those of its finite values, in float64.

    `crc32` is that of the values in row-major order. `rounded` is that of the tensor as torch rounds it to
    other dtypes (narrower ones, and each of the two 16-bit ones to the other), by their names. `shape` is
    torch's; of complex tensors real and imaginary parts are the values. A quantised weight has the digest of
    what its codes, in `dtype`, stand for: they were multiplied by the tensor beside it that `scale` names.
    """

    dtype: str
    shape: Shape
    crc32: Crc32
    sum: Finite
    squares: Annotated[float, _squares]
    min: Finite
    max: Finite
    nonfinite: Natural
    sketch: Annotated[tuple[float, ...], _buckets]
    rounded: Mapping[str, Crc32]
    scale: str = ""

    @property
    def norm(self) -> float:
        """L2 norm of the finite values."""
        return math.sqrt(self.squares)

    def same_values(self, other: WeightDigest) -> bool:
        """Whether both have the same bits, or one is the other rounded to its dtype, by their CRC-32. A value
        that is too large for the dtype is another one."""
        if self.shape != other.shape or self.nonfinite != other.nonfinite:
            return False
        if self.dtype == other.dtype:
            return self.crc32 == other.crc32
        return self.crc32 == other.rounded.get(self.dtype) or other.crc32 == self.rounded.get(other.dtype)

    def distance(self, other: WeightDigest) -> float:
        """Estimate of `|self - other| / |self|`: 0 for the same values, infinite from zeros to others.

        Its relative standard error is `sketch.STANDARD_ERROR` (13 %). Raises `ValueError` for different
        shapes.
        """
        if self.shape != other.shape:
            raise ValueError(f"weights of shapes {self.shape} and {other.shape} have no distance")
        if self.same_values(other):
            return 0.0
        difference = apart(self.sketch, other.sketch)
        if not difference:
            return 0.0
        return difference / self.norm if self.squares else math.inf

    def rounding(self, other: WeightDigest) -> float:
        """Bound of `|self - other| / |self|` where both are one tensor rounded to nearest in their dtypes.

        A value moves by at most its unit roundoff u, or half of the smallest subnormal number t, so a tensor
        of n values by `u |w| + sqrt(n) t / 2`. Integers are exact, but for those that are scaled: their steps
        are no larger than the largest value over the largest code, which is t there.
        """
        unit, smallest = map(math.fsum, zip(self._roundoff(), other._roundoff()))
        return unit + (math.sqrt(math.prod(self.shape)) * smallest / self.norm if self.squares else 0.0)

    def differs(self, other: WeightDigest) -> bool:
        """Whether the two are different weights, beyond rounding one or both to their dtypes.

        Of equal dtypes any difference counts. Of others the distance must be more than `rounding` with four
        standard errors, or the counts of NaN and Inf differ. Raises `ValueError` for different shapes, and
        for an integer weight beside one in float (a quantised one): these are held in different units.
        """
        distance = self.distance(other)
        if not distance or self.dtype == other.dtype:
            return not self.same_values(other)
        if not all(weight.scale or by_name(weight.dtype).roundoff for weight in (self, other)):
            raise ValueError(f"a weight in {self.dtype} and one in {other.dtype} are held in different units")
        allowed = self.rounding(other) * (1 + _STANDARD_ERRORS * STANDARD_ERROR)
        return self.nonfinite != other.nonfinite or distance > allowed

    def coding_error(self, scales: WeightDigest | None = None) -> float:
        """The relative rms error of rounding to the codes of a quantised weight: of a float the unit roundoff
        over the mantissa, both spread evenly (the mantissa as its logarithm), of steps what is even in one.

        The largest value tells the largest step. `scales` tell the root mean square of all steps.
        """
        unit, half_step = self._roundoff()
        if half_step and scales is not None and scales.squares:
            half_step = min(half_step, scales.norm / math.sqrt(math.prod(scales.shape)) / 2)
        steps = math.sqrt(math.prod(self.shape)) * half_step / self.norm if self.squares else 0.0
        return math.hypot(unit * math.sqrt((1 - 2**-2) / (2 * math.log(2))), steps) / math.sqrt(3)

    def _roundoff(self) -> tuple[float, float]:
        """Unit roundoff of the dtype, and half of its smallest number; zeros where it is exact."""
        element_type = by_name(self.dtype)
        if self.scale and element_type.kind != "float":
            largest = max(abs(self.min), abs(self.max))
            return 0.0, largest / (2 ** (element_type.bits - 1) - 1) / 2
        if element_type.kind != "float" or element_type.roundoff is None:
            return 0.0, 0.0
        limits = torch.finfo(element_type.torch_dtype())
        return element_type.roundoff, 0.0 if self.scale else limits.tiny * limits.eps / 2


def digest(tensor: torch.Tensor) -> WeightDigest:
    """The digest of a dense tensor of any device and strides, in one pass and bounded memory.

    Raises `TypeError` for tensors without values of their own (sparse, quantised, meta) and `ValueError`
    where the squares of values are too large for float64.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "quantised" if tensor.is_quantized else "meta" if tensor.is_meta else "sparse"
        raise TypeError(f"a {kind} tensor has no digest")
    plain = tensor.detach().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    with torch.no_grad():
        tally = _Tally(plain.dtype, plain.numel())
        for piece in TensorSource(plain).blocks(_PIECE):
            tally.add(piece)
    if not math.isfinite(tally.squares):
        raise ValueError("the squares of its values are beyond float64")
    return WeightDigest(
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tally.crc32,
        tally.sum,
        tally.squares,
        tally.min if tally.finite else 0.0,
        tally.max if tally.finite else 0.0,
        tally.count - tally.finite,
        tally.sketch.numbers(),
        tally.rounded,
    )


class _Tally:
    """Sums over the elements of a tensor, which come in row-major order."""

    def __init__(self, dtype: torch.dtype, numel: int) -> None:
        self.crc32 = 0
        self.rounded = dict.fromkeys(_NARROWER.get(str(dtype).removeprefix("torch."), ()), 0)
        self.sum = self.squares = 0.0
        self.min, self.max = math.inf, -math.inf
        self.count = self.finite = 0
        self.sketch = Sketch()
        room = min(_WINDOW, -(-numel // BUCKETS) * BUCKETS)
        self._wide = torch.zeros(room, dtype=torch.float64)

    def add(self, piece: torch.Tensor) -> None:
        """The next elements, one-dimensional, contiguous and on the CPU."""
        while len(piece):
            room = len(self._wide) - self.count % len(self._wide)
            block, piece = piece[:room], piece[room:]
            self.crc32 = zlib.crc32(memory_of(block), self.crc32)
            for name, crc32 in self.rounded.items():
                self.rounded[name] = zlib.crc32(memory_of(block.to(getattr(torch, name))), crc32)
            # Elements of one window of `_wide`: they are put where their index has them, zeros around.
            begin = self.count % len(self._wide)
            if len(block) < len(self._wide):
                self._wide.zero_()
            values = self._wide[begin : begin + len(block)]
            values.copy_(block)
            squares = float(torch.dot(values, values))
            finite = values
            if not math.isfinite(squares):
                sound = torch.isfinite(values)
                finite = values[sound]
                values.masked_fill_(~sound, 0.0)
                squares = float(torch.dot(values, values))
            self.squares += squares
            self.sum += float(values.sum())
            self.finite += len(finite)
            if len(finite):
                low, high = torch.aminmax(finite)
                self.min, self.max = min(self.min, float(low)), max(self.max, float(high))
            self.sketch.add(self._wide, (self.count - begin) // PERIOD)
            self.count += len(block)
