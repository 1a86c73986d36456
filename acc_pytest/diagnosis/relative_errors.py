"""The relative errors of a pair by kind, and whether those of its inputs explain them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..reporting.row import Row
from ..tensors.dtypes import by_name

JUMP = 4.0
"""How many times the error of its inputs a pair's own may be and still be taken for theirs: one operator
seldom amplifies a relative error more (a norm and a product about 1, a softmax with its range of scores)."""
DISTANCE = "relative_euclidean_distance"
_OF_PARTS = ("typical_row_error", "worst_row_error", "worst_channel_error", "bulk_error", "bias")
_LARGEST = "max_absolute_error"
"""Here a share of golden's root mean square."""
_WITHOUT_LARGEST = (DISTANCE, *_OF_PARTS)
_KINDS = {name: number for number, name in enumerate((*_WITHOUT_LARGEST, _LARGEST))}
_KIND_OF = {**_KINDS, "cosine_similarity": _KINDS[DISTANCE]}
_TYPICAL = _KINDS["typical_row_error"]
NO_KINDS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RelativeErrors:
    """Of each kind what was measured of a pair of floats, NaN where it has none; empty for other pairs.

    `beyond` are the kinds that are beyond their bounds. `others` says that something else is: a NaN, what the
    user measures.
    """

    measured: array[float]
    beyond: frozenset[int] = NO_KINDS
    others: bool = False

    @classmethod
    def of(cls, row: Row) -> RelativeErrors:
        """Those of a row."""
        failed = [_KIND_OF.get(check.metric) for check in row.checks if not check.passed]
        # Python makes each empty set anew, 200 bytes of every pair that passes.
        known = frozenset(kind for kind in failed if kind is not None) if failed else NO_KINDS
        return cls(array("f", _measured(row)), known, None in failed)

    def explained_by(self, inputs: Sequence[RelativeErrors], *, by_rows: bool = False) -> bool:
        """Whether the errors of its inputs may have made those of the pair.

        Each kind that is beyond its bound (of a pair that passes, its distance) is at most `JUMP` times the
        largest that one of them has. With `by_rows` some rows are other ones, and a typical row has to tell.
        Of tensors of few rows the distance tells of the largest error too: all of it may be in one channel.
        """
        known = [one.measured for one in inputs if one.measured]
        if self.others or not self.measured or not known:
            return False
        most = [max(kinds) for kinds in zip(*map(_filled, known))]
        kinds = self.beyond or {_KINDS[DISTANCE]}
        if math.isnan(self.measured[_TYPICAL]) and _KINDS[_LARGEST] in kinds:
            kinds = kinds - {_KINDS[_LARGEST]} | {_KINDS[DISTANCE]}
        return not any(
            self.measured[kind] > JUMP * most[kind] for kind in kinds if not by_rows or kind == _TYPICAL
        )


NO_ERRORS = RelativeErrors(array("f"))


def _filled(measured: array[float]) -> Iterator[float]:
    """The error of the whole in the place of those that a tensor does not have."""
    whole = 0.0 if math.isnan(measured[0]) else measured[0]
    return (whole if math.isnan(each) else each for each in measured)


def _measured(row: Row) -> list[float]:
    metrics = row.metrics
    if _number(metrics.get(DISTANCE)) is None or by_name(row.golden.dtype).format is None:
        return []
    values = [_number(metrics.get(name)) for name in _WITHOUT_LARGEST]
    largest, rms = _number(metrics.get(_LARGEST)), _number(row.statistics.get("golden_rms"))
    relative = largest / rms if largest is not None and rms else math.nan
    return [*(math.nan if value is None else abs(value) for value in values), relative]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (float, int)) else None
