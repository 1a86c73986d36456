"""The view behind `--acc-html`: takes rows as they arrive and writes the page at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import AccError
from ...outputs import Staged, target_of
from ..diagnosis import Root
from ..file_view import FileView
from ..printable import printable
from ..row import Row
from ..run_verdict import run_verdict
from ..view import Result, Run
from .columns import Place, place_of
from .data import BUDGETS, Budget, PageData
from .graph import ModelGraph
from .head import head
from .page import page
from .static import static

if TYPE_CHECKING:
    from ...mapping.pair import Plan

LIMIT = 4_800_000
"""Bytes of a page: where everything does not fit, something is left out, and the page says what."""


class HtmlReport(FileView[Staged]):
    """One page at `path`, replaced when it is whole. Raises `AccError` where it cannot be written."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._data = PageData()
        self._run: Run | None = None
        self._graph: ModelGraph | None = None
        self._complete = True

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

    def end(self, complete: bool) -> None:
        """Whether every test has run, which the page says."""
        self._complete = complete

    def finish(self, result: Result) -> None:
        """Look into the pairs that matter, and make the page; nothing where the run did not begin."""
        if self._run is None or self._file is None:
            return
        roots = [] if result.diagnosis is None else _rows_of(result.diagnosis.roots)
        order = self._data.order()
        chosen = self._data.notable_rows(roots, BUDGETS[0].pictures)
        pictures = dict(zip(map(place_of, chosen), details(self._run.plan, chosen)))
        for budget in BUDGETS:
            text = self._page(self._run, result, budget, roots, order, pictures)
            if len(text) <= LIMIT:
                break
        self._file.write(text)

    def _page(
        self,
        run: Run,
        result: Result,
        budget: Budget,
        roots: list[Row],
        order: list[int],
        pictures: dict[Place, dict[str, Any]],
    ) -> bytes:
        packed = self._data.packed(budget, roots, order, pictures)
        if self._graph is not None:
            packed.body["graph"] = self._graph.packed(packed, budget.width)
        verdict = run_verdict(run, result, self._complete, self._data.failures)
        summary = head(run, result, packed.places, verdict)
        name = run.plan.name if run.plan is not None else run.title
        return page(f"{name} - acc", summary, packed.body, static(summary, result))


def _rows_of(roots: Sequence[Root]) -> list[Row]:
    """The rows of roots: of each the first, then those of other steps and ranks."""
    return [root.row for root in roots] + [row for root in roots for row in root.also]


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
    from .pictures import pictures_of

    pair = plan.pairs[row.number]
    if not (pair.golden.refs and pair.mine.refs):
        return {"absent": "the page was made from rows, without the dumps"}, 0
    opened = open_pair(pair)
    label = row_label(row)
    comparison = next(
        (candidate for candidate in opened.comparisons if candidate.label == label), opened.comparisons[0]
    )
    count = math.prod(int(size) for size in comparison.golden.shape)
    if count > left:
        return {"absent": f"{count} elements: no more than {ELEMENTS} are read for all pictures of a page"}, 0
    picture = pictures_of(comparison.golden, comparison.mine)
    return ({**picture, "replica": comparison.label} if comparison.label else picture), count


def row_label(row: Row) -> str:
    """The label of the replica that the row is of (`rank 1`): the comparison says so in a note."""
    for note in row.notes:
        label, separator, _ = note.partition(", the worst of ")
        if separator:
            return label
    return ""
