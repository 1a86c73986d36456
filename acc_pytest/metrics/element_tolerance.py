"""Element tolerances for the count of elements beyond tolerance.

The defaults are the table that `torch.testing.assert_close` publishes
(https://pytorch.org/docs/stable/testing.html). Types it does not list compare exactly, except fp8, which gets
its spacing relative to the value and, near zero, its smallest subnormal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import SettingsError


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element agrees when `|mine - golden| <= atol + rtol * |golden|`."""

    rtol: float
    atol: float


_EXACT = Tolerance(0.0, 0.0)
_BY_NAME = {
    "float16": Tolerance(1e-3, 1e-5),
    "bfloat16": Tolerance(1.6e-2, 1e-5),
    "float32": Tolerance(1.3e-6, 1e-5),
    "float64": Tolerance(1e-7, 1e-7),
    "complex32": Tolerance(1e-3, 1e-5),
    "complex64": Tolerance(1.3e-6, 1e-5),
    "complex128": Tolerance(1e-7, 1e-7),
    "float8_e4m3fn": Tolerance(2.0**-3, 2.0**-9),
    "float8_e4m3fnuz": Tolerance(2.0**-3, 2.0**-10),
    "float8_e5m2": Tolerance(2.0**-2, 2.0**-16),
    "float8_e5m2fnuz": Tolerance(2.0**-2, 2.0**-17),
}


def default_tolerance(*dtypes: torch.dtype) -> Tolerance:
    """The loosest rtol and the loosest atol of `dtypes`."""
    return tolerance_of_names(*(dtype_name(dtype) for dtype in dtypes))


def tolerance_of_names(*dtypes: str) -> Tolerance:
    """`default_tolerance` of dtypes by name."""
    found = [_BY_NAME.get(dtype, _EXACT) for dtype in dtypes]
    return Tolerance(max(each.rtol for each in found), max(each.atol for each in found))


def choose_tolerance(rtol: float | None, atol: float | None, *dtypes: torch.dtype) -> Tolerance:
    """The given bounds, the default of `dtypes` in place of `None`.

    Raises `SettingsError` for a bound that is negative or NaN.
    """
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise SettingsError(f"{name} must be >= 0, got {value}")
    default = default_tolerance(*dtypes)
    return Tolerance(
        default.rtol if rtol is None else float(rtol), default.atol if atol is None else float(atol)
    )


def dtype_name(dtype: torch.dtype) -> str:
    """`float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")
