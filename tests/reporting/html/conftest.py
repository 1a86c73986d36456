"""A page of a hundred thousand rows, made once: it takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.summary import Tally
from acc_pytest.reporting.view import Result, Run

from .made import many_rows


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `many_rows(100_000)`."""
    path = tmp_path_factory.mktemp("large") / "large.html"
    report, tally = HtmlReport(str(path)), Tally()
    report.begin(Run(command=("pytest", "--acc-golden=g", "--acc-mine=m")))
    for row in many_rows(100_000):
        report.add(row)
        tally.add(row)
    report.finish(Result(1, tally, None, "0123abcd"))
    report.land()
    return path
