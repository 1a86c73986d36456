"""The CPU stand-in of the probe that is preloaded into ATB's process: the same files from the same variables.

`probe_from_environment` gives what the `ATB_*` variables ask for; `E3Probe(ProbeSettings(...), device, pid)`
and `E4Probe(E4Settings(...), device, pid)` are built by hand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from .e3 import E3Probe
from .e4 import E4Probe
from .settings import EVERY, NONE, E4Settings, Era, ProbeSettings, is_e4_config, trusted

__all__ = ["EVERY", "NONE", "E3Probe", "E4Probe", "E4Settings", "ProbeSettings", "probe_from_environment"]


def probe_from_environment(
    rank: int,
    *,
    device: int | None = None,
    pid: int | None = None,
    environ: Mapping[str, str] = os.environ,
    era: Era = "E3",
    named: bool = False,
) -> E3Probe | E4Probe:
    """The probe that the `ATB_*` variables ask for in the process of `rank`.

    That is the newest one when `ATB_DUMP_CONFIG` names a file with its typed JSON, else one of `era`.
    Ranks share this process: rank r runs on device r and counts as process `getpid() + r` unless told
    otherwise. `named` stands for an ATB of 2026, which gives tensors names.
    """
    device = rank if device is None else device
    pid = os.getpid() + rank if pid is None else pid
    config = environ.get("ATB_DUMP_CONFIG", "")
    if config and trusted(config):
        with open(config, encoding="utf-8", errors="replace") as file:
            newest = is_e4_config(file.read())
        if newest:
            output = environ.get("ATB_OUTPUT_DIR") or "."
            return E4Probe(E4Settings(output=output, named=named), device, pid, config=config)
    settings = ProbeSettings.from_environment(environ, era=era, named=named)
    return E3Probe(settings, device, pid)
