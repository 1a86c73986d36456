"""What was measured in each pair of a run, as lines of JSON for whoever studies bounds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from acc_pytest.reporting.row import Row


def sampled(rows: Iterable[Row], run: Mapping[str, object]) -> Iterator[str]:
    """A line for each row with checks: what is said of the run, and the pair with its numbers."""
    for row in rows:
        if row.checks:
            yield json.dumps({**run, **_pair(row)}, separators=(",", ":"))


def _pair(row: Row) -> dict[str, object]:
    """The pair; a check is what was measured, what is allowed, and whether it is the least allowed;
    of golden, the root mean square and the largest absolute value."""
    return {
        "step": row.step,
        "pair": row.name,
        "slot": row.mine.slot,
        "fed": row.fed,
        "op_type": row.golden.op_type,
        "level": row.level,
        "shape": row.golden.shape,
        "dtypes": [row.golden.dtype, row.mine.dtype],
        "verdict": row.verdict,
        "cause": row.cause.kind if row.cause else "",
        "checks": {one.metric: [one.measured, one.allowed, one.at_least] for one in row.checks},
        "metrics": dict(row.metrics),
        "golden": [row.statistics.get(name) for name in ("golden_rms", "golden_max_abs")],
        "depth": row.context.get("depth"),
    }
