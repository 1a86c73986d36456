"""Where in the program a tensor that fails was made, where its dump says so."""

from __future__ import annotations

from dataclasses import replace

from ..dumps.msprobe_stacks import source_line_of
from ..mapping.pair import Pair
from ..mapping.weights import POLICY
from ..reporting.row import Row


def with_source_line(row: Row, pair: Pair) -> Row:
    """The row of a pair that fails with the line of the program of mine that called its operation."""
    if row.verdict != "fail" or pair.policy == POLICY:
        return row
    line = source_line_of(pair.mine.refs[0].path, pair.mine.refs[0].member)
    return replace(row, notes=(*row.notes, f"mine called this at {line}")) if line else row
