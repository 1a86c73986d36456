"""Sums that neither overflow nor vanish: a float and an exponent beside it."""

from __future__ import annotations

import math
from collections.abc import Callable


class ScaledSum:
    """A running sum `value * base**exponent` for base 2 or e; terms may carry any exponent."""

    __slots__ = ("_power", "exponent", "value")

    def __init__(self, power: Callable[[float], float], value: float = 0.0, exponent: float = 0.0) -> None:
        self._power = power
        self.value = value
        self.exponent = exponent

    def add(self, value: float, exponent: float = 0.0) -> None:
        """Add `value * base**exponent`, moving to the larger exponent of the two."""
        if value == 0.0:
            return
        if self.value == 0.0:
            self.value, self.exponent = value, exponent
        elif exponent > self.exponent:
            self.value = self.value * self._power(self.exponent - exponent) + value
            self.exponent = exponent
        else:
            self.value += value * self._power(exponent - self.exponent)


def binary_sum(value: float = 0.0, exponent: float = 0.0) -> ScaledSum:
    """A sum whose exponents are powers of two, so that rescaling is exact."""
    return ScaledSum(_power_of_two, value, exponent)


def natural_sum() -> ScaledSum:
    """A sum whose exponents are powers of e, as in a log-sum-exp."""
    return ScaledSum(math.exp)


def as_float(total: ScaledSum) -> float:
    """The binary sum as a float; `inf` or 0 where it does not fit."""
    return _ldexp(total.value, total.exponent)


def mean(total: ScaledSum, count: int) -> float:
    """The binary sum divided by `count`."""
    return _ldexp(total.value / count, total.exponent)


def ratio(numerator: ScaledSum, denominator: ScaledSum) -> float:
    """The quotient of two binary sums; `denominator` is not zero."""
    return _ldexp(numerator.value / denominator.value, numerator.exponent - denominator.exponent)


def root(total: ScaledSum) -> ScaledSum:
    """The square root of a binary sum that is not negative."""
    odd = total.exponent % 2
    return binary_sum(math.sqrt(total.value * 2.0**odd), (total.exponent - odd) / 2)


def product(first: ScaledSum, second: ScaledSum) -> ScaledSum:
    """The product of two binary sums."""
    return binary_sum(first.value * second.value, first.exponent + second.exponent)


def _power_of_two(exponent: float) -> float:
    return math.ldexp(1.0, int(exponent))


def _ldexp(value: float, exponent: float) -> float:
    try:
        return math.ldexp(value, int(exponent)) if exponent else value
    except OverflowError:
        return math.copysign(math.inf, value)
