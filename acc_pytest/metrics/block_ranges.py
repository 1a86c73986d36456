"""Ranges of elements that are summed at once."""

from __future__ import annotations

from collections.abc import Iterator

BLOCK = 128 * 1024
"""Most elements of a block of float32: four buffers of this size stay near the core."""
DOUBLE_BLOCK = 15 * 1024
"""Most elements of a block of float64. Arrays of 128 KiB and more malloc may get from the system anew each
time, which takes three times as long as to fill and sum them."""


def ranges(begin: int, end: int, channels: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of up to `size` elements: whole rows, or parts of one row where a row is longer than that.

    `begin` starts a row, or all lies within one.
    """
    if channels <= size:
        step = size // channels * channels
        yield from ((start, min(start + step, end)) for start in range(begin, end, step))
        return
    for row in range(begin, end, channels):
        last = min(row + channels, end)
        yield from ((start, min(start + size, last)) for start in range(row, last, size))
