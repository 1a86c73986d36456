"""Tiny pairs of dumps in the real formats: `make_demo(directory, DemoSpec(...))`.

Used by `acc demo DIR`, by README and by this repository's tests; needs neither an NPU nor data.
"""

from __future__ import annotations

from pathlib import Path

from ..atb_cpu.faults.fault import Fault
from .spec import DemoPaths, DemoSpec


def make_demo(directory: Path, spec: DemoSpec) -> DemoPaths:
    """Write a golden and a mine below `directory`; see `make.make_demo` (torch is imported only here)."""
    from .make import make_demo as make

    return make(directory, spec)


__all__ = ["DemoPaths", "DemoSpec", "Fault", "make_demo"]
