"""The name of a fused operator, taken apart: GE writes the names of its parts one behind the other.

There is nothing between two names, so `Mul_1Add_12` may only be cut where all of it is names: a beginning
that happens to be a name (`Add_1` of `Add_12`) proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection

CUT_NAME = "_ub_fusion"
"""The end of the name of a fused operator that GE cut because of its length, behind its first name."""
_MOST = 16
"""Readings of one name that are followed; a name with more is ambiguous anyway."""


def readings(text: str, names: Collection[str]) -> list[tuple[str, ...]]:
    """All ways to read `text` as names one behind the other, with as few names as possible.

    Empty where there is none. By dynamic programming over the places where a name may end.
    """
    sizes = sorted({len(name) for name in names if name and len(name) <= len(text)})
    best: list[list[tuple[str, ...]]] = [[()], *([] for _ in text)]
    for end in range(1, len(text) + 1):
        shortest: list[tuple[str, ...]] = []
        for size in sizes:
            if size > end:
                break
            before = best[end - size]
            if not before or text[end - size : end] not in names:
                continue
            count = len(before[0]) + 1
            if shortest and count > len(shortest[0]):
                continue
            if shortest and count < len(shortest[0]):
                shortest = []
            shortest += [(*reading, text[end - size : end]) for reading in before]
        best[end] = shortest[:_MOST]
    return best[len(text)]
