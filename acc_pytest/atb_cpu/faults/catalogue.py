"""The faults by name."""

from __future__ import annotations

from . import attention, linear, other
from .fault import FaultKind

FAULTS: dict[str, FaultKind] = {kind.name: kind for kind in (*other.KINDS, *attention.KINDS, *linear.KINDS)}
"""Every fault by its name, which is what users type."""
