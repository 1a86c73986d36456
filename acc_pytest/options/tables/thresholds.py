"""From what the thresholds of a comparison come: fields of `Settings`."""

from __future__ import annotations

from ...vocabulary import COMPARISON_STANDARDS
from ..option import Option

THRESHOLDS = (
    Option(
        "standard",
        "standard",
        "by which standard pairs are judged: default (derived), ascend, torch (assert_close), or three-way "
        "(a few times the error of --acc-noise, and the default with it)",
        choices=COMPARISON_STANDARDS,
    ),
    Option(
        "noise",
        "noise",
        "a noise run: golden again in lower precision, or with another batch or device; its own error "
        "against golden sets the bar of three-way, and is reported under every standard",
        metavar="PATH",
        is_path=True,
    ),
)
