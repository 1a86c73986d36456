"""One row whole, as the details panel of a page shows it: plain JSON values, hostile text made harmless."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..printable import printable
from ..row import Row, RowSide, Scalar

_EXACT = 2**53
"""Integers up to here survive JavaScript's numbers; larger ones travel as text."""


def whole(row: Row, width: int) -> dict[str, Any]:
    """Every field of `row` that people read; texts cut to `width` characters, paths to four times that."""

    def text(value: str) -> str:
        return printable(value, width)

    def scalar(value: Scalar) -> Any:
        return text(value) if isinstance(value, str) else plain(value)

    def named(values: Mapping[str, Scalar]) -> dict[str, Any]:
        return {text(name): scalar(value) for name, value in values.items() if value not in (None, "")}

    def side(one: RowSide) -> dict[str, Any]:
        said = named({name: getattr(one, name) for name in ("node", "name", "op_type", "slot")})
        said |= {name: printable(getattr(one, name), 2 * width) for name in ("dtype", "shape")}
        said |= {name: plain(getattr(one, name)) for name in ("max", "min", "mean")}
        files = [printable(path, 4 * width) for path in one.path.split(";")[:_FILES] if path]
        return {**said, "files": files}

    made: dict[str, Any] = {
        "sentence": text(row.sentence),
        "reasons": [text(reason) for reason in row.reasons if reason != row.sentence],
        "notes": [text(note) for note in row.notes],
        "policy": text(row.policy),
        "mapping": text(row.mapping_reason),
        "golden": side(row.golden),
        "mine": side(row.mine),
        "metrics": named({**row.metrics, **row.custom}),
        "counts": named(row.counts),
        "case": named(row.case),
        "checks": [
            {
                "metric": text(check.metric),
                "measured": plain(check.measured),
                "allowed": plain(check.allowed),
                "at_least": check.at_least,
                "reason": text(check.reason),
                "passed": check.passed,
                "excess": plain(check.excess),
            }
            for check in row.checks
        ],
    }
    if row.worst.index:
        made["worst"] = [text(row.worst.index), scalar(row.worst.golden), scalar(row.worst.mine)]
    if row.cause is not None:
        cause = row.cause
        made["cause"] = {
            "text": text(cause.text),
            "kind": text(cause.kind),
            "basis": text(cause.basis),
            "local": text(cause.local),
            "local_error": plain(cause.local_error),
            "amplification": plain(cause.amplification),
            "parents": list(cause.parents[:_PARENTS]),
        }
    return made


_FILES = 64
"""Files of shards that are listed, of each side."""

_PARENTS = 16


def plain(value: Scalar) -> Any:
    """A number that JSON and JavaScript keep; NaN, infinities and huge integers as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value
