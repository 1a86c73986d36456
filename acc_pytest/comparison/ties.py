"""Whether another choice than golden's (top-k, argmax, sort) is one among equals: a tie.

Where mine chose another index, golden's own values at both choices are held against what those values may be
off: T * rms, T being the relative L2 tolerance of the two tensors that were chosen from. Two values closer
than that may come in either order in a right computation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ..errors import AccError
from ..judging.tolerance import tolerance
from ..judging.verdict import Check
from ..mapping.pair import Pair
from ..reporting.row import Row
from ..tensors.dtypes import by_name
from ..tensors.ref import TensorRef
from ..tensors.source import Source

COUNT = "mismatches"
GAP = "choice_gap"
"""The metric in the check of a tie: the largest difference of two values that were chosen among."""
_CONTEXT = ("choices", GAP, "choice_allowed")
"""What a row keeps of it in its context, so that it can be judged again."""
MOST = 1 << 26
"""Values that are looked at; they are read as a whole."""


@dataclass(frozen=True, slots=True)
class Choices:
    """How many choices differ, how far apart their values are at most, and how far they may be."""

    count: int
    gap: float
    allowed: float


def with_choices(row: Row, pair: Pair, golden: Source, mine: Source) -> Row:
    """The row of a choice that fails with what is known of the values chosen from; a tie where it is one.

    Other rows as they are.
    """
    if pair.fed or not _only_choices_differ(row) or not (pair.golden.chosen_from and pair.mine.chosen_from):
        return row
    try:
        choices = _choices(pair, golden, mine)
    except (AccError, OSError):
        return row  # of tensors that cannot be read nothing is known, and the pair fails
    if choices is None:
        return row
    kept = dict(zip(_CONTEXT, (choices.count, choices.gap, choices.allowed)))
    return as_tie(replace(row, context={**row.context, **kept}))


def as_tie(row: Row) -> Row:
    """A failing row of choices as a tie, where its context says that it is one; else with a note."""
    count, gap, allowed = (row.context.get(name) for name in _CONTEXT)
    numbers = type(count) is int and type(gap) is float and type(allowed) is float
    if not numbers or not _only_choices_differ(row):
        return row
    assert isinstance(gap, float)
    assert isinstance(allowed, float)
    elements = row.counts.get("elements")
    many = f"{count} of {elements} choices differ"
    if not gap <= allowed:
        note = f"{many}, among values up to {gap:.3g} apart (of a tie at most {allowed:.3g})"
        return replace(row, notes=(*(other for other in row.notes if other != note), note))
    among = "equal values" if gap == 0 else f"values at most {gap:.3g} apart"
    sentence = f"{many}, each among {among} (allowed {allowed:.3g})"
    reason = "T times rms of the values chosen from: what these may be off"
    checks = (
        *(_off(check) if check.metric == COUNT else check for check in row.checks),
        Check(GAP, gap, allowed, False, reason, True),
    )
    return replace(row, verdict="tie", sentence=sentence, reasons=(), checks=checks)


def _only_choices_differ(row: Row) -> bool:
    failed = [check.metric for check in row.checks if not check.passed]
    return row.verdict == "fail" and failed == [COUNT]


def _off(check: Check) -> Check:
    """The count of differing indices without a bound: that of the values takes its place."""
    return replace(check, allowed=math.inf, reason="a tie: the values chosen from decide", passed=True)


def _choices(pair: Pair, golden: Source, mine: Source) -> Choices | None:
    """What golden's values say of the choices; `None` where these cannot be choices among them."""
    if not golden.shape:
        return None
    golden_chosen, mine_chosen = (_whole(source) for source in (golden, mine))
    dtype = _float_dtype(pair.mine.chosen_from)
    for ref in pair.golden.chosen_from:
        header = ref.header()
        axes = list(_axes(header.shape, golden.shape))
        if not axes or not dtype or header.numel > MOST or header.dtype.format is None:
            continue
        values = ref.open().double()
        for axis in axes:
            ours, theirs = (_along(axis, chosen, values) for chosen in (golden_chosen, mine_chosen))
            if _is_choice(values, ours, axis):
                return _held(values, ours, theirs, axis, (header.dtype.name, dtype), pair)
    return None


def _float_dtype(refs: Sequence[TensorRef]) -> str:
    """The type of the first tensor of floats among these; empty without one."""
    dtypes = (ref.header().dtype for ref in refs)
    return next((dtype.name for dtype in dtypes if dtype.format is not None), "")


def _along(axis: int, chosen: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The indices with the dimension that they choose along, which argmax leaves out."""
    return chosen if chosen.dim() == values.dim() else chosen.unsqueeze(axis)


def _whole(source: Source) -> torch.Tensor:
    return source.read(0, math.prod(source.shape)).reshape(source.shape).long()


def _axes(values: tuple[int, ...], chosen: tuple[int, ...]) -> Iterator[int]:
    """The dimensions along which indices of this shape may choose among the values, the last first."""
    for axis in reversed(range(len(values))):
        others = values[:axis] + values[axis + 1 :]
        if len(chosen) == len(values):
            if others == chosen[:axis] + chosen[axis + 1 :] and 0 < chosen[axis] <= values[axis]:
                yield axis
        elif others == chosen:
            yield axis


def _is_choice(values: torch.Tensor, chosen: torch.Tensor, axis: int) -> bool:
    """Whether these are the largest, or the smallest, of the values along the axis."""
    if chosen.min() < 0 or chosen.max() >= values.shape[axis]:
        return False
    picked = values.gather(axis, chosen)
    for largest in (True, False):
        best = values.topk(chosen.shape[axis], axis, largest).values
        if torch.equal(picked.sort(axis, descending=largest).values, best):
            return True
    return False


def _held(
    values: torch.Tensor,
    golden: torch.Tensor,
    mine: torch.Tensor,
    axis: int,
    dtypes: Sequence[str],
    pair: Pair,
) -> Choices | None:
    """The differing choices held against the values; `None` for an index that is none, or chosen twice."""
    if mine.min() < 0 or mine.max() >= values.shape[axis]:
        return None
    ordered = mine.sort(axis).values
    if bool((ordered.diff(dim=axis) == 0).any()):
        return None
    differing = golden != mine
    ours, theirs = (values.gather(axis, chosen)[differing] for chosen in (golden, mine))
    gaps = torch.where(ours == theirs, 0.0, (ours - theirs).abs())  # of two infinities there is no difference
    finite = values[values.isfinite()]
    if not len(finite) or not len(gaps):
        return None
    rms = float(finite.square().mean().sqrt())
    # Without the scatter of few elements: that is of a measured error, and here none is.
    bound = tolerance(
        *dtypes,
        depth=pair.depth,
        length=values.shape[axis],
        subnormal_rms=_subnormal(rms, dtypes),
        computed_in=pair.computed_in,
    )
    return Choices(len(gaps), float(gaps.max()), bound.value * rms)


def _subnormal(rms: float, dtypes: Sequence[str]) -> float | None:
    """The size of the values where it is below the normal range of the coarser type."""
    smallest = max(fmt.smallest_normal for name in dtypes if (fmt := by_name(name).format) is not None)
    return rms if 0 < rms < smallest else None
