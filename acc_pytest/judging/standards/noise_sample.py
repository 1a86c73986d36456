"""How much of a sample a tensor's noise is: the elements that hold it, and how far it scatters over them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..threshold import JudgeContext

FEW = 0.5
"""Elements that hold the noise are few where they are so small a share of all."""


@dataclass(frozen=True, slots=True)
class NoiseSample:
    """How many elements were compared, and how many of them hold the noise.

    Where a few large values have nearly all of golden, or of the noise, they are what scatters. Their number
    is a norm over its largest element, squared, in units of what that is for evenly spread values: 1 / (2 ln
    2n).
    """

    elements: int
    holding: int

    @classmethod
    def of(cls, context: JudgeContext, elements: int, rms: float, peak: float) -> NoiseSample:
        """Of golden's tensor with this root mean square and largest magnitude."""
        norm = rms * math.sqrt(elements)
        ends = (norm, peak), (norm * (context.noise_error or 0.0), context.noise_max_absolute_error or 0.0)
        counts = [_holding(elements, *each) for each in ends]
        return cls(elements, min((count for count in counts if count < FEW * elements), default=elements))

    @property
    def is_few(self) -> bool:
        """Whether a few elements hold the noise."""
        return self.holding < self.elements


def _holding(elements: int, norm: float, largest: float) -> int:
    if not 0 < largest < math.inf or not math.isfinite(norm) or elements < 1:
        return elements
    return max(1, round(min(norm / largest, elements) ** 2 * 2 * math.log(2 * elements)))
