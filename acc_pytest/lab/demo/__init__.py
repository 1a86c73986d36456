"""Tiny pairs of dumps in the real formats: `make_demo(directory, DemoSpec(...))`.

Used by `acc demo`, by README and by this repository's tests; needs neither an NPU nor data.
"""

from __future__ import annotations

from ..atb import Fault
from .make import HOMES, DemoPaths, DemoSpec, make_demo

__all__ = ["HOMES", "DemoPaths", "DemoSpec", "Fault", "make_demo"]
