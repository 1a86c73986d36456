"""Fields of the JSON files beside a torch dump, checked: a value that no tensor can have is `None`."""

from __future__ import annotations

import math
from typing import Union

Key = tuple[Union[int, str], ...]

LARGEST_NUMBER = (1 << 63) - 1
LARGEST_CRC32 = (1 << 32) - 1
_MOST_DIMENSIONS = 64


def shape_of(value: object) -> tuple[int, ...] | None:
    """The shape of a tensor that can exist."""
    sizes = sizes_of(value)
    return None if sizes is None or math.prod(size or 1 for size in sizes) > LARGEST_NUMBER else sizes


def sizes_of(value: object) -> tuple[int, ...] | None:
    """A natural number for each dimension."""
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return None
    sizes = tuple(size for size in value if natural(size) is not None)
    return sizes if len(sizes) == len(value) else None


def natural(value: object, largest: int = LARGEST_NUMBER) -> int | None:
    """A whole number from 0 up."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest:
        return value
    return None


def number(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    is_integer = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER
    return float(value) if is_integer and isinstance(value, int) else None


def text(value: object) -> str:
    """A text, empty where it is none."""
    return value if isinstance(value, str) else ""


def key_of(value: object) -> Key | None:
    """The path of keys to a tensor in arguments or a result."""
    if isinstance(value, list) and all(
        isinstance(element, (int, str)) and not isinstance(element, bool) for element in value
    ):
        return tuple(value)
    return None
