"""The view behind `--acc-html`: takes rows as they arrive and writes the page at the end."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...base.reason import Reason
from ...errors import AccError
from ...outputs import Staged, target_of
from ..history import LAST, HistoryFile, since
from ..row import Row
from ..summary import run_verdict
from ..texts import printable
from ..view import FileView, Result, Run
from .data import BUDGETS, PageData, place_of, plain
from .graph import ModelGraph
from .page import head, page, static

if TYPE_CHECKING:
    import torch

    from ...mapping.pair import Plan
    from ...tensors.source import Source


LIMIT = 4_800_000
"""Bytes of a page: where everything does not fit, something is left out, and the page says what."""


class HtmlReport(FileView[Staged]):
    """One page at `path`, replaced when it is whole; `history` has the earlier runs. Raises `AccError`."""

    def __init__(self, path: str, history: HistoryFile | None = None) -> None:
        super().__init__(path)
        self._history = history
        self._data = PageData()
        self._run: Run | None = None
        self._graph: ModelGraph | None = None

    def begin(self, run: Run) -> None:
        """Keep what is known of the run; a place that cannot be written ends it before its first test."""
        self._file = Staged(target_of(self._path, "--acc-html"))
        self._run = run
        if run.plan is not None and any(run.plan.parents):
            self._graph = ModelGraph(run.plan)

    def add(self, row: Row) -> None:
        """Take one row."""
        self._data.add(row)
        if self._graph is not None:
            self._graph.add(row)

    def finish(self, result: Result) -> None:
        """Look into the pairs that matter, and make the page; nothing where the run did not begin."""
        if self._run is None or self._file is None:
            return
        causes = () if result.diagnosis is None else result.diagnosis.roots
        roots = [root.row for root in causes] + [row for root in causes for row in root.also]
        order = self._data.order()
        chosen = self._data.notable_rows(roots, BUDGETS[0].pictures)
        pictures = dict(zip(map(place_of, chosen), details(self._run.plan, chosen)))
        runs, errors = self._past(self._history, result, roots) if self._history else ({}, {})
        for budget in BUDGETS:
            packed = self._data.packed(budget, roots, order, pictures)
            packed.body["history"] = errors
            if self._graph is not None:
                packed.body["graph"] = self._graph.packed(packed, budget.width)
            verdict = run_verdict(self._run, result)
            summary = {**head(self._run, result, packed.places, verdict), "history": runs}
            name = self._run.plan.name if self._run.plan is not None else self._run.title
            text = page(f"{name} - acc", summary, packed.body, static(summary, result))
            if len(text) <= LIMIT:
                break
        self._file.write(text)

    def _past(self, history: HistoryFile, result: Result, roots: Sequence[Row]) -> tuple[Any, Any]:
        """The last runs, this one the last of them; and by test id the errors of rows in those before it."""
        rows = (*roots, *self._data.detailed) if history.earlier.runs else ()
        ids = {row.test_id: history.id_of(row) for row in rows}
        errors = history.earlier.errors(frozenset(ids.values()).__contains__)
        runs = [*history.earlier.runs, history.past_run(result)]
        last = {
            "times": [printable(past.time[:16], _WIDTH) for past in runs[-LAST - 1 :]],
            "errors": [plain(past.worst_error) for past in runs[-LAST - 1 :]],
            "since": [printable(sentence, _WIDTH) for sentence in since(runs)],
        }
        return last, {test: [plain(run.get(name)) for run in errors] for test, name in ids.items()}


ELEMENTS = 200_000_000
"""Elements read of each side, of all pairs together: about ten seconds."""

_WIDTH = 1000


def details(plan: Plan | None, rows: Sequence[Row], elements: int = ELEMENTS) -> list[dict[str, Any]]:
    """For each of `rows` its pictures (`drawn`), or `{"absent": reason}`.

    Rows of a plan are opened as their tests opened them. A row of an operator check has no golden file, for
    golden was computed; one of somebody's own test, or one read back from a file, has no files at all.
    """
    pictures: list[dict[str, Any]] = []
    left = elements
    for row in rows:
        try:
            picture, used = _look(plan, row, left)
        except (AccError, OSError, RuntimeError, ValueError, MemoryError) as error:
            picture, used = {"absent": printable(str(error) or type(error).__name__, _WIDTH)}, 0
        left -= used
        pictures.append(picture)
    return pictures


def _look(plan: Plan | None, row: Row, left: int) -> tuple[dict[str, Any], int]:
    if row.case:
        return {"absent": "golden was computed for the check and is in no file"}, 0
    if plan is None or row.number is None or row.number >= len(plan.pairs):
        return {"absent": "the tensors of this comparison are in no file of a dump that this run has open"}, 0
    from ...mapping.reconcile import open_pair

    pair = plan.pairs[row.number]
    if not (pair.golden.refs and pair.mine.refs):
        return {"absent": "the page was made from rows, without the dumps"}, 0
    comparisons = open_pair(pair).comparisons
    comparison = next((replica for replica in comparisons if replica.label == row.replica), comparisons[0])
    count = math.prod(int(size) for size in comparison.golden.shape)
    if count > left:
        limit = Reason("{} elements: no more than {} are read for all pictures of a page", count, ELEMENTS)
        return {"absent": limit}, 0
    picture = pictures_of(comparison.golden, comparison.mine)
    return ({**picture, "replica": comparison.label} if comparison.label else picture), count


# The pictures of one pair of tensors for a page, computed in one pass over blocks: bounded memory, any size.
#
# - errors: how many elements have |mine - golden| in each power of two, how many are equal, how many are NaN
#   or infinite on one side;
# - scatter: golden against mine, counted in a square grid over the finite range of both;
# - map: the largest error in each cell of a grid over the tensor, folded to rows and columns;
# - worst: the few elements with the largest errors, with both values.


BLOCK = 1 << 16
"""Elements read at once."""

GRID = 40
"""Cells of the scatter in each direction."""

MAP_ROWS, MAP_COLUMNS = 32, 64
"""At most so many cells of the map."""

WORST = 8
LOWEST, HIGHEST = -60, 60
"""Powers of two of the first and last bin; what is beyond falls into them."""

_WIDEST = 1 << 18
"""A row of more elements is folded, so that one row always fits a block of memory."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fold:
    """A tensor as a matrix: its first `split` dimensions are rows, the others columns."""

    rows: int
    columns: int
    split: int


def fold_of(shape: tuple[int, ...]) -> Fold:
    """The fold whose two sizes are most alike: tokens by hidden, heads and tokens by size of a head.

    A vector is one row, cut into rows of 4096 where it is long (`split` is then -1); so is what has rows of
    more than 2^18 elements.
    """
    count = math.prod(shape)
    splits = range(1, len(shape)) if len(shape) > 1 else range(1)

    def apart(split: int) -> float:
        rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
        return abs(math.log(max(rows, 1) / max(columns, 1)))

    split = min(splits, key=lambda axis: (apart(axis), -axis))
    rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
    if columns > _WIDEST or (rows == 1 and columns > 4096):
        return Fold(-(-count // 4096), 4096, -1)
    return Fold(rows, columns, split)


@dataclass
class _PictureSums:
    """The sums that grow from block to block."""

    bins: NDArray[np.int64]
    grid: NDArray[np.int64]
    cells: Floats
    equal: int = 0
    onesided: int = 0
    common: int = 0
    worst: list[tuple[float, int, Any, Any]] = field(default_factory=list)


def pictures_of(golden: Source, mine: Source) -> dict[str, Any]:
    """All four pictures of two sources of one shape, as JSON values.

    Two passes where there is a scatter: its range is that of the finite values. Complex tensors have
    errors, map and worst elements, but no scatter. Memory is a few blocks, whatever the size.
    """
    shape = tuple(int(size) for size in golden.shape)
    count, fold = math.prod(shape), fold_of(shape)
    if count == 0:
        return {"shape": list(shape), "empty": True}
    low, high = _range(golden, mine, count)
    sums = _summed(golden, mine, fold, low, high)
    return {
        "shape": list(shape),
        "count": count,
        "errors": {**_trimmed(sums.bins), "equal": sums.equal},
        "onesided": sums.onesided,
        "common": sums.common,
        "scatter": _scatter(low, high, sums.grid) if low < high else None,
        "map": {
            "split": fold.split,
            "rows": fold.rows,
            "columns": fold.columns,
            "cells": [[_cell(value) for value in row] for row in sums.cells.tolist()],
        },
        "worst": [
            [
                str(list(map(int, np.unravel_index(-place, shape)))),
                _value(trusted),
                _value(tested),
                _cell(error),
            ]
            for error, place, trusted, tested in sorted(sums.worst, key=lambda entry: (-entry[0], -entry[1]))
        ],
    }


def _summed(golden: Source, mine: Source, fold: Fold, low: float, high: float) -> _PictureSums:
    """One pass over both sources. Without a range from `low` to `high` there is no scatter."""
    count = math.prod(golden.shape)
    sums = _PictureSums(
        bins=np.zeros(HIGHEST - LOWEST + 1, np.int64),
        grid=np.zeros((GRID, GRID), np.int64),
        cells=np.full((max(1, min(fold.rows, MAP_ROWS)), max(1, min(fold.columns, MAP_COLUMNS))), -1.0),
    )
    per_block = max(1, BLOCK // fold.columns) * fold.columns
    for start in range(0, count, per_block):
        stop = min(start + per_block, count)
        trusted, tested = _numbers(golden.read(start, stop)), _numbers(mine.read(start, stop))
        # |mine - golden| of a block, infinite where only one side is a number; counted into the bins.
        with np.errstate(all="ignore"):
            errors: Floats = np.abs(tested - trusted).astype(np.float64)
            equal = (trusted == tested) | (np.isnan(trusted) & np.isnan(tested))
        apart = ~(np.isfinite(trusted) & np.isfinite(tested)) & ~equal
        errors[equal] = 0.0
        errors[apart] = np.inf
        sums.onesided += int(apart.sum())
        sums.common += int((equal & ~np.isfinite(trusted)).sum())
        sums.equal += int(equal.sum())
        sized = errors[~equal & ~apart]
        powers = np.frexp(sized)[1] - 1  # |x| is in [2^power, 2^(power + 1))
        places = np.clip(powers, LOWEST, HIGHEST) - LOWEST
        sums.bins += np.bincount(places, minlength=sums.bins.size)
        _into_map(errors, start, fold, sums.cells)
        _into_worst(errors, trusted, tested, start, sums)
        if low < high:
            finite = np.isfinite(trusted) & np.isfinite(tested)
            with np.errstate(over="ignore"):
                across = _cell_of(trusted[finite], low, high)
                up = _cell_of(tested[finite], low, high)
            sums.grid += np.bincount(up * GRID + across, minlength=GRID * GRID).reshape(GRID, GRID)
    return sums


def _numbers(block: torch.Tensor) -> NDArray[Any]:
    """A block as float64, or complex128."""
    import torch

    wide = block.to(torch.complex128) if block.is_complex() else block.to(torch.float64)
    return wide.numpy()


def _range(golden: Source, mine: Source, count: int) -> tuple[float, float]:
    """The finite extent of both sides together; an empty one for complex tensors."""
    low, high = math.inf, -math.inf
    if golden.dtype.is_complex or mine.dtype.is_complex:
        return low, high
    for source in (golden, mine):
        for start in range(0, count, BLOCK):
            block = _numbers(source.read(start, min(start + BLOCK, count)))
            finite = block[np.isfinite(block)]
            if finite.size:
                low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return low, high


def _cell_of(values: Floats, low: float, high: float) -> NDArray[np.int64]:
    share = (values / 2 - low / 2) / (high / 2 - low / 2)  # halves: the range itself may overflow
    return np.clip((share * GRID).astype(np.int64), 0, GRID - 1)


def _into_map(errors: Floats, start: int, fold: Fold, cells: Floats) -> None:
    """The largest error of each cell; `start` is the beginning of a row."""
    height, width = cells.shape
    rows = -(-errors.size // fold.columns)
    if errors.size < rows * fold.columns:  # the last row of a folded vector
        errors = np.concatenate([errors, np.full(rows * fold.columns - errors.size, -1.0)])
    edges = np.arange(width) * fold.columns // width
    across = np.maximum.reduceat(errors.reshape(rows, fold.columns), edges, axis=1)
    into = (start // fold.columns + np.arange(rows)) * height // fold.rows
    np.maximum.at(cells, into, across)


def _into_worst(
    errors: Floats, golden: NDArray[Any], mine: NDArray[Any], start: int, sums: _PictureSums
) -> None:
    count = min(WORST, errors.size)
    for place in np.argpartition(errors, errors.size - count)[errors.size - count :].tolist():
        if errors[place] > 0:
            entry = (float(errors[place]), -(start + place), golden[place].item(), mine[place].item())
            heapq.heappush(sums.worst, entry)
            if len(sums.worst) > WORST:
                heapq.heappop(sums.worst)


def _trimmed(bins: NDArray[np.int64]) -> dict[str, Any]:
    """The bins between the first and the last that are not empty, and the power of two of the first."""
    used = np.flatnonzero(bins)
    if not used.size:
        return {"lowest": 0, "bins": []}
    return {"lowest": LOWEST + int(used[0]), "bins": bins[used[0] : used[-1] + 1].tolist()}


def _scatter(low: float, high: float, grid: NDArray[np.int64]) -> dict[str, Any]:
    """The grid as `[cell of golden, cell of mine, count]` of the cells that are not empty."""
    up, across = np.nonzero(grid)
    cells = [[int(x), int(y), int(grid[y, x])] for y, x in zip(up, across)]
    return {"low": low, "high": high, "size": GRID, "cells": cells}


def _cell(value: float) -> float | str | None:
    """An error for JSON: nothing for a cell without elements, a word for an infinite one."""
    if value < 0:
        return None
    return "Infinity" if math.isinf(value) else float(f"{value:.4g}")


def _value(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)
