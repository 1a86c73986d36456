"""`Standard`: a named way to the thresholds of a pair of dumps, or of an output of an operator."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import SettingsError
from ...metrics.element_tolerance import ElementTolerance
from ...tensors.dtypes import by_name
from ..threshold import JudgeContext, Threshold
from ..tolerance import Tolerance

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Adjustment of a standard by rules before they are laid over it.

    `factor` multiplies its bounds and `origin` says which rule wants that. `tolerance` is a T that a rule
    set; a standard whose bounds follow from T derives them from this one.
    """

    factor: float = 1.0
    origin: str = ""
    tolerance: Tolerance | None = None

    @property
    def text(self) -> str:
        """The factor as the end of a reason; empty where there is none."""
        return f", times {self.factor:g} from {self.origin}" if self.factor != 1.0 else ""


class Second(enum.Enum):
    """Source of the second golden of an output: none, another device, our own low-precision run."""

    NONE = enum.auto()
    DEVICE = enum.auto()
    COMPUTED = enum.auto()


def _no_second(context: JudgeContext, has_second: bool) -> Second:
    return Second.NONE


@dataclass(frozen=True, slots=True)
class Standard:
    """A named set of rules.

    `about` is the standard in one line, for a report's header. `thresholds` gives the bounds of tensors that
    are not empty, from their place in the model and their measurement; each reason names the row of the
    standard's table and every term of the bound. `elements`, where the standard bounds single elements,
    gives the tolerance to count them with, from the dtypes of golden and mine; it is asked before measuring.

    The others are for single operators: `requirement` is the bound in the words of the old result sheet,
    `second` says whose second golden is needed, by whether there is a second device's dump. `samples` says
    that outputs drawn at random are judged as samples.
    """

    name: str
    about: str
    thresholds: Callable[[JudgeContext, Measurement, Adjustment], tuple[Threshold, ...]]
    elements: Callable[[JudgeContext, tuple[str, str], Adjustment], ElementTolerance | None] | None = None
    requirement: Callable[[JudgeContext, Measurement, Adjustment], str] | None = None
    second: Callable[[JudgeContext, bool], Second] = _no_second
    samples: bool = False


def kind_of(context: JudgeContext) -> str:
    """The kind of the type that an operator writes: float, int, uint, bool or complex."""
    return "float" if context.written == "hifloat8" else by_name(context.written).kind


def of_output(measurement: Measurement, *bounds: Threshold) -> tuple[Threshold, ...]:
    """Bounds of an operator's output where it has a finite element, and that NaN and infinities agree.

    No standard may overlook the latter.
    """
    reason = "NaN and infinities have to be the same on both sides"
    finite = bounds if measurement.compared else ()
    return (*finite, Threshold("nonfinite_mismatch", 0.0, False, reason))


WHOLE_NUMBERS = Threshold("max_absolute_error", 0.0, False, "whole numbers are exact")


def unknown_dtype(standard: str, context: JudgeContext) -> SettingsError:
    """The error for a type that a standard has no bound for."""
    return SettingsError(
        f"standard {standard} has no bound for {context.written} outputs of {context.mine_op_type}"
    )
