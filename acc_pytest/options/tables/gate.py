"""What makes a comparison fail, apart from its thresholds: fields of `Settings`."""

from __future__ import annotations

from ...vocabulary import BASELINE_UPDATES, INHERITED_OUTCOMES, UNMAPPED_OUTCOMES
from ..option import Option

GATE = (
    Option(
        "min-coverage",
        "min_coverage",
        "fail the run when less of the nodes than this was mapped (0 to 1, default: 0.25)",
        kind="number",
        metavar="SHARE",
    ),
    Option(
        "inherited",
        "inherited",
        "a pair that fails because its inputs do is an expected failure (default), a failure, a warning",
        choices=INHERITED_OUTCOMES,
    ),
    Option(
        "unmapped",
        "unmapped",
        "a node without a partner is a skipped test (default), a failing one, or none",
        choices=UNMAPPED_OUTCOMES,
    ),
)

GATES = (
    Option(
        "baseline",
        "baseline",
        "fail what became worse than the errors recorded in this file. Repeatable, for shards",
        kind="list",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "update-baseline",
        "update_baseline",
        "record errors in the baseline at the end: of what is new (default), or of all",
        choices=BASELINE_UPDATES,
        const="new",
    ),
    Option(
        "lock",
        "lock",
        "fail the run when a threshold allows more than this file says",
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
