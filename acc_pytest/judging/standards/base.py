"""What a standard for comparisons of dumps is: a named way to the thresholds of a pair, before rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..threshold import JudgeContext, Threshold
from ..tolerance import Tolerance

if TYPE_CHECKING:
    from ...metrics.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Asked:
    """What rules ask of a standard before they are laid over it.

    `factor` multiplies its bounds and `origin` says which rule wants that. `tolerance` is a T that a rule
    set; a standard whose bounds follow from T derives them from this one.
    """

    factor: float = 1.0
    origin: str = ""
    tolerance: Tolerance | None = None

    @property
    def words(self) -> str:
        """The factor as the end of a reason; empty where there is none."""
        return f", times {self.factor:g} from {self.origin}" if self.factor != 1.0 else ""


@dataclass(frozen=True, slots=True)
class ElementTolerance:
    """How the pass has to count elements beyond tolerance: |mine - golden| > atol + rtol * |golden|."""

    rtol: float
    atol: float


@dataclass(frozen=True, slots=True)
class Standard:
    """A named set of rules.

    `thresholds` gives the bounds of tensors that are not empty, from their measurement and place in the
    model; each reason names the row of the standard's table and every term of the bound. `elements`, where
    the standard counts elements, gives the tolerance to count with, from the dtypes of golden and mine.
    `about` is the standard in one line, for a report's header.
    """

    name: str
    about: str
    thresholds: Callable[[JudgeContext, Measurement, Asked], tuple[Threshold, ...]]
    elements: Callable[[str, str, Asked], ElementTolerance] | None = None
