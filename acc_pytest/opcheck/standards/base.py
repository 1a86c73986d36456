"""What every standard is made of: what it is told of an output, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import SettingsError
from ...reporting.row import Check
from ..errors_of import ElementRule, Errors


@dataclass(frozen=True, slots=True)
class About:
    """One output to be judged: whose it is, with which complete parameters, and the type that is written.

    `kind` is float, int, uint or bool. `length` is how many products or addends one element is made of,
    `None` where that is not known. `factor` stretches the standard's bound where a marker says so.
    """

    operator: str
    param: Mapping[str, Any]
    dtype: str
    kind: str
    length: int | None = None
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Judged:
    """What a standard says of an output: the checks, and its requirement in the old tool's words."""

    checks: tuple[Check, ...]
    said: str


@dataclass(frozen=True, slots=True)
class Standard:
    """A named set of rules. `rule` bounds one element; `judge` turns what was measured into checks.

    `judge` is given the errors of mine and, for `needs_other`, those of the other device, both measured
    against the exact values.
    """

    name: str
    rule: Callable[[About], ElementRule]
    judge: Callable[[About, Errors, Errors | None], Judged]
    needs_other: bool = False


def finite_check(errors: Errors) -> Check:
    """NaN and infinities have to be where golden has them, which no standard may overlook."""
    return Check(
        "nonfinite_mismatch",
        float(errors.nonfinite),
        0.0,
        False,
        "NaN and infinities have to be the same on both sides",
        not errors.nonfinite,
    )


def at_most(metric: str, measured: float, allowed: float, reason: str) -> Check:
    """A check whose bound may be reached."""
    return Check(metric, measured, allowed, False, reason, measured <= allowed)


def unknown_dtype(standard: str, about: About) -> SettingsError:
    """The error for a type that a standard has no bound for."""
    return SettingsError(f"standard {standard} has no bound for outputs of {about.dtype} of {about.operator}")
