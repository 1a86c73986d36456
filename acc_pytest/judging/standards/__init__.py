"""Standards by name: from what the thresholds of a pair of dumps, or of an operator's output, come.

`vocabulary` says which of them options offer for pairs and which for operators.
"""

from __future__ import annotations

from ...base.vocabulary import STANDARDS as OF_OPERATORS
from ...errors import SettingsError
from .ascend import ASCEND, DISTRIBUTION, TWO_GOLDEN
from .base import DEFAULT, MSIT, OPEN, TORCH, Adjustment, Second, Standard
from .three_way import THREE_WAY

_ALL = (DEFAULT, ASCEND, TORCH, THREE_WAY, TWO_GOLDEN, MSIT, OPEN, DISTRIBUTION)
STANDARDS = {standard.name: standard for standard in _ALL}

__all__ = ["ASCEND", "DEFAULT", "STANDARDS", "THREE_WAY", "Adjustment", "Second", "Standard", "of_operators"]


def of_operators(name: str) -> Standard:
    """The standard for single operators called `name`. Raises `SettingsError` that lists all of them."""
    if name not in OF_OPERATORS:
        raise SettingsError(
            f"--acc-opcheck-standard {name}: no such standard; choose one of {', '.join(OF_OPERATORS)}"
        )
    return STANDARDS[name]
