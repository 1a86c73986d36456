"""What takes seconds and is made once: a page of twenty thousand rows, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from acc_pytest.reporting.html.view import HtmlReport
from acc_pytest.reporting.summary import Tally
from acc_pytest.reporting.view import Result, Run
from tests.shared_directory import made_once

from .chromium import Page, browser
from .made import many_rows


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `many_rows(20_000)`, a fifth of what benchmarks/report.py writes and measures."""
    return made_once(tmp_path_factory, "large", _large_page)


def _large_page(directory: Path) -> Path:
    path = directory / "large.html"
    report, tally = HtmlReport(str(path)), Tally()
    report.begin(Run(command=("pytest", "--acc-golden=g", "--acc-mine=m")))
    for row in many_rows(20_000):
        report.add(row)
        tally.add(row)
    report.finish(Result(1, tally, None, "0123abcd"))
    report.land()
    return path


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One browser for all tests that need one."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
