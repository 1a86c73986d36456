"""hifloat8: eight bits whose exponent field grows with the exponent; torch has no such type.

A byte is sign, a prefix code D that says how many exponent bits follow, the exponent (sign and the bits
below its leading one) and what is left for the mantissa: 3 bits for |exponent| up to 3, 2 up to 7, 1 up to
15. Prefix 0000 holds powers of two from 2^-22 to 2^-16. 0x80 is NaN, 0x6f and 0xef are infinities.
"""

from __future__ import annotations

import functools

from ..base.imports import torch

NAN, INFINITY = 0x80, 0x6F
_PREFIXES = ((0b11, 2, 4), (0b10, 2, 3), (0b01, 2, 2), (0b001, 3, 1), (0b0001, 4, 0))


def _value(code: int) -> float:
    """The magnitude of a byte without its sign bit."""
    for prefix, length, bits in _PREFIXES:
        if code >> (7 - length) == prefix:
            rest = code & ((1 << (7 - length)) - 1)
            width = 7 - length - bits
            field, mantissa = rest >> width, rest & ((1 << width) - 1)
            exponent = 0
            if bits:
                magnitude = (1 << (bits - 1)) | (field & ((1 << (bits - 1)) - 1))
                exponent = -magnitude if field >> (bits - 1) else magnitude
            return float(2.0**exponent * (1 + mantissa / (1 << width)))
    return float(2.0 ** (code - 23)) if code else 0.0


@functools.cache
def _finite() -> tuple[torch.Tensor, torch.Tensor]:
    """All finite magnitudes in rising order, float64, and their bytes."""
    codes = sorted((c for c in range(128) if c != INFINITY), key=_value)
    return torch.tensor([_value(c) for c in codes], dtype=torch.float64), torch.tensor(codes)


def encode(value: torch.Tensor) -> torch.Tensor:
    """The bytes of `value`, rounded to nearest, halves away from zero; beyond 2^15 infinite."""
    magnitudes, codes = _finite()
    wide = value.double()
    middles = (magnitudes[1:] + magnitudes[:-1]) / 2
    encoded = codes[torch.bucketize(wide.abs().nan_to_num(0.0), middles, right=True)]
    # half a step above the largest finite value the next one would be infinity
    encoded = torch.where(wide.abs() >= 1.25 * magnitudes[-1], INFINITY, encoded)
    encoded = torch.where((wide < 0) & (encoded != 0), encoded + 0x80, encoded)
    return torch.where(wide.isnan(), NAN, encoded).to(torch.uint8)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """The values of bytes, float64."""
    magnitudes, order = _finite()
    table = torch.empty(128, dtype=torch.float64)
    table[order] = magnitudes
    table[INFINITY] = float("inf")
    values = torch.cat((table, -table))
    values[NAN] = float("nan")
    return values[codes.long()]
