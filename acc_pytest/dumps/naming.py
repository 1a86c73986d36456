"""Names of dumps that are the same from run to run, fit for test ids."""

from __future__ import annotations

import re

from .ranks import TIMESTAMP

_UNFIT = re.compile(r"[^\w+\-.]+", re.ASCII)


def stable_name(directory: str, fallback: str) -> str:
    """`msit_dump_20261120_213122` as `msit_dump`; characters that `-k` cannot select become `_`."""
    return _UNFIT.sub("_", TIMESTAMP.sub("", directory)).strip("_.") or fallback
