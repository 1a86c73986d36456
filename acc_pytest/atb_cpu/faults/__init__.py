"""Named mistakes for the CPU stand-in: one fault, in one operator of one layer, at one step or all.

Detection is measured against them: a comparison must be red, and its first failing operator the faulty one.
"""

from __future__ import annotations

from .fault import Fault, FaultyOperator
from .inject import FAULTS, fitting, inject

__all__ = ["FAULTS", "Fault", "FaultyOperator", "fitting", "inject"]
