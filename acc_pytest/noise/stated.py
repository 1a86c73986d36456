"""Noise by statistics alone: max, min, mean and norm of golden's tensor and the noise run's."""

from __future__ import annotations

import math

from ..judging.derive import element_scale
from ..judging.tolerance import coarser
from ..metrics.kernel import measure
from ..tensors.dtypes import by_name
from ..tensors.header import Statistics
from ..tensors.ref import TensorRef
from ..tensors.source import TensorSource
from ..tensors.statistics import statistics_of as written_of
from .errors import NoiseErrors


def has_statistics_only(ref: TensorRef) -> bool:
    """Whether a tensor was dumped as statistics. Raises `FormatError` where its header cannot be read."""
    return ref.header().payload == "statistics"


def statistics_of(ref: TensorRef) -> Statistics:
    """The statistics that a dump states of a tensor, else those of its values. Raises `AccError` where it
    cannot be read.

    NaN and Inf count in mean and norm, as those who write statistics count them.
    """
    header = ref.header()
    if header.statistics is not None:
        return header.statistics
    source = TensorSource(ref.open())
    measured = measure(source, source)
    if source.dtype.is_complex or measured.nonfinite.golden_nan or measured.nonfinite.golden_inf:
        return written_of(ref.open())
    norm = None if measured.golden_rms is None else measured.golden_rms * math.sqrt(measured.compared)
    return Statistics(measured.golden_max, measured.golden_min, measured.golden_mean, norm)


def stated_errors(golden: TensorRef, noise: TensorRef) -> NoiseErrors:
    """The least errors of the noise run, by what is stated of both.

    A norm moves by no more than the whole does, a mean by no more than the rms error, and an extreme by no
    more than one element may.
    """
    g, n = statistics_of(golden), statistics_of(noise)
    elements = max(1, golden.header().numel)
    dtypes = [ref.header().dtype.name for ref in (golden, noise)]
    if all(by_name(dtype).format is None for dtype in dtypes):
        return NoiseErrors("", elements)
    peak = max((abs(value) for value in (g.max, g.min) if value is not None), default=0.0)
    rms = peak if g.l2norm is None else g.l2norm / math.sqrt(elements)
    scales = {
        "max": element_scale(rms, peak),
        "min": element_scale(rms, peak),
        "mean": rms,
        "l2norm": g.l2norm,
        "l1norm": g.l1norm,
    }
    shares = [
        abs(theirs - ours) / scale
        for name, scale in scales.items()
        if scale and (ours := getattr(g, name)) is not None and (theirs := getattr(n, name)) is not None
    ]
    largest = max((share for share in shares if math.isfinite(share)), default=None)
    return NoiseErrors(coarser(*dtypes).name, elements, at_least=largest)
