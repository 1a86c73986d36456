"""The grid of all runs, and a sample of it that has every fault and every network."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from acc_pytest.errors import SettingsError
from acc_pytest.lab.atb import FAULTS, Fault, NoProbe, Runtime
from acc_pytest.lab.atb.graph import Execution

from .networks import DECODE_STEPS, INT8, NETWORKS, Goldens, Network, Setting, mine

FLOAT_DTYPES = ("float16", "bfloat16")
RANKS = (1, 2)
LAYERS = 2
SEEDS = (1, 2, 3)
STEPS = (None, *range(DECODE_STEPS + 1))
INT8_KINDS = ("int8_scale",)
"""Faults that only a quantised network can have."""
ANY_OPERATOR = ("scale", "nan", "nan_row", "row")
"""Faults that every operator can have whose first result is float; places and choices are not."""

SMALL = {"norm_eps": 1e-3, "scale": 1.02, "replica": 1.02}
"""Sizes of faults that are small."""

ROWS = ("nan", "nan_row", "row")
"""Faults of one row or element, which in a key/value cache would be a place that no token has."""


@dataclass(frozen=True)
class Case:
    """One run of mine beside a golden one; without a fault it must be green."""

    network: str
    setting: Setting
    ranks: int = 1
    fault: Fault | None = None

    def __str__(self) -> str:
        s = self.setting
        words = [self.network, s.dtype, f"tp={self.ranks}", f"seed={s.seed}"]
        if (fault := self.fault) is None:
            return " ".join([*words, f"layers={s.layers}", f"prompt={s.prompt}"])
        step = "all steps" if fault.step is None else f"step {fault.step}"
        size = "" if fault.size is None else f" size {fault.size:.4g}"
        where = fault.operator or "its usual place"
        return " ".join([fault.kind + size, "at", where, *words, f"layer {fault.layer}", step])


@dataclass(frozen=True)
class Spot:
    """Where a fault can be, whatever the dtype and the step: network, ranks, layer, operator."""

    network: str
    ranks: int
    kind: str
    layer: int
    operator: str


class _Floats(NoProbe):
    """Which operators have a float result, by their path below the top-level operation."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    def executed(self, count: int, execution: Execution) -> None:
        if execution.outputs[0].is_floating_point():
            self.paths.add("/".join(execution.path[1:]))


def spots_of(network: Network, ranks: int, goldens: Goldens) -> list[Spot]:
    """All spots of a network: every fault at every operator that can have it.

    Where no operator can have it in both prefill and decode (attention differs), its usual place.
    """
    setting = Setting(network.golden, "float16", LAYERS)
    golden = goldens.of(setting)
    probes = [_Floats() for _ in range(ranks)]
    clean = mine(network, golden, setting, Runtime(probes))
    clean.step(golden.fed[0])
    found = []
    for kind, layer in itertools.product(FAULTS, range(LAYERS)):
        if (kind in INT8_KINDS and network is not INT8) or (kind == "replica" and ranks == 1):
            continue
        paths: Sequence[str] = clean.places(kind, layer)
        if kind in ANY_OPERATOR:
            paths = [path for path in paths if path in probes[0].paths]
        if kind in ROWS:
            paths = [path for path in paths if "ReshapeAndCache" not in path]
        if not paths and _has_usual(network, setting, goldens, ranks, Fault(kind, layer)):
            paths = [""]
        found += [Spot(network.name, ranks, kind, layer, path) for path in paths]
    return found


def _has_usual(network: Network, setting: Setting, goldens: Goldens, ranks: int, fault: Fault) -> bool:
    runtime = Runtime([NoProbe() for _ in range(ranks)])
    try:
        mine(network, goldens.of(setting), setting, runtime, fault)
    except SettingsError:
        return False
    return True


def spots(goldens: Goldens, networks: Iterable[Network]) -> list[Spot]:
    """The spots of all networks on every number of ranks."""
    return [spot for network in networks for ranks in RANKS for spot in spots_of(network, ranks, goldens)]


def size(found: Sequence[Spot]) -> int:
    """The number of faulty runs in the grid, for one seed of the weights."""
    return len(found) * len(FLOAT_DTYPES) * len(STEPS)


def sample(
    found: Sequence[Spot], count: int, seed: int, sizes: Mapping[str, float] = MappingProxyType({})
) -> list[Case]:
    """At least `count` runs of the grid: as many for each fault, spread over the networks that can have it.

    The same seed gives the same runs. `sizes` are those of faults that have another than their usual one.
    """
    chooser = random.Random(seed)
    kinds = list(dict.fromkeys(spot.kind for spot in found))
    each = -(-count // len(kinds))
    cases = []
    for kind in kinds:
        by_network: dict[str, list[Spot]] = {}
        for spot in found:
            if spot.kind == kind:
                by_network.setdefault(spot.network, []).append(spot)
        order = list(by_network)
        chooser.shuffle(order)
        for name in itertools.islice(itertools.cycle(order), each):
            spot = chooser.choice(by_network[name])
            step = chooser.choice(STEPS)
            fault = Fault(kind, spot.layer, spot.operator, step, sizes.get(kind))
            network = NETWORKS.get(name, INT8)
            setting = Setting(network.golden, chooser.choice(FLOAT_DTYPES), LAYERS, chooser.choice(SEEDS))
            cases.append(Case(name, setting, spot.ranks, fault))
    return cases


def clean(networks: Iterable[Network], count: int, seed: int) -> list[Case]:
    """Runs without a fault: all networks, dtypes and numbers of ranks, with weights and prompts apart."""
    chooser = random.Random(seed)
    kinds = list(itertools.product(networks, FLOAT_DTYPES, RANKS))
    chooser.shuffle(kinds)
    cases = []
    for network, dtype, ranks in itertools.islice(itertools.cycle(kinds), count):
        setting = Setting(
            network.golden,
            dtype,
            layers=chooser.randint(2, 4),
            seed=chooser.randrange(10, 1_000_000),
            prompt=chooser.randint(1, 16),
        )
        cases.append(Case(network.name, setting, ranks))
    return cases
