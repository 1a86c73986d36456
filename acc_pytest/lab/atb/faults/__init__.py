"""Named mistakes for the CPU stand-in: one fault, in one operator of one layer, at one step or all.

Detection is measured against them: a comparison must be red, and its first failing operator the faulty one.
"""

from __future__ import annotations

from .inject import FAULTS, fitting, inject
from .kinds import Fault, FaultyOperator

__all__ = ["FAULTS", "Fault", "FaultyOperator", "fitting", "inject"]
