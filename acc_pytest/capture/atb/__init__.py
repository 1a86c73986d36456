"""The launcher of ATB programs: run a command so that the probe inside it writes a dump.

options -> prepare (probe, environment, directory) -> run (child, post-processing, written files)
"""

from __future__ import annotations

from .launch import Finished, Launch, prepare
from .options import LaunchOptions, read_options

__all__ = ["Finished", "Launch", "LaunchOptions", "prepare", "read_options"]
