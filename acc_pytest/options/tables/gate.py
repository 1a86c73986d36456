"""What makes a comparison fail, apart from its thresholds: fields of `Settings`."""

from __future__ import annotations

from ...vocabulary import BASELINE_UPDATES, INHERITED_OUTCOMES, UNMAPPED_OUTCOMES
from ..option import Option

GATE = (
    Option(
        "from-rows",
        "from_rows",
        "judge again, without any dump, what pytest --acc-rows wrote; repeatable, for the shards of one run",
        kind="list",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "min-coverage",
        "min_coverage",
        "fail the run when a smaller share of nodes than this (0 to 1) was mapped",
        kind="number",
        metavar="SHARE",
    ),
    Option(
        "inherited",
        "inherited",
        "pairs that fail because what they compute from does: expected failures that name their root "
        "(default), failures, or warnings",
        choices=INHERITED_OUTCOMES,
    ),
    Option(
        "unmapped",
        "unmapped",
        "nodes without a partner: skipped tests (default), failing ones, or none (the CSV has them anyway)",
        choices=UNMAPPED_OUTCOMES,
    ),
)

GATES = (
    Option(
        "baseline",
        "baseline",
        "fail what became significantly worse than the errors accepted in this file; repeatable, for shards",
        kind="list",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "update-baseline",
        "update_baseline",
        "write the baseline at the end: what is new (the value where it stands alone), or all",
        choices=BASELINE_UPDATES,
        alone="new",
    ),
    Option(
        "lock",
        "lock",
        "fail the run when a threshold allows more than it did when this file was written",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "update-lock",
        "update_lock",
        "write the thresholds of this run into the lock, and why they may change",
        metavar="REASON",
    ),
)
"""What holds for single-operator checks and people's own comparisons too."""
