"""Rows of a page as columns of small integers: texts by their place in a dictionary, numbers on a log scale.

A hundred thousand rows are then a few megabytes of JSON that compress well and that a browser reads in
a fraction of a second.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

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


def quantised(value: Scalar) -> int:
    """The code of a number: negative for a negative one; `NOTHING` for what is no number.

    `FIRST + (log10|x| - SMALLEST) * STEPS_PER_DECADE`, rounded, so that a code fits 16 bits.
    """
    if value is None or isinstance(value, (str, bool)):
        return NOTHING
    if value == 0:
        return ZERO
    if value != value:
        return NAN
    if isinstance(value, float) and math.isinf(value):
        return INFINITE if value > 0 else MINUS_INFINITE
    code = FIRST + round((math.log10(abs(value)) - SMALLEST) * STEPS_PER_DECADE)
    code = min(max(code, FIRST), _TOP)
    return code if value > 0 else -code


class Texts:
    """A column of texts. Equal ones share a code."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._column = array("i")

    def add(self, text: str) -> None:
        self._column.append(self._codes.setdefault(text, len(self._codes)))

    def packed(self, order: Sequence[int], width: int) -> dict[str, Any]:
        """The rows `order` names, each text cut to `width`: dictionary, and differences of codes.

        Codes are given in order of appearance, so that differences are mostly 0 or 1.
        """
        texts = list(self._codes)
        known: dict[int, int] = {}
        codes = [known.setdefault(self._column[index], len(known)) for index in order]
        return {"texts": [printable(texts[old], width) for old in known], "codes": differences(codes)}


class Numbers:
    """A column of quantised numbers, `NOTHING` in the `start` rows before the first."""

    def __init__(self, start: int = 0) -> None:
        self._column = array("h", bytes(2 * start))

    def add(self, value: Scalar) -> None:
        self._column.append(quantised(value))

    def packed(self, order: Sequence[int]) -> list[int]:
        """The codes of the rows that `order` names."""
        return [self._column[index] for index in order]


def differences(values: Sequence[int]) -> list[int]:
    """Each value less the one before it, the first less 0."""
    return [value - before for value, before in zip(values, (0, *values))]


def place_of(row: Row) -> Place:
    """Execution order, the same however rows arrived; rows without a number come last, by their ids."""
    return (math.inf if row.number is None else row.number, row.test_id, row.mine.slot or row.golden.slot)
