"""Rows to the data of a page: columns of all rows, some rows whole. Filled row by row, small at any time."""

from __future__ import annotations

import heapq
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.forms import Scalar
from ...judging.verdict import Check
from ..row import VERDICTS, Row, RowSide
from ..texts import printable

_COLUMNS: dict[str, Callable[[Row], str]] = {
    "name": lambda row: row.name,
    "type": lambda row: row.mine.op_type or row.golden.op_type,
    "slot": lambda row: row.mine.slot or row.golden.slot,
    "golden": lambda row: row.golden.node,
    "dtype": lambda row: (row.mine.dtype or row.golden.dtype).replace("torch.", ""),
    "shape": lambda row: row.mine.shape or row.golden.shape,
    "step": lambda row: str(row.step),
    "rank": lambda row: row.rank,
    "graph": lambda row: row.graph,
    "layer": lambda row: row.layer,
    "level": lambda row: row.level,
    "policy": lambda row: row.policy,
}
"""Texts of every row. `name` and the ids are cut later than the others, for people search by them."""

_FROM_ONE = frozenset(("cosine_similarity",))
"""Metrics kept as their distance from 1: all of the digits that matter are behind a row of nines."""

_DETAILS = 1000
"""Rows kept whole."""

_ID = 600
"""Characters of a test id that are kept; no command repeats a test whose id is longer."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The room of a page for everything; `None` is no bound."""

    details: int = _DETAILS
    pictures: int = 60
    width: int = 200
    judged_only: bool = False
    rows: int | None = None


BUDGETS = (
    Budget(),
    Budget(details=500, judged_only=True),
    Budget(details=200, pictures=30, width=80, judged_only=True),
    Budget(details=100, pictures=10, width=40, judged_only=True, rows=50_000),
    Budget(details=50, pictures=0, width=40, judged_only=True, rows=10_000),
)
"""From everything to little: a page takes the first that fits."""


@dataclass(frozen=True, slots=True)
class _Metric:
    """Two columns: what was measured, and what was allowed (nothing where no bound was)."""

    values: Numbers
    allowed: Numbers


@dataclass(frozen=True, slots=True)
class Packed:
    """The data of a page, where in its columns the rows are that it always has, and which rows are in it, by
    arrival."""

    body: dict[str, Any]
    places: dict[Place, int]
    order: Sequence[int]


class PageData:
    """The rows of a run so far."""

    def __init__(self) -> None:
        self._texts = {name: Texts() for name in (*_COLUMNS, "home", "leaf", "because")}
        self._verdicts = bytearray()
        self._places: list[Place] = []
        self._roots = array("q")
        self._closeness = Numbers()
        self._metrics: dict[str, _Metric] = {}
        self._judged: dict[str, bool] = {}
        self._worst = KeptRows(_DETAILS)

    def __len__(self) -> int:
        return len(self._verdicts)

    def add(self, row: Row) -> None:
        """Take one row in."""
        for name, of in _COLUMNS.items():
            self._texts[name].add(of(row))
        home, _, leaf = row.test_id.rpartition("::")
        fits = len(row.test_id) <= _ID
        self._texts["home"].add(home if fits else "")
        self._texts["leaf"].add(leaf if fits else "")
        closest = max(row.checks, key=_closeness, default=None)
        excess = math.inf if row.verdict == "incomparable" else _closeness(closest)
        self._texts["because"].add(closest.metric if closest is not None else "")
        self._closeness.add(None if row.alone else excess)
        self._add_metrics(row)
        self._places.append(place_of(row))
        self._roots.append(-1 if row.cause is None or row.cause.root is None else row.cause.root)
        self._worst.add(len(self), row, excess)
        self._verdicts.append(VERDICTS.index(row.verdict))

    def _add_metrics(self, row: Row) -> None:
        measured: dict[str, Scalar] = {**row.metrics, **row.custom}
        allowed: dict[str, float] = {}
        for check in row.checks:
            measured[check.metric] = check.measured
            if not math.isinf(check.allowed):
                allowed[check.metric] = check.allowed
                self._judged[check.metric] = check.at_least
        for name in measured:
            if name not in self._metrics:
                is_similarity = name in _FROM_ONE
                self._metrics[name] = _Metric(
                    Numbers(len(self), is_similarity), Numbers(len(self), is_similarity)
                )
        for name, metric in self._metrics.items():
            metric.values.add(measured.get(name))
            metric.allowed.add(allowed.get(name))

    def order(self) -> list[int]:
        """The indexes of arrival, in execution order."""
        return sorted(range(len(self)), key=self._places.__getitem__)

    def notable_rows(self, roots: Sequence[Row], count: int) -> list[Row]:
        """At most `count` rows to look into: `roots`, then those farthest beyond their bounds."""
        rows = {place_of(row): row for row in roots}
        for row in self._worst.worst(("fail", "known", "inherited"), count):
            rows.setdefault(place_of(row), row)
        return list(rows.values())[:count]

    @property
    def detailed(self) -> list[Row]:
        """The rows that are kept whole where there is room, beside roots."""
        return list(self._worst.chosen(_DETAILS, {}).values())

    def packed(
        self,
        budget: Budget,
        always: Sequence[Row],
        order: Sequence[int],
        pictures: Mapping[Place, dict[str, Any]],
    ) -> Packed:
        """The data for the page's script, with counts of what was left out.

        `always` are rows to keep whole whatever they are (roots), `pictures` what was drawn of some. Keys of
        `details` are places in the columns.
        """
        order = self._thinned(order, budget.rows)
        root_rows = {place_of(row): row for row in always}
        positions = {
            self._places[index]: at for at, index in enumerate(order) if self._places[index] in root_rows
        }
        detailed = self._worst.chosen(
            budget.details, {order[at]: root_rows[place] for place, at in positions.items()}
        )
        drawn = dict(list(pictures.items())[: budget.pictures])
        details = {
            at: _detail(detailed[index], budget, drawn) for at, index in enumerate(order) if index in detailed
        }
        metrics = [name for name in self._metrics if name in self._judged or not budget.judged_only]
        body = {
            "length": len(order),
            "texts": {
                # Ids are cut later, as commands are made of them.
                name: texts.packed(order, _ID if name in ("home", "leaf") else budget.width)
                for name, texts in self._texts.items()
            },
            "verdicts": [self._verdicts[index] for index in order],
            "numbers": differences(
                -1 if math.isinf(number := self._places[index][0]) else int(number) for index in order
            ),
            "roots": differences(map(self._roots.__getitem__, order)),
            "closeness": self._closeness.packed(order),
            "metrics": [
                {
                    "name": printable(name, budget.width),
                    "from_one": name in _FROM_ONE,
                    "at_least": self._judged.get(name),
                    "values": self._metrics[name].values.packed(order),
                    "allowed": self._metrics[name].allowed.packed(order),
                }
                for name in metrics
            ],
            "details": details,
            "steps_per_decade": STEPS_PER_DECADE,
            "left_out": {
                "rows": len(self) - len(order),
                "details": len(order) - len(detailed),
                "metrics": len(self._metrics) - len(metrics),
            },
        }
        return Packed(body, positions, order)

    def _thinned(self, order: Sequence[int], rows: int | None) -> Sequence[int]:
        """At most `rows` of `order`: those that are no pass first, then passing ones, evenly spread."""
        if rows is None or len(order) <= rows:
            return order
        notable = [index for index in order if self._verdicts[index]]
        passing = [index for index in order if not self._verdicts[index]]
        chosen = {*_spread(notable, rows), *_spread(passing, max(0, rows - len(notable)))}
        return [index for index in order if index in chosen]


def _detail(row: Row, budget: Budget, pictures: Mapping[Place, dict[str, Any]]) -> dict[str, Any]:
    details = row_details(row, 4 * budget.width)
    if (picture := pictures.get(place_of(row))) is not None:
        details["pictures"] = picture
    return details


def _closeness(check: Check | None) -> float:
    """The measured value as a share of the allowed one."""
    return 0.0 if check is None else check.excess


def _spread(values: Sequence[int], count: int) -> Sequence[int]:
    if len(values) <= count:
        return values
    return [values[place * len(values) // count] for place in range(count)]


_SHARES = {
    "fail": 0.5, "incomparable": 0.15, "incomplete": 0.15, "known": 0.1, "inherited": 0.15, "unmapped": 0.04,
    "tie": 0.03, "pass": 0.03,
}  # fmt: skip
"""The share of the room that each verdict may take before the others had theirs, most urgent first."""

_Entry = tuple[float, float, int, Row]


class KeptRows:
    """At most `room` rows of each verdict, the worst ones."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._best: dict[str, list[_Entry]] = {verdict: [] for verdict in _SHARES}

    def add(self, index: int, row: Row, excess: float) -> None:
        """Take a row into account, which arrived as number `index`. Of equally bad ones the earlier in
        execution order is kept."""
        heap = self._best[row.verdict]
        entry = (excess, -float("inf") if row.number is None else -row.number, -index, row)
        if len(heap) < self._room:
            heapq.heappush(heap, entry)
        elif entry[:3] > heap[0][:3]:
            heapq.heapreplace(heap, entry)

    def chosen(self, room: int, always: Mapping[int, Row]) -> dict[int, Row]:
        """At most `room` rows by index: those in `always`, then each verdict's share, then what fits."""
        chosen = dict(always)
        ranked = {
            verdict: sorted(heap, key=itemgetter(0, 1, 2), reverse=True)
            for verdict, heap in self._best.items()
        }
        shares = [entries[: round(_SHARES[verdict] * room)] for verdict, entries in ranked.items()]
        for entries in (*shares, *ranked.values()):
            for _, _, index, row in entries:
                if len(chosen) >= room:
                    return chosen
                chosen.setdefault(-index, row)
        return chosen

    def worst(self, verdicts: Iterable[str], count: int) -> list[Row]:
        """The `count` rows of these verdicts farthest beyond their bounds, among those of one verdict the
        worst first; verdicts in the order given."""
        rows: list[Row] = []
        for verdict in verdicts:
            heap = sorted(self._best[verdict], key=itemgetter(0, 1, 2), reverse=True)
            rows += [row for *_, row in heap]
        return rows[:count]


# Rows of a page as columns of small integers: texts by their place in a dictionary, numbers on a log scale.
#
# A hundred thousand rows are then a few megabytes of JSON that compress well and that a browser reads in
# a fraction of a second.


Place = tuple[float, str, str]
"""Number in execution order, test id, slot: what a row is known by, and how rows are ordered."""

STEPS_PER_DECADE = 200
"""Resolution of quantised numbers: neighbours differ by 1.2 %."""

SMALLEST = -60
"""Decimal exponent of the smallest magnitude there is; what lies below is shown as this."""

LARGEST = 60
"""Decimal exponent of the largest."""

NOTHING, ZERO, NAN, INFINITE, MINUS_INFINITE, FIRST = 0, 1, 2, 3, 4, 10
"""Codes of what has no logarithm; magnitudes begin at `FIRST`."""

_TOP = FIRST + (LARGEST - SMALLEST) * STEPS_PER_DECADE


NO_NUMBER = -0.0
"""Stands for what is no number until it gets its code; a zero that was measured is 0.0."""

_BLOCK = 4096
"""Values that wait to be coded at once."""


def number_of(value: Scalar) -> float:
    """A number as `quantised` takes it: `NO_NUMBER` for a missing one, the largest float for infinity."""
    if value is None or isinstance(value, (str, bool)):
        return NO_NUMBER
    try:
        return float(value) or 0.0
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def quantised(values: NDArray[np.float64]) -> NDArray[np.int16]:
    """The codes of numbers: negative for negative ones; `NOTHING` for `NO_NUMBER`.

    `FIRST + (log10|x| - SMALLEST) * STEPS_PER_DECADE`, rounded, so that a code fits 16 bits.
    """
    with np.errstate(all="ignore"):
        codes = FIRST + np.rint((np.log10(np.abs(values)) - SMALLEST) * STEPS_PER_DECADE)
    codes = np.copysign(np.clip(codes, FIRST, _TOP), values)
    codes[values == 0] = np.where(np.signbit(values[values == 0]), NOTHING, ZERO)
    codes[np.isnan(values)] = NAN
    codes[np.isposinf(values)] = INFINITE
    codes[np.isneginf(values)] = MINUS_INFINITE
    rounded: NDArray[np.int16] = codes.astype(np.int16)
    return rounded


class Texts:
    """A column of texts. Equal ones share a code."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._column = array("i")
        self._waiting: list[str] = []

    def add(self, text: str) -> None:
        self._waiting.append(text)
        if len(self._waiting) == _BLOCK:
            self._settle()

    def _settle(self) -> None:
        for text in dict.fromkeys(self._waiting):
            self._codes.setdefault(text, len(self._codes))
        self._column.extend(map(self._codes.__getitem__, self._waiting))
        self._waiting.clear()

    def packed(self, order: Sequence[int], width: int) -> dict[str, Any]:
        """The rows `order` names, each text cut to `width`: dictionary, and differences of codes.

        Codes are given in order of appearance, so that differences are mostly 0 or 1.
        """
        self._settle()
        texts = list(self._codes)
        codes = np.array(self._column, np.int64)[np.array(order, np.int64)]
        used, first, place = np.unique(codes, return_index=True, return_inverse=True)
        appearing = np.argsort(first)
        rank = np.empty_like(appearing)
        rank[appearing] = np.arange(used.size)
        return {
            "texts": [printable(texts[old], width) for old in used[appearing].tolist()],
            "codes": differences(rank[place].reshape(-1)),
        }


class Numbers:
    """A column of quantised numbers, `NOTHING` in the `start` rows before the first.

    `is_similarity`: what is kept is the distance from 1. One that rounding made more than 1 has none.
    """

    def __init__(self, start: int = 0, is_similarity: bool = False) -> None:
        self._column = array("h", bytes(2 * start))
        self._is_similarity = is_similarity
        self._waiting: list[float] = []

    def add(self, value: Scalar) -> None:
        self._waiting.append((value or 0.0) if value.__class__ is float else number_of(value))
        if len(self._waiting) == _BLOCK:
            self._settle()

    def _settle(self) -> None:
        values = np.array(self._waiting, np.float64)
        if self._is_similarity:
            none = (values == 0) & np.signbit(values)
            values = np.where(none, NO_NUMBER, np.maximum(1.0 - values, 0.0))
        self._column.frombytes(quantised(values).tobytes())
        self._waiting.clear()

    def packed(self, order: Sequence[int]) -> array[int]:
        """The codes of the rows that `order` names: two bytes each, where a list has 36."""
        self._settle()
        return array("h", np.array(self._column, np.int16)[np.array(order, np.int64)].tobytes())


def differences(values: Iterable[int]) -> array[int]:
    """Each value less the one before it, the first less 0: eight bytes each, where a list has 36."""
    return array("q", np.diff(np.fromiter(values, np.int64), prepend=0).tobytes())


def place_of(row: Row) -> Place:
    """Execution order, the same however rows arrived; rows without a number come last, by their ids."""
    return (math.inf if row.number is None else row.number, row.test_id, row.mine.slot or row.golden.slot)


# All of one row, as the details panel of a page shows it: plain JSON values, hostile text made harmless.


_EXACT = 2**53
"""Integers up to here survive JavaScript's numbers; larger ones travel as text."""


_FILES = 64
"""Files of shards that are listed, of each side."""
_PARENTS = 16


def row_details(row: Row, width: int) -> dict[str, Any]:
    """Every field of `row` that people read; texts cut to `width` characters, paths to four times that."""
    details: dict[str, Any] = {
        "sentence": printable(row.sentence, width),
        "reasons": [printable(reason, width) for reason in row.reasons if reason != row.sentence],
        "notes": [printable(note, width) for note in row.notes],
        "policy": printable(row.policy, width),
        "mapping": printable(row.mapping_reason, width),
        "golden": _side(row.golden, width),
        "mine": _side(row.mine, width),
        "metrics": _named({**row.metrics, **row.custom}, width),
        "counts": _named(row.counts, width),
        "case": _named(row.case, width),
        "checks": [
            {
                "metric": printable(check.metric, width),
                "measured": plain(check.measured),
                "allowed": plain(check.allowed),
                "at_least": check.at_least,
                "reason": printable(check.reason, width),
                "passed": check.passed,
                "excess": plain(check.excess),
            }
            for check in row.checks
        ],
    }
    if row.worst.index:
        cells = (row.worst.index, row.worst.golden, row.worst.mine)
        details["worst"] = [_scalar(cell, width) for cell in cells]
    if row.cause is not None:
        details["cause"] = {
            **{
                name: printable(getattr(row.cause, name), width)
                for name in ("text", "kind", "basis", "local")
            },
            "local_error": plain(row.cause.local_error),
            "amplification": plain(row.cause.amplification),
            "parents": list(row.cause.parents[:_PARENTS]),
        }
    return details


def _side(side: RowSide, width: int) -> dict[str, Any]:
    details = _named(
        {name: getattr(side, name) for name in ("node", "name", "op_type", "slot", "code")}, width
    )
    details |= {name: printable(getattr(side, name), 2 * width) for name in ("dtype", "shape")}
    details |= {name: plain(getattr(side, name)) for name in ("max", "min", "mean")}
    files = [printable(path, 4 * width) for path in side.path.split(";")[:_FILES] if path]
    return {**details, "files": files}


def _named(values: Mapping[str, Scalar], width: int) -> dict[str, Any]:
    return {
        printable(name, width): _scalar(value, width)
        for name, value in values.items()
        if value not in (None, "")
    }


def _scalar(value: Scalar, width: int) -> Any:
    return printable(value, width) if isinstance(value, str) else plain(value)


def plain(value: Scalar) -> Any:
    """A number that JSON and JavaScript keep; NaN, infinities and huge integers as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value
