"""Standards by name: from what the thresholds of a pair of dumps, or of an operator's output, come.

`vocabulary` says which of them options offer for pairs and which for operators.
"""

from __future__ import annotations

from ...errors import SettingsError
from ...vocabulary import STANDARDS as OF_OPERATORS
from .ascend import ASCEND
from .base import Adjustment, Second, Standard
from .default import DEFAULT
from .distribution import DISTRIBUTION
from .msit import MSIT
from .open_standard import OPEN
from .second_golden import TWO_GOLDEN
from .three_way import THREE_WAY
from .torch_table import TORCH

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
