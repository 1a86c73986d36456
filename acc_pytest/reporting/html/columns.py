"""Rows of a page as columns of small integers: texts by their place in a dictionary, numbers on a log scale.

A hundred thousand rows are then a few megabytes of JSON that compress well and that a browser reads in
a fraction of a second.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..printable import printable
from ..row import Row, Scalar

Place = tuple[float, str, str]
"""Number in execution order, test id, slot: what a row is known by, and how rows are ordered."""

STEPS_PER_DECADE = 200
"""Resolution of quantised numbers: neighbours differ by 1.2 %."""

SMALLEST = -60
"""Decimal exponent of the smallest magnitude there is; what lies below is shown as this."""

LARGEST = 60
"""Decimal exponent of the largest."""

NOTHING, ZERO, NAN, INFINITE, MINUS_INFINITE, FIRST = 0, 1, 2, 3, 4, 10
"""Codes of what has no logarithm; magnitudes begin at `FIRST`."""

_TOP = FIRST + (LARGEST - SMALLEST) * STEPS_PER_DECADE


NO_NUMBER = -0.0
"""Stands for what is no number until it gets its code; a zero that was measured is 0.0."""

_BLOCK = 4096
"""Values that wait to be coded at once."""


def number_of(value: Scalar) -> float:
    """A number as `quantised` takes it: `NO_NUMBER` for a missing one, the largest float for infinity."""
    if value is None or isinstance(value, (str, bool)):
        return NO_NUMBER
    try:
        return float(value) or 0.0
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def quantised(values: NDArray[np.float64]) -> NDArray[np.int16]:
    """The codes of numbers: negative for negative ones; `NOTHING` for `NO_NUMBER`.

    `FIRST + (log10|x| - SMALLEST) * STEPS_PER_DECADE`, rounded, so that a code fits 16 bits.
    """
    with np.errstate(all="ignore"):
        codes = FIRST + np.rint((np.log10(np.abs(values)) - SMALLEST) * STEPS_PER_DECADE)
    codes = np.copysign(np.clip(codes, FIRST, _TOP), values)
    codes[values == 0] = np.where(np.signbit(values[values == 0]), NOTHING, ZERO)
    codes[np.isnan(values)] = NAN
    codes[np.isposinf(values)] = INFINITE
    codes[np.isneginf(values)] = MINUS_INFINITE
    rounded: NDArray[np.int16] = codes.astype(np.int16)
    return rounded


class Texts:
    """A column of texts. Equal ones share a code."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._column = array("i")
        self._waiting: list[str] = []

    def add(self, text: str) -> None:
        self._waiting.append(text)
        if len(self._waiting) == _BLOCK:
            self._settle()

    def _settle(self) -> None:
        for text in dict.fromkeys(self._waiting):
            self._codes.setdefault(text, len(self._codes))
        self._column.extend(map(self._codes.__getitem__, self._waiting))
        self._waiting.clear()

    def packed(self, order: Sequence[int], width: int) -> dict[str, Any]:
        """The rows `order` names, each text cut to `width`: dictionary, and differences of codes.

        Codes are given in order of appearance, so that differences are mostly 0 or 1.
        """
        self._settle()
        texts = list(self._codes)
        codes = np.array(self._column, np.int64)[np.array(order, np.int64)]
        used, first, place = np.unique(codes, return_index=True, return_inverse=True)
        appearing = np.argsort(first)
        rank = np.empty_like(appearing)
        rank[appearing] = np.arange(used.size)
        return {
            "texts": [printable(texts[old], width) for old in used[appearing].tolist()],
            "codes": differences(rank[place].reshape(-1)),
        }


class Numbers:
    """A column of quantised numbers, `NOTHING` in the `start` rows before the first.

    `is_similarity`: what is kept is the distance from 1. One that rounding made more than 1 has none.
    """

    def __init__(self, start: int = 0, is_similarity: bool = False) -> None:
        self._column = array("h", bytes(2 * start))
        self._is_similarity = is_similarity
        self._waiting: list[float] = []

    def add(self, value: Scalar) -> None:
        self._waiting.append((value or 0.0) if value.__class__ is float else number_of(value))
        if len(self._waiting) == _BLOCK:
            self._settle()

    def _settle(self) -> None:
        values = np.array(self._waiting, np.float64)
        if self._is_similarity:
            none = (values == 0) & np.signbit(values)
            values = np.where(none, NO_NUMBER, np.maximum(1.0 - values, 0.0))
        self._column.frombytes(quantised(values).tobytes())
        self._waiting.clear()

    def packed(self, order: Sequence[int]) -> array[int]:
        """The codes of the rows that `order` names: two bytes each, where a list has 36."""
        self._settle()
        return array("h", np.array(self._column, np.int16)[np.array(order, np.int64)].tobytes())


def differences(values: Iterable[int]) -> array[int]:
    """Each value less the one before it, the first less 0: eight bytes each, where a list has 36."""
    return array("q", np.diff(np.fromiter(values, np.int64), prepend=0).tobytes())


def place_of(row: Row) -> Place:
    """Execution order, the same however rows arrived; rows without a number come last, by their ids."""
    return (math.inf if row.number is None else row.number, row.test_id, row.mine.slot or row.golden.slot)
