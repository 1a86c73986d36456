"""Pairs of golden and a noise run as samples for a calibration."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import AccError
from ..judging.calibration import Sample
from ..judging.threshold import JudgeContext
from ..mapping.pair import Pair
from ..mapping.reconcile import open_pair
from ..metrics.kernel import measure


def samples_of(pairs: Iterable[Pair]) -> tuple[list[Sample], list[str]]:
    """A sample of each comparison of the pairs, and for each pair that cannot be compared the reason."""
    samples: list[Sample] = []
    reasons: list[str] = []
    for pair in pairs:
        try:
            for comparison in open_pair(pair).comparisons:
                length = int(comparison.golden.shape[-1]) if comparison.golden.shape else None
                measurement = measure(comparison.golden, comparison.mine)
                if not measurement.empty:
                    samples.append(Sample(JudgeContext.of(pair, length), measurement))
        except (AccError, OSError) as error:
            reasons.append(f"{pair.id}: {error}")
    return samples, reasons
