"""A pair of which a dump keeps only max, min, mean and l2norm; the other side may hold all values.

The statistics of a side that was dumped in several shards are merged: largest max, smallest min,
mean weighted by element counts, root of the sum of squared norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from .comparison import judged
from .errors import Incomparable
from .judging.statistics import judge_statistics, measure_statistics, thresholds_for_statistics
from .judging.threshold import JudgeContext, ThresholdRule
from .mapping.pair import Operand, Pair, Whole
from .metrics import measure
from .metrics.source import TensorSource
from .reporting.row import Row
from .tensors.ref import Statistics, TensorRef


def compare_statistics(pair: Pair, row: Row, rules: Sequence[ThresholdRule]) -> Row:
    """Fill `row` from the statistics of both sides.

    Raises `Incomparable` when the pair needs values (a slice of a packed tensor, shards that may be
    replicas) or the sides have different numbers of elements, and what opening a file raises.
    """
    for operand in (pair.golden, pair.mine):
        if not isinstance(operand.view, Whole):
            raise Incomparable(
                f"{operand.node}: only a slice of this tensor is meant, and statistics cannot be sliced"
            )
    golden, golden_count, golden_dtype = _statistics(pair.golden)
    mine, mine_count, mine_dtype = _statistics(pair.mine)
    if golden_count != mine_count:
        raise Incomparable(
            f"statistics of {golden_count} elements (golden) and {mine_count} elements (mine) say "
            "nothing about each other"
        )
    measurement = measure_statistics(
        golden, mine, numel=golden_count, golden_dtype=golden_dtype, mine_dtype=mine_dtype
    )
    thresholds = thresholds_for_statistics(JudgeContext.of(pair), measurement, rules)
    return replace(
        judged(row, judge_statistics(measurement, thresholds)),
        golden=replace(row.golden, max=golden.max, min=golden.min, mean=golden.mean),
        mine=replace(row.mine, max=mine.max, min=mine.min, mean=mine.mean),
        metrics=dict(measurement.values),
        counts={"elements": golden_count},
        notes=("only statistics were dumped: max, min, mean, l2norm",),
    )


def _statistics(operand: Operand) -> tuple[Statistics, int, str]:
    """Statistics, number of elements and dtype name of an operand's shards taken together."""
    found = [_of(ref) for ref in operand.refs]
    counts = [ref.header().numel for ref in operand.refs]
    dtype = operand.refs[0].header().dtype.name
    if len(found) == 1:
        return found[0], counts[0], dtype
    total = sum(counts)
    return (
        Statistics(
            max=_merged(max, [one.max for one in found]),
            min=_merged(min, [one.min for one in found]),
            mean=_merged(lambda means: _weighted(means, counts), [one.mean for one in found]),
            l2norm=_merged(lambda norms: math.hypot(*norms), [one.l2norm for one in found]),
        ),
        total,
        dtype,
    )


def _merged(how: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return how(known) if len(known) == len(values) else None


def _weighted(means: Sequence[float], counts: Sequence[int]) -> float:
    total = sum(counts)
    return sum(mean * count for mean, count in zip(means, counts)) / total if total else 0.0


def _of(ref: TensorRef) -> Statistics:
    header = ref.header()
    if header.statistics is not None:
        return header.statistics
    source = TensorSource(ref.open())
    measured = measure(source, source)
    norm = None if measured.golden_rms is None else measured.golden_rms * math.sqrt(measured.compared)
    return Statistics(measured.golden_max, measured.golden_min, measured.golden_mean, norm)
