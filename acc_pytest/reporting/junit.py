"""A row as the properties of its JUnit test case (`<property name= value=>`)."""

from __future__ import annotations

from .printable import escaped
from .row import Row, Scalar


def properties(row: Row, prefix: str = "") -> list[tuple[str, Scalar]]:
    """Verdict, policy, nodes, every metric, every threshold and its reason, in reading order.

    Text is escaped, for XML has no place for much of what names may hold.
    `prefix` goes before each name; a test that compares several pairs of tensors needs one for each.
    """
    named: list[tuple[str, Scalar]] = [
        ("verdict", row.verdict),
        ("policy", row.policy),
        ("mapping_reason", row.mapping_reason),
        ("golden_node", row.golden.node),
        ("golden_slot", row.golden.slot),
        ("mine_node", row.mine.node),
        ("mine_name", row.mine.name),
        ("mine_slot", row.mine.slot),
    ]
    for group in (row.case, row.metrics, row.counts, row.custom):
        named += [(name, value) for name, value in group.items() if value is not None]
    for check in row.checks:
        named.append((f"threshold.{check.metric}", check.bound))
        named.append((f"threshold.{check.metric}.reason", check.reason))
    if row.cause is not None:
        named += [
            ("cause", row.cause.kind),
            ("root", row.cause.root_name),
            ("inherits_from", row.cause.inherits_from),
            ("local", row.cause.local),
            ("why", row.cause.text),
        ]
        named += [("local_error", row.cause.local_error)] if row.cause.local_error is not None else []
    if row.reasons:
        named.append(("fail_reason", "; ".join(row.reasons)))
    if row.notes:
        named.append(("notes", "; ".join(row.notes)))
    return [
        (prefix + name, escaped(value) if isinstance(value, str) else value)
        for name, value in named
        if value != ""
    ]
