"""Standards by name: the rules by which an output of a single operator passes."""

from __future__ import annotations

from ...errors import SettingsError
from .ascend import ASCEND
from .base import About, Judged, Second, Standard
from .distribution import DISTRIBUTION
from .msit import MSIT
from .open_source import OPEN
from .three_way import THREE_WAY
from .two_golden import TWO_GOLDEN

_ALL = (ASCEND, TWO_GOLDEN, MSIT, OPEN, THREE_WAY, DISTRIBUTION)
STANDARDS = {standard.name: standard for standard in _ALL}

__all__ = ["STANDARDS", "About", "Judged", "Second", "Standard", "standard_named"]


def standard_named(name: str) -> Standard:
    """The standard called `name`. Raises `SettingsError` that lists all of them."""
    if name not in STANDARDS:
        raise SettingsError(
            f"--acc-opcheck-standard {name}: no such standard; choose one of {', '.join(STANDARDS)}"
        )
    return STANDARDS[name]
