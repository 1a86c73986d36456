"""What makes a comparison fail, apart from its thresholds: fields of `Settings`."""

from __future__ import annotations

from ...vocabulary import BASELINE_UPDATES, INHERITED_OUTCOMES, UNMAPPED_OUTCOMES
from ..option import Option

GATE = (
    Option(
        "min-coverage",
        "min_coverage",
        "fail the run when a smaller share of the nodes is mapped (0 to 1, default: 0.25)",
        kind="number",
        metavar="SHARE",
    ),
    Option(
        "inherited",
        "inherited",
        "make inherited failures expected failures (default), failures, or passing tests with a warning",
        choices=INHERITED_OUTCOMES,
    ),
    Option(
        "unmapped",
        "unmapped",
        "make nodes without a partner skipped tests (default), failing tests, or no tests",
        choices=UNMAPPED_OUTCOMES,
    ),
)

GATES = (
    Option(
        "baseline",
        "baseline",
        "fail each pair that got worse than its error in this file. Repeatable, for shards",
        kind="list",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "update-baseline",
        "update_baseline",
        "write errors into the baseline at the end: those of new pairs (default), or all",
        choices=BASELINE_UPDATES,
        const="new",
    ),
    Option(
        "lock",
        "lock",
        "fail the run when a threshold allows more than it does in this file",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "update-lock",
        "update_lock",
        "write the thresholds of this run into the lock, with the reason why they change",
        metavar="REASON",
    ),
)
"""What holds for single-operator checks and people's own comparisons too."""
