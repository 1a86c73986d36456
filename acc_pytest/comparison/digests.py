"""Check sums of the bytes that a dump keeps beside or instead of statistics: they say equal, or not equal."""

from __future__ import annotations

from ..judging.verdict import Judgement
from ..mapping.pair import Pair
from ..mapping.views import Whole
from ..tensors.header import Statistics, TensorHeader
from ..tensors.ref import TensorRef

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


def judged_by_digests(same: bool) -> Judgement:
    """The verdict where nothing but digests is known."""
    if same:
        return Judgement("pass", (), EQUAL)
    return Judgement("fail", (), f"{DIFFERENT}; how far they are apart was not recorded")


def _meet(golden: TensorHeader, mine: TensorHeader) -> bool:
    alike = (golden.dtype, golden.shape, len(golden.digest)) == (mine.dtype, mine.shape, len(mine.digest))
    return alike and bool(golden.digest)
