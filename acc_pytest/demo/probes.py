"""The probes of a demo's ranks: one of each era, with a fixed time and process so that bytes repeat."""

from __future__ import annotations

from pathlib import Path

from ..atb_cpu import Probe
from ..atb_cpu.probe import EVERY, E3Probe, E4Probe, E4Settings, ProbeSettings
from .spec import DemoSpec

TIMESTAMP = "20250101_000000"
PID = 5001
"""Process id of rank 0; the other ranks follow."""


def probes_of(directory: Path, spec: DemoSpec) -> list[Probe]:
    """A probe a rank, which write below `directory`."""
    return [_probe(directory, spec, rank) for rank in range(spec.ranks)]


def _probe(directory: Path, spec: DemoSpec, rank: int) -> Probe:
    if spec.era == "atb_dump_data":
        newest = E4Settings(
            output=str(directory),
            task="statistics" if spec.statistics else "tensor",
            enabled=True,
            ranges=EVERY,
            child=not spec.statistics,
            level=0,
            named=spec.named,
            kernels=spec.kernels,
            any_path=True,
        )
        return E4Probe(newest, rank, PID + rank)
    settings = ProbeSettings(
        output=f"{directory}/",
        timestamp="" if spec.era == "ait_dump" else TIMESTAMP,
        era="E3" if spec.era == "msit_dump_ts" else "E2",
        values=not spec.description,
        statistics=spec.statistics,
        ranges=EVERY,
        child=True,
        named=spec.named,
        kernels=spec.kernels,
        any_path=True,
    )
    return E3Probe(settings, rank, PID + rank)
