"""The grid torch against torch: every fault in every network and dtype, and every golden without a fault."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from .grid import FLOAT_DTYPES
from .torch_architectures import ARCHITECTURES
from .torch_faults import FAULTS
from .torch_networks import Setting

LAYERS = (2, 3)
PROMPTS = range(9, 13)
SETTINGS = 2
"""Goldens of an architecture for each way to compute attention."""


@dataclass(frozen=True)
class Case:
    """One run of mine beside a golden one; without a fault it must be green.

    `draw` is the seed of all that the fault leaves open: which head, row, token.
    """

    setting: Setting
    dtype: str
    fault: str = ""
    layer: int = 0
    draw: int = 0

    @property
    def network(self) -> str:
        return self.setting.network

    def __str__(self) -> str:
        s = self.setting
        words = [f"{self.network}/{self.fault or 'clean'}", self.dtype, s.implementation]
        words += [f"seed={s.seed}", f"layers={s.layers}", f"prompt={s.prompt}"]
        return " ".join([*words, *([f"layer {self.layer}", f"draw {self.draw}"] if self.fault else [])])


def settings(seed: int, only: str = "") -> dict[str, list[Setting]]:
    """The goldens of each architecture, or of one."""
    found: dict[str, list[Setting]] = {}
    for network, one in ARCHITECTURES.items():
        chooser = random.Random(f"{network} {seed}")
        if only not in ("", network):
            continue
        for implementation, number in itertools.product(one.implementations, range(SETTINGS)):
            drawn = chooser.randrange(1_000_000), chooser.choice(PROMPTS)
            setting = Setting(network, implementation, LAYERS[number % len(LAYERS)], *drawn)
            found.setdefault(network, []).append(setting)
    return found


def faulty(found: dict[str, list[Setting]], seed: int) -> list[Case]:
    """Every fault in every architecture that can have it, in both dtypes; all else is drawn."""
    cases = []
    for network, name in itertools.product(found, FAULTS):
        chooser = random.Random(f"{network} {name} {seed}")
        if not FAULTS[name].fits(ARCHITECTURES[network]):
            continue
        for dtype in FLOAT_DTYPES:
            setting = chooser.choice(found[network])
            layer = chooser.randrange(setting.layers)
            cases.append(Case(setting, dtype, name, layer, chooser.randrange(1_000_000)))
    return cases


def clean(found: dict[str, list[Setting]]) -> list[Case]:
    """A run without a fault for every golden and dtype."""
    return [Case(setting, dtype) for these in found.values() for setting in these for dtype in FLOAT_DTYPES]
