"""Dumps opened and mapped, from settings alone. Done once a run, by the controller."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import AccError, SettingsError

if TYPE_CHECKING:
    from ..dumps.base import Dump
    from ..mapping.noise_run import NoisePlan
    from ..mapping.pair import Plan
    from ..settings import Settings


def make_plan(settings: Settings) -> Plan:
    """Open both dumps and map them. Raises `AccError`."""
    from ..mapping.planner import plan

    with without_collector():
        return plan(
            *open_dumps(settings),
            level=settings.level,
            op_mapping_file=settings.op_mapping_file,
            tables=settings.mapping,
        )


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Dumps and plans are a million small objects that all stay: looking for garbage doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def open_dumps(settings: Settings) -> tuple[Dump, Dump]:
    """Golden and mine, mine read in the light of golden (for the `auto` token policy).

    A manual dump names the files of mine itself and may stand for both. Raises `AccError`.
    """
    from ..dumps import open_dump
    from ..dumps.ranks import keep_rank

    golden = open_dump(settings.golden, token_policy=settings.token_policy)
    if not settings.mine:
        if golden.kind != "manual":
            raise AccError(
                "--acc-golden needs --acc-mine too: only a dump written by dump_data names both sides, "
                f"and {settings.golden} is not one"
            )
        mine = golden
    else:
        mine = open_dump(settings.mine, token_policy=settings.token_policy, other=golden)
    if settings.rank is not None:
        keep_rank(golden, mine, settings.rank)
    return golden, mine


def make_noise_plan(settings: Settings, plan: Plan) -> NoisePlan | None:
    """What the noise run has of golden's tensors in `plan`; `None` where no run was given.

    Raises `SettingsError` where the standard needs one, and for a run that is none of golden.
    """
    if not settings.noise:
        if settings.standard == "three-way":
            raise SettingsError(
                "--acc-standard three-way needs --acc-noise DUMP, a second run of golden in lower precision "
                "or with another batch or device"
            )
        return None
    from ..mapping.noise_run import noise_plan

    with without_collector():
        golden, noise = open_dumps(replace(settings, mine=settings.noise))
        return noise_plan(golden, noise, plan.pairs, tables=settings.mapping)
