"""A pair of which a dump keeps only max, min, mean and l2norm; the other side may hold all values.

The statistics of a side that was dumped in several shards are merged: largest max, smallest min,
mean weighted by element counts, root of the sum of squared norms. Info files may not say how many elements a
tensor has; the other side's number is then its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..base.reason import Reason
from ..errors import Incomparable, NoPayload
from ..judging.judges import Judge
from ..judging.replay import context_scalars, stated_scalars
from ..judging.statistics import judge_statistics, measure_statistics, thresholds_for_statistics
from ..judging.threshold import JudgeContext
from ..judging.verdict import Judgement
from ..mapping.pair import BLOCKED, Operand, Pair
from ..mapping.views import UNSLICED, LastToken, RankSum, RowParallel, Whole
from ..metrics.measurement import STATISTICS
from ..noise.errors import statistics_of
from ..reporting.row import Row
from ..tensors.header import Statistics, TensorHeader
from ..tensors.ref import TensorRef
from .noise import with_noise_of_statistics
from .rows import judged, worst_replica

if TYPE_CHECKING:
    from ..noise.counterparts import Counterpart

_NOTE = "only statistics were dumped: max, min, mean, l2norm"
_ONLY_DIGESTS = "only digests were dumped"
_SUMS_NOTE = "only statistics were dumped: the sum of absolute values (l1norm)"


def compare_statistics(pair: Pair, row: Row, judge: Judge, counterpart: Counterpart | None = None) -> Row:
    """Fill `row` from the statistics of both sides; of replicas, one per rank, from the worst.

    Where both sides have nothing but digests of the bytes, these are compared.

    Raises `NoPayload` when the pair needs values (a slice of a packed tensor, the sum of partial
    results) or a side says nothing of its tensor, `Incomparable` when the sides have different numbers
    of elements, and what opening a file raises.
    """
    equal = same_bytes(pair)
    bare = without_numbers(pair)
    if equal is not None and bare is not None:
        elements = sum(ref.header().numel for ref in pair.golden.refs)
        return judged(row, judged_by_digests(equal), counts={"elements": elements}, notes=(_ONLY_DIGESTS,))
    if bare is not None:
        what = "a digest is all that was recorded of it, and those of other dtypes say nothing"
        nothing = "no statistic of it was recorded, so there is nothing to compare"
        raise NoPayload(Reason("{}: {}", bare, what if bare.header().digest else nothing))
    note = "" if equal is None else EQUAL if equal else DIFFERENT
    golden, mine = _shards(pair.golden), _shards(pair.mine)
    aligned = _aligned(pair, golden, mine)
    return worst_replica([_compared(pair, row, judge, counterpart, *shards, note) for shards in aligned])


def _compared(
    pair: Pair,
    row: Row,
    judge: Judge,
    counterpart: Counterpart | None,
    golden: _Shard,
    mine: _Shard,
    note: str,
) -> Row:
    """The row of two shards; `note` is what digests say of them."""
    g, m = golden.statistics, mine.statistics
    if pair.fed == "mask":
        g, m = _as_mask(g), _as_mask(m)
    count = mine.count if golden.count is None else golden.count
    measurement = measure_statistics(
        g,
        m,
        numel=count or 1,
        golden_dtype=pair.golden.refs[0].header().dtype.name,
        mine_dtype=pair.mine.refs[0].header().dtype.name,
    )
    context = with_noise_of_statistics(JudgeContext.of(pair), pair, measurement.numel, counterpart)
    thresholds = thresholds_for_statistics(context, measurement, judge.rules, judge.standard)
    notes = (_SUMS_NOTE if g.l1norm is not None else _NOTE, note, context.noise_reason)
    return judged(
        row,
        judge_statistics(measurement, thresholds),
        golden=replace(row.golden, max=g.max, min=g.min, mean=g.mean),
        mine=replace(row.mine, max=m.max, min=m.min, mean=m.mean),
        metrics=dict(measurement.values),
        counts={} if count is None else {"elements": count},
        notes=tuple(filter(None, notes)),
        statistics=stated_scalars(measurement),
        context=context_scalars(context),
    )


def _as_mask(mask: Statistics) -> Statistics:
    """The statistics of a mask by what it lets be seen: -1 where it hides, whatever number it has there."""
    if mask.min is None or not BLOCKED >= mask.min > -math.inf:
        return mask
    lowest = abs(mask.min)
    shares = {
        name: value / lowest
        for name in STATISTICS
        if (value := getattr(mask, name)) is not None and math.isfinite(value)
    }
    return replace(mask, **{**dict.fromkeys(STATISTICS), **shares})


@dataclass(frozen=True, slots=True)
class _Shard:
    """Statistics of one file, or of several taken together, and their number of elements if that is known."""

    statistics: Statistics
    count: int | None


def _aligned(pair: Pair, golden: list[_Shard], mine: list[_Shard]) -> list[tuple[_Shard, _Shard]]:
    """The shards to compare: both sides joined, or one side with each replica of it."""
    summed = (isinstance(pair.mine.view, RankSum) and len(mine) > 1) or _may_be_summands(pair, golden, mine)
    takes_values = summed or not all(
        isinstance(end.view, (*UNSLICED, RankSum)) for end in (pair.golden, pair.mine)
    )
    if not takes_values and (of_one_size := _of_one_size(golden, mine)):
        return of_one_size
    golden_count, mine_count = (
        "an unknown number of" if total.count is None else str(total.count)
        for total in (_joined(golden), _joined(mine))
    )
    counts = Reason("golden holds {} elements, mine {}", golden_count, mine_count)
    if takes_values or LastToken in (type(pair.golden.view), type(pair.mine.view)):
        raise NoPayload(
            Reason(
                "only part of the tensor is compared, and the dump has statistics of the whole only ({})",
                counts,
            )
        )
    raise Incomparable(Reason("statistics of different numbers of elements cannot be compared: {}", counts))


def _of_one_size(golden: list[_Shard], mine: list[_Shard]) -> list[tuple[_Shard, _Shard]]:
    """The wholes, or one and each replica of it, that may hold equally many elements; none where none do."""
    golden_total, mine_total = _joined(golden), _joined(mine)
    if golden_total.count == mine_total.count or None in (golden_total.count, mine_total.count):
        return [(golden_total, mine_total)]
    if all(shard.count == golden_total.count for shard in mine):
        return [(golden_total, shard) for shard in mine]
    if all(shard.count == mine_total.count for shard in golden):
        return [(shard, mine_total) for shard in golden]
    return []


def _may_be_summands(pair: Pair, golden: list[_Shard], mine: list[_Shard]) -> bool:
    """Whether ranks hold what only their values could tell to be summands: statistics that differ."""
    sides = ((pair.golden, golden), (pair.mine, mine))
    return any(isinstance(end.view, RowParallel) and len(set(shards)) > 1 for end, shards in sides)


def _shards(operand: Operand) -> list[_Shard]:
    headers = [ref.header() for ref in operand.refs]
    counts = [header.numel if header.counted else None for header in headers]
    return [_Shard(statistics_of(ref), count) for ref, count in zip(operand.refs, counts)]


def _joined(shards: list[_Shard]) -> _Shard:
    """The shards of one tensor taken together."""
    if len(shards) == 1:
        return shards[0]
    stated, counts = [shard.statistics for shard in shards], [shard.count for shard in shards]
    numbers = [count for count in counts if count is not None]
    complete = len(numbers) == len(counts)
    means = [statistics.mean if complete else None for statistics in stated]
    return _Shard(
        Statistics(
            max=_merged(max, [statistics.max for statistics in stated]),
            min=_merged(min, [statistics.min for statistics in stated]),
            mean=_merged(lambda means: _weighted(means, numbers), means),
            l2norm=_merged(lambda norms: math.hypot(*norms), [statistics.l2norm for statistics in stated]),
            l1norm=_merged(math.fsum, [statistics.l1norm for statistics in stated]),
        ),
        sum(numbers) if complete else None,
    )


def _merged(how: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return how(numbers) if len(numbers) == len(values) else None


def _weighted(means: Sequence[float], counts: Sequence[int]) -> float:
    total = sum(counts)
    return sum(mean * count for mean, count in zip(means, counts)) / total if total else 0.0


EQUAL = "the digests are equal: golden and mine are the same bytes"
DIFFERENT = "the digests differ: golden and mine are not the same bytes"
_NONE = Statistics(None, None, None, None)


def same_bytes(pair: Pair) -> bool | None:
    """Whether both sides hold the same bytes, by their digests; `None` where these do not tell.

    The same number in two dtypes is not the same bytes, so digests of other dtypes say nothing.
    """
    golden, mine = ([ref.header() for ref in side.refs] for side in (pair.golden, pair.mine))
    if pair.golden.view != Whole() or pair.mine.view != Whole() or len(golden) != len(mine):
        return None
    if not all(_meet(*headers) for headers in zip(golden, mine)):
        return None
    return all(g.digest == m.digest for g, m in zip(golden, mine))


def without_numbers(pair: Pair) -> TensorRef | None:
    """A tensor of the pair of which a dump keeps a digest at most, neither values nor statistics."""
    refs = (*pair.golden.refs, *pair.mine.refs)
    return next((ref for ref in refs if not _has_numbers(ref.header())), None)


def _has_numbers(header: TensorHeader) -> bool:
    return header.payload == "data" or header.statistics not in (None, _NONE)


def judged_by_digests(equal: bool) -> Judgement:
    """The verdict where nothing but digests is known."""
    if equal:
        return Judgement("pass", (), EQUAL)
    return Judgement("fail", (), Reason("{}; how far they are apart was not recorded", DIFFERENT))


def _meet(golden: TensorHeader, mine: TensorHeader) -> bool:
    alike = (golden.dtype, golden.shape, len(golden.digest)) == (mine.dtype, mine.shape, len(mine.digest))
    return alike and bool(golden.digest)
