"""What every standard is made of: what it is told of an output, and what it answers."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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


class Second(enum.Enum):
    """Where the second golden of an output comes from: nowhere, another device, our own low-precision run."""

    NONE = enum.auto()
    DEVICE = enum.auto()
    COMPUTED = enum.auto()


def _none(about: About, has_other: bool) -> Second:
    return Second.NONE


@dataclass(frozen=True, slots=True)
class Standard:
    """A named set of rules. `rule` bounds one element; `judge` turns what was measured into checks.

    `judge` is given the errors of mine against golden and, where `second` asks for a second golden, the
    errors of mine and of that, both against the exact values; else an empty sequence. `second` is told
    whether there is a second device's dump. `drawn` judges outputs of random operators in its place: the
    number of the output, what was drawn from, golden and mine.
    """

    name: str
    rule: Callable[[About], ElementRule]
    judge: Callable[[About, Errors, Sequence[Errors]], Judged]
    second: Callable[[About, bool], Second] = _none
    drawn: Callable[[About, int, torch.Tensor, torch.Tensor, torch.Tensor], Judged] | None = None


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
    return SettingsError(f"standard {standard} has no bound for {about.dtype} outputs of {about.operator}")
