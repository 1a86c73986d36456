"""The views of a run that the options ask for."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .diagnosis.repro.view import CaseOf
    from .reporting.view import View
    from .settings import Settings


def open_views(
    settings: Settings,
    *,
    csv: bool,
    columns: Mapping[str, str] | None = None,
    prefix: str = "ait_cmp_report",
    case_of: CaseOf | None = None,
) -> list[View]:
    """The views that `settings` ask for, files made later.

    `csv` says whether a CSV is wanted, `columns` and `prefix` which columns it has and what the name
    begins with that it gets without `--acc-csv`. `case_of` gives the case of a single-operator check.
    """
    from .gate.opening import views_of
    from .reporting.annotations import Annotations, on_github
    from .reporting.markdown import MarkdownSummary, step_summary
    from .reporting.rows_file import RowsFile

    views: list[View] = []
    if csv:
        from .reporting.csv_report import CsvReport, new_report

        file = functools.partial(new_report, Path(os.path.abspath(settings.output)), settings.csv, prefix)
        views.append(CsvReport(file, settings.custom_metrics if columns is None else (), columns))
    views += views_of(settings)
    if settings.rows:
        views.append(RowsFile(settings.rows, settings.plain))
    if settings.html:
        from .reporting.html.view import HtmlReport

        views.append(HtmlReport(settings.html))
    if settings.repro:
        from .diagnosis.repro.view import ReproBundles

        views.append(ReproBundles(settings.repro, settings.standard, case_of))
    if summary := settings.summary or step_summary(os.environ):
        views.append(MarkdownSummary(summary, append=not settings.summary))
    if on_github(os.environ):
        views.append(Annotations())
    return views
