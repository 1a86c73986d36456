"""The grid of clean runs, and the sample of it that a seed gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from detecting.grid import FLOAT_DTYPES

from .architectures import ARCHITECTURES, Architecture
from .networks import CASTINGS, Setting, Terms
from .runs import Batch
from .styles import STYLES, Style

LAYERS = (2, 2, 2, 3, 3, 4, 4, 6, 8, 12, 16, 24, 32)
"""Most are few: a pair costs the same at any depth, and each layer has thirty."""
HIDDEN = (64, 128, 256, 512, 1024)
TOKENS = (1, 2, 3, 5, 8, 12, 16, 24, 33, 48, 64, 96, 128, 200, 256, 384, 512)


@dataclass(frozen=True)
class Limits:
    """What one network may cost: features of all tokens in all layers, and weights (about, both in 1,024)."""

    stream: int = 1024
    weights: int = 1024 * 96

    def allow(self, layers: int, hidden: int, tokens: int) -> bool:
        stream, weights = layers * hidden * tokens, 12 * layers * hidden * hidden
        return stream <= 1024 * self.stream and weights <= 1024 * self.weights


FULL, QUICK = Limits(), Limits(128, 1024 * 4)


def clean(
    count: int,
    seed: int,
    limits: Limits,
    ways: tuple[str, ...],
    styles: Collection[str] = (),
    networks: Collection[str] = (),
    samples: bool = False,
) -> list[Batch]:
    """As many networks of each style as `count`, each run in both dtypes; sizes and terms are drawn.

    A style has all the architectures that can have it in turn, in an order that is drawn.
    """
    batches = []
    for style in STYLES.values():
        draw = random.Random(f"{style.name} {seed}")
        if styles and style.name not in styles:
            continue
        fitting = [one for one in ARCHITECTURES.values() if _fits(one, style, networks)]
        draw.shuffle(fitting)
        for architecture in itertools.islice(itertools.cycle(fitting), count if fitting else 0):
            setting = _setting(architecture, style, limits, draw)
            runs = tuple(_terms(setting, dtype, draw) for dtype in FLOAT_DTYPES)
            batches.append(Batch(setting, runs, ways, samples))
    return batches


def _fits(architecture: Architecture, style: Style, networks: Collection[str]) -> bool:
    return not networks or architecture.name in networks


def _setting(architecture: Architecture, style: Style, limits: Limits, draw: random.Random) -> Setting:
    sizes = [
        (layers, hidden, tokens)
        for layers, hidden, tokens in itertools.product(LAYERS, HIDDEN, TOKENS)
        if tokens >= style.least_tokens and limits.allow(layers, hidden, tokens)
    ]
    layers, hidden, tokens = draw.choice(sizes)
    implementation = draw.choice(architecture.implementations)
    return Setting(
        architecture.name, style.name, implementation, layers, hidden, tokens, draw.randrange(1_000_000)
    )


def _terms(setting: Setting, dtype: str, draw: random.Random) -> Terms:
    """Mine computes attention in another way than golden, where there is one."""
    others: Sequence[str] = [
        one for one in setting.architecture.implementations if one != setting.implementation
    ]
    return Terms(dtype, draw.choice(CASTINGS), draw.choice(others or [setting.implementation]))
