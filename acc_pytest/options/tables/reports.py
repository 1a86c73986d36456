"""Metrics and reports, of comparisons and of single-operator checks alike: fields of `Settings`."""

from __future__ import annotations

from ...vocabulary import JUNIT_PROPERTIES
from ..option import Option

REPORTS = (
    Option(
        "metric",
        "metrics",
        "your own metric, (golden, mine) -> (number, message). Repeatable",
        kind="list",
        metavar="FILE.py:FUNCTION",
        is_path=True,
    ),
    Option("output", "output", "directory of the CSV report (default: .)", metavar="DIR", is_path=True),
    Option(
        "csv",
        "csv",
        "name of the CSV report, below --acc-output unless absolute (default: ait_cmp_report_TIMESTAMP.csv)",
        metavar="FILE",
    ),
    Option(
        "rows",
        "rows",
        "write every comparison as a line of JSON, for --acc-from-rows and acc report",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "html",
        "html",
        "write the run as one HTML page: roots, charts, every comparison",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "junit-properties",
        "junit_properties",
        "whether test cases in --junitxml have the numbers as properties (default: all)",
        choices=JUNIT_PROPERTIES,
    ),
    Option(
        "repro",
        "repro",
        "write a folder for each root, or failing operator, with a test that fails on its own",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "summary",
        "summary",
        "write the summary as Markdown (default on GitHub Actions: the summary of the step)",
        metavar="FILE",
        is_path=True,
    ),
)
