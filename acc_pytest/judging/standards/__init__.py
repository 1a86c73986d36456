"""Standards by name: from what the thresholds of a pair of dumped tensors come.

The tables of single operators (`atb_classes.py`, `atb_bounds.py`, `open_bounds.py`) are those that the
operator checks judge by as well.
"""

from __future__ import annotations

from .ascend import ASCEND
from .base import Asked, ElementTolerance, Standard
from .default import DEFAULT
from .three_way import THREE_WAY
from .torch_table import TORCH

STANDARDS = {standard.name: standard for standard in (DEFAULT, ASCEND, TORCH, THREE_WAY)}

__all__ = ["DEFAULT", "STANDARDS", "THREE_WAY", "Asked", "ElementTolerance", "Standard"]
