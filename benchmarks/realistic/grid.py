"""The grid of clean runs, and the sample of it that a seed gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection
from dataclasses import dataclass

from detecting.grid import FLOAT_DTYPES

from .architectures import ARCHITECTURES, Architecture
from .networks import CASTINGS, Setting, Terms
from .ports import PORTS
from .runs import Batch
from .styles import STYLES, Style

LAYERS = (2, 2, 2, 2, 3, 3, 3, 4, 4, 6, 8, 12, 16, 32)
"""Most are few: a pair costs the same at any depth, and each layer has thirty."""
HIDDEN = (64, 128, 256, 512, 1024)
TOKENS = (1, 2, 3, 5, 8, 12, 16, 24, 33, 48, 64, 96, 128, 200, 256, 384, 512)


@dataclass(frozen=True)
class Limits:
    """What one network may cost: its layers, features of all tokens in them, and weights (about)."""

    layers: int
    features: int
    weights: int

    def allow(self, layers: int, hidden: int, tokens: int) -> bool:
        features, weights = layers * hidden * tokens, 12 * layers * hidden * hidden
        return layers <= self.layers and features <= self.features and weights <= self.weights


FULL = Limits(32, 2**20, 100_000_000)
QUICK = Limits(6, 2**17, 4_000_000)


def clean(
    count: int,
    seed: int,
    limits: Limits,
    ways: tuple[str, ...],
    styles: Collection[str] = (),
    networks: Collection[str] = (),
    samples: bool = False,
) -> list[Batch]:
    """As many networks of each style as `count`, both in float16 and bfloat16; sizes and terms are drawn.

    A style has all the architectures that can have it in turn, in an order that is drawn.
    """
    batches = []
    for style in STYLES.values():
        draw = random.Random(f"{style.name} {seed}")
        if styles and style.name not in styles:
            continue
        fitting = [
            one
            for one in ARCHITECTURES.values()
            if style.fits(one) and (not networks or one.name in networks)
        ]
        draw.shuffle(fitting)
        for architecture in itertools.islice(itertools.cycle(fitting), count if fitting else 0):
            sizes = _sizes(style, limits, draw)
            for dtype in FLOAT_DTYPES:
                setting = drawn(architecture, style, sizes, dtype, draw)
                batches.append(Batch(setting, (None,), ways, samples))
    return batches


def _sizes(style: Style, limits: Limits, draw: random.Random) -> tuple[int, int, int]:
    """Layers, hidden, tokens."""
    return draw.choice(
        [
            (layers, hidden, tokens)
            for layers, hidden, tokens in itertools.product(LAYERS, HIDDEN, TOKENS)
            if tokens >= style.least_tokens and limits.allow(layers, hidden, tokens)
        ]
    )


def drawn(
    architecture: Architecture, style: Style, sizes: tuple[int, int, int], dtype: str, draw: random.Random
) -> Setting:
    """A network, and on which terms mine runs: with another way to compute attention, where there is one."""
    implementation = draw.choice(architecture.implementations)
    others = [one for one in architecture.implementations if one != implementation] or [implementation]
    terms = Terms(dtype, draw.choice(CASTINGS), draw.choice(others), draw.choice(list(PORTS)))
    seed = draw.randrange(1_000_000)
    return Setting(architecture.name, terms, style.name, implementation, *sizes, seed)
