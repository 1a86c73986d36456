"""Tolerance of one element, with which elements beyond it are counted.

The default is the table that `torch.testing.assert_close` publishes
(https://pytorch.org/docs/stable/testing.html). Types it does not list compare exactly, except fp8, which gets
its spacing relative to the value and, near zero, its smallest subnormal.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from ..errors import SettingsError

Scale = Literal["absolute", "scaled", "relative", "ulp"]
_UNITS = {"absolute": "", "scaled": " max(1, |golden|)", "relative": " |golden|", "ulp": " ULP"}


@dataclass(frozen=True, slots=True)
class ElementTolerance:
    """An element agrees when `|mine - golden| <= atol * scale + rtol * |golden|`.

    `scale` is the unit of `atol`. `absolute`: 1. `scaled`: max(1, |golden|). `relative`: |golden|, and 1
    where golden is near 0. `ulp`: one step of the type that the operator writes.
    Raises `SettingsError` for a bound that is negative or NaN.
    """

    atol: float
    rtol: float = 0.0
    scale: Scale = "absolute"

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if not value >= 0:
                raise SettingsError(f"{name} must be >= 0, got {value}")

    def times(self, factor: float) -> ElementTolerance:
        """The tolerance stretched by `factor`."""
        return ElementTolerance(self.atol * factor, self.rtol * factor, self.scale)

    def __str__(self) -> str:
        return f"|error| <= {self.atol:.6g}{_UNITS[self.scale]}" if self.atol else "|error| = 0"


EXACT = ElementTolerance(0.0)
_HALF, _SINGLE, _DOUBLE = (
    ElementTolerance(atol, rtol) for atol, rtol in ((1e-5, 1e-3), (1e-5, 1.3e-6), (1e-7, 1e-7))
)
_BY_NAME = {
    "float16": _HALF,
    "bfloat16": ElementTolerance(1e-5, 1.6e-2),
    "float32": _SINGLE,
    "float64": _DOUBLE,
    "complex32": _HALF,
    "complex64": _SINGLE,
    "complex128": _DOUBLE,
    "float8_e4m3fn": ElementTolerance(2.0**-9, 2.0**-3),
    "float8_e4m3fnuz": ElementTolerance(2.0**-10, 2.0**-3),
    "float8_e5m2": ElementTolerance(2.0**-16, 2.0**-2),
    "float8_e5m2fnuz": ElementTolerance(2.0**-17, 2.0**-2),
}


@functools.cache
def default_tolerance(*dtypes: str) -> ElementTolerance:
    """The loosest rtol and the loosest atol of dtypes by name."""
    rows = [_BY_NAME.get(dtype, EXACT) for dtype in dtypes]
    return ElementTolerance(max(row.atol for row in rows), max(row.rtol for row in rows))
