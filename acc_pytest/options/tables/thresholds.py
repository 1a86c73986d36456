"""From what the thresholds of a comparison come: fields of `Settings`."""

from __future__ import annotations

from ...vocabulary import COMPARISON_STANDARDS
from ..option import Option

THRESHOLDS = (
    Option(
        "standard",
        "standard",
        "where the bounds come from (default: derived from dtype and depth; with --acc-noise three-way)",
        choices=COMPARISON_STANDARDS,
    ),
    Option(
        "noise",
        "noise",
        "a second run of golden in lower precision; its error sets the bounds of three-way",
        metavar="PATH",
        is_path=True,
    ),
)
