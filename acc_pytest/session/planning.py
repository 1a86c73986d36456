"""Dumps opened and mapped, from settings alone. Done once a run, by the controller."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import AccError, SettingsError
from ..garbage import leave_what_stays, without_collector
from ..imports import import_numpy
from ..tensors.stores.address import text_of_places
from ..tensors.stores.place import is_there
from ..vocabulary import NO_NOISE

if TYPE_CHECKING:
    from ..dumps.base import Dump
    from ..mapping.pair import Plan
    from ..noise.counterparts import NoisePlan
    from ..settings import Settings


def make_plan(settings: Settings) -> Plan:
    """Open both dumps and map them. Raises `AccError`."""
    return open_and_plan(settings)[2]


def open_and_plan(settings: Settings) -> tuple[Dump, Dump, Plan]:
    """Both dumps, and how they are mapped. Raises `AccError`."""
    with without_collector():
        import_numpy()
        from ..mapping.planner import plan
        from ..tensors.header_rows import keep_headers

        leave_what_stays()
        golden, mine = open_dumps(settings)
        pairs = plan(
            golden,
            mine,
            level=settings.level,
            op_mapping_file=settings.op_mapping_file,
            tables=settings.mapping,
        )
    keep_headers((pairs.golden_root, pairs.mine_root))
    return golden, mine, pairs


def open_dumps(settings: Settings) -> tuple[Dump, Dump]:
    """Golden and mine, mine read in the light of golden (for the `auto` token policy).

    A manual dump names the files of mine itself and may stand for both. Raises `AccError`.
    """
    from ..dumps import open_dump
    from ..dumps.ranks import keep_rank
    from ..dumps.roots import Cache

    if settings.engine == "ray":
        from ..engine.cluster_hosts import reach_nodes
        from ..engine.ray_cluster import joined

        reach_nodes(lambda: joined(settings.ray_address))
    cache = Cache(settings.cache_dir, settings.cache_size)
    golden = open_dump(settings.golden, token_policy=settings.token_policy, cache=cache)
    if not settings.mine:
        if golden.kind != "manual":
            raise AccError(
                "--acc-golden needs --acc-mine too: only a dump written by dump_data names both sides, "
                f"and {text_of_places(settings.golden)} is not one"
            )
        mine = golden
    else:
        mine = open_dump(settings.mine, token_policy=settings.token_policy, golden=golden, cache=cache)
    if settings.rank is not None:
        keep_rank(golden, mine, settings.rank)
    return golden, mine


def make_noise_plan(settings: Settings, plan: Plan) -> NoisePlan | None:
    """The noise of golden's tensors in `plan`: by the noise run that was given, else by the
    profile beside golden; `None` without either.

    Raises `SettingsError` where the standard needs one, and for a run or profile that is none of golden.
    """
    if not settings.noise or settings.noise == NO_NOISE:
        profiled = _profiled(plan) if not settings.noise else None
        if profiled is None and settings.standard == "three-way":
            raise SettingsError(
                "--acc-standard three-way needs --acc-noise DUMP, a second run of golden in lower precision "
                "or with another batch or device, or a profile of such runs (acc noise-profile makes one)"
            )
        return profiled
    from ..noise.run import noise_plan

    with without_collector():
        golden, noise = open_dumps(replace(settings, mine=settings.noise))
        return noise_plan(golden, noise, plan.pairs, tables=settings.mapping)


def _profiled(plan: Plan) -> NoisePlan | None:
    """The noise in the profile beside golden, if any. Raises `AccError` for one that is of no use."""
    from ..noise.profile import profile_path

    path = profile_path(plan.golden_root)
    if not is_there(path):
        return None
    from ..noise.profile_file import read_profile
    from ..noise.profile_plan import profile_plan

    with without_collector():
        return profile_plan(read_profile(path), plan.pairs)
