"""The view behind `--acc-html`: takes rows as they arrive and writes the page at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...outputs import Staged, target_of
from ..diagnosis import Root
from ..file_view import FileView
from ..row import Row
from ..run_verdict import run_verdict
from ..view import Result, Run
from .columns import Place, place_of
from .data import BUDGETS, Budget, PageData
from .details import details
from .graph import ModelGraph
from .head import head
from .page import page
from .static import static

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
        chosen = self._data.most_wanted(roots, BUDGETS[0].pictures)
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
        verdict = run_verdict(run, result, self._complete, self._data.own_failures)
        said = head(run, result, packed.places, verdict)
        name = run.plan.name if run.plan is not None else run.title
        return page(f"{name} - acc", said, packed.body, static(said, result))


def _rows_of(roots: Sequence[Root]) -> list[Row]:
    """The rows of roots: of each the first, then those of other steps and ranks."""
    return [root.row for root in roots] + [row for root in roots for row in root.also]
