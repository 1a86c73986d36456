"""All of one row, as the details panel of a page shows it: plain JSON values, hostile text made harmless."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...judging.verdict import Check
from ..printable import printable
from ..row import Cause, Row, RowSide, Scalar

_EXACT = 2**53
"""Integers up to here survive JavaScript's numbers; larger ones travel as text."""


_FILES = 64
"""Files of shards that are listed, of each side."""
_PARENTS = 16


def row_details(row: Row, width: int) -> dict[str, Any]:
    """Every field of `row` that people read; texts cut to `width` characters, paths to four times that."""
    details: dict[str, Any] = {
        "sentence": printable(row.sentence, width),
        "reasons": [printable(reason, width) for reason in row.reasons if reason != row.sentence],
        "notes": [printable(note, width) for note in row.notes],
        "policy": printable(row.policy, width),
        "mapping": printable(row.mapping_reason, width),
        "golden": _side(row.golden, width),
        "mine": _side(row.mine, width),
        "metrics": _named({**row.metrics, **row.custom}, width),
        "counts": _named(row.counts, width),
        "case": _named(row.case, width),
        "checks": [_check(check, width) for check in row.checks],
    }
    if row.worst.index:
        cells = (row.worst.index, row.worst.golden, row.worst.mine)
        details["worst"] = [_scalar(cell, width) for cell in cells]
    if row.cause is not None:
        details["cause"] = _cause(row.cause, width)
    return details


def _side(side: RowSide, width: int) -> dict[str, Any]:
    details = _named({name: getattr(side, name) for name in ("node", "name", "op_type", "slot")}, width)
    details |= {name: printable(getattr(side, name), 2 * width) for name in ("dtype", "shape")}
    details |= {name: plain(getattr(side, name)) for name in ("max", "min", "mean")}
    files = [printable(path, 4 * width) for path in side.path.split(";")[:_FILES] if path]
    return {**details, "files": files}


def _check(check: Check, width: int) -> dict[str, Any]:
    return {
        "metric": printable(check.metric, width),
        "measured": plain(check.measured),
        "allowed": plain(check.allowed),
        "at_least": check.at_least,
        "reason": printable(check.reason, width),
        "passed": check.passed,
        "excess": plain(check.excess),
    }


def _cause(cause: Cause, width: int) -> dict[str, Any]:
    return {
        **{name: printable(getattr(cause, name), width) for name in ("text", "kind", "basis", "local")},
        "local_error": plain(cause.local_error),
        "amplification": plain(cause.amplification),
        "parents": list(cause.parents[:_PARENTS]),
    }


def _named(values: Mapping[str, Scalar], width: int) -> dict[str, Any]:
    return {
        printable(name, width): _scalar(value, width)
        for name, value in values.items()
        if value not in (None, "")
    }


def _scalar(value: Scalar, width: int) -> Any:
    return printable(value, width) if isinstance(value, str) else plain(value)


def plain(value: Scalar) -> Any:
    """A number that JSON and JavaScript keep; NaN, infinities and huge integers as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value
