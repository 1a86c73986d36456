"""`NoiseErrors`: what noise runs are off by in one tensor of golden, as plain numbers.

Both ways to it end here: a noise run whose tensors are measured where a pair is compared, and a profile that
was measured when golden was made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..judging.derive import element_scale
from ..judging.threshold import JudgeContext
from ..judging.tolerance import coarser
from ..metrics.kernel import measure
from ..metrics.measurement import Measurement
from ..tensors.dtypes import by_name
from ..tensors.header import Statistics
from ..tensors.ref import TensorRef
from ..tensors.source import TensorSource


@dataclass(frozen=True, slots=True)
class NoiseErrors:
    """Errors of one golden tensor in one noise run, or the largest of several.

    `relative` is the relative Euclidean distance, `None` where the tensor has no finite element; `largest`
    the largest absolute error. `dtype` is the coarser float type of golden's tensor and the noise run's,
    empty for whole numbers, `elements` how many the tensor has, `runs` how many runs were measured.
    `at_least` bounds `relative` from below where the runs were dumped as statistics. The others are errors of
    rows and channels and the bias without sign (`SliceErrors`), `None` where the tensor has too few.
    `last_row_largest` is the largest absolute error of the last rows, which may be compared alone.
    """

    dtype: str
    elements: int
    relative: float | None = None
    largest: float | None = None
    mismatches: int = 0
    new_nonfinite: int = 0
    lost_nonfinite: int = 0
    runs: int = 1
    at_least: float | None = None
    typical_row: float | None = None
    worst_row: float | None = None
    worst_channel: float | None = None
    bulk: float | None = None
    bias: float | None = None
    last_row: float | None = None
    last_row_largest: float | None = None
    row_p90: float | None = None
    channel_p90: float | None = None

    @classmethod
    def of(cls, noise: Measurement) -> NoiseErrors:
        """The errors of a tensor that was measured against golden's."""
        dtypes = (noise.golden_dtype, noise.mine_dtype)
        exact = all(by_name(dtype).format is None for dtype in dtypes)
        return cls(
            dtype="" if exact else coarser(*dtypes).name,
            elements=noise.numel,
            relative=noise.relative_euclidean_distance,
            largest=noise.max_absolute_error,
            mismatches=noise.mismatches or 0,
            new_nonfinite=int(noise.value("new_nonfinite") or 0),
            lost_nonfinite=int(noise.value("lost_nonfinite") or 0),
            typical_row=noise.value("typical_row_error"),
            worst_row=noise.value("worst_row_error"),
            worst_channel=noise.value("worst_channel_error"),
            bulk=noise.value("bulk_error"),
            bias=noise.value("bias"),
            last_row=noise.value("last_row_error"),
            row_p90=noise.slices.row_error_p90,
            channel_p90=noise.slices.channel_error_p90,
        )

    def of_last_row(self) -> NoiseErrors:
        """The errors of the last rows alone."""
        return NoiseErrors(self.dtype, self.elements, self.last_row, self.last_row_largest, runs=self.runs)

    @classmethod
    def largest_of(cls, runs: Sequence[NoiseErrors]) -> NoiseErrors:
        """The largest errors of several runs of one tensor; the type is the coarsest.

        Of the shards of one tensor it is never less than what their whole is off by: of several ratios that
        of the sums is at most the largest.
        """
        sizes = {field.name: [getattr(run, field.name) for run in runs] for field in fields(cls)}
        largest: dict[str, Any] = {
            name: max((value for value in values if value is not None), default=None)
            for name, values in sizes.items()
            if name != "dtype"
        }
        dtype = max((run.dtype for run in runs if run.dtype), key=_roundoff, default="")
        return cls(**{**largest, "dtype": dtype, "runs": min(run.runs for run in runs)})

    def applied_to(self, context: JudgeContext) -> JudgeContext:
        """The context of a pair with what the noise run is off by in its golden tensor."""
        unknown = "of the noise run only statistics are known"
        if self.at_least is None:
            unknown = "the noise run has no number here"
        return replace(
            context,
            noise_error=self.relative,
            noise_max_absolute_error=self.largest,
            noise_mismatches=self.mismatches,
            noise_new_nonfinite=self.new_nonfinite,
            noise_lost_nonfinite=self.lost_nonfinite,
            noise_dtype=self.dtype,
            noise_runs=self.runs,
            noise_nearby=self.at_least,
            noise_typical_row=self.typical_row,
            noise_worst_row=self.worst_row,
            noise_worst_channel=self.worst_channel,
            noise_bulk=self.bulk,
            noise_bias=self.bias,
            noise_last_row=self.last_row,
            noise_row_p90=self.row_p90,
            noise_channel_p90=self.channel_p90,
            noise_reason="" if self.relative is not None else unknown,
        )


def _roundoff(dtype: str) -> float:
    fmt = by_name(dtype).format
    return fmt.roundoff if fmt is not None else 0.0


# Noise by statistics alone: max, min, mean and norm of golden's tensor and the noise run's.


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
        from ..tensors.statistics import statistics_of as written_of

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
