"""Metrics and reports, of comparisons and of single-operator checks alike: fields of `Settings`."""

from __future__ import annotations

from ...vocabulary import JUNIT_PROPERTIES
from ..option import Option

REPORTS = (
    Option(
        "metric",
        "metrics",
        "your own metric (golden, mine) -> (number, message); repeatable",
        kind="list",
        metavar="FILE.py:FUNCTION",
        is_path=True,
    ),
    Option("output", "output", "directory for the CSV report (default: .)", metavar="DIR", is_path=True),
    Option(
        "csv",
        "csv",
        "name of the CSV report, below --acc-output unless absolute (default: ait_cmp_report_TIMESTAMP.csv)",
        metavar="FILE",
    ),
    Option(
        "rows",
        "rows",
        "write every comparison as a line of JSON, from which --acc-from-rows judges again without data",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "html",
        "html",
        "write the run as one self-contained HTML page: roots, charts, a table of every comparison",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "junit-properties",
        "junit_properties",
        "what --junitxml says of a test beside its outcome: all (default), or none for strict readers",
        choices=JUNIT_PROPERTIES,
    ),
    Option(
        "repro",
        "repro",
        "write a folder for each root (or failing operator of --acc-opcheck) whose test fails on its own",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "summary",
        "summary",
        "write the run's summary as Markdown (on GitHub Actions without it: to the summary of the step)",
        metavar="FILE",
        is_path=True,
    ),
)
