"""The grid of faults: kinds x amounts x sizes x networks x styles, and the sample of it that a seed gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator

from detecting.grid import FLOAT_DTYPES

from .architectures import ARCHITECTURES
from .fault_sizes import Spoiling
from .faults import FAULTS
from .grid import drawn
from .networks import Setting, Terms
from .runs import Batch
from .styles import STYLES, Style

NETWORKS = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "granite",
    "smollm3",
    "olmo2",
    "glm4",
    "mixtral",
    "qwen3_moe",
)
"""Architectures whose modules have the names that the faults look for."""
FAULT_STYLES = ("even", "peaked", "massive", "wide", "outliers", "gains")
SIZED = 2
"""Of a kind that has amounts, so many runs with a size that is drawn, beside those with the amounts."""
DOUBLINGS = 6.0
"""Sizes are drawn from 1 to 64 times the noise, as many in each doubling."""
LAYERS = (2, 3, 3, 4, 6, 8)
HIDDEN = (128, 256)
TOKENS = (16, 24, 48)
DEEP, DEEP_AMOUNT = 32, 0.01


def faulty(
    amounts: tuple[int, int],
    seed: int,
    ways: tuple[str, ...],
    styles: Collection[str] = (),
    networks: Collection[str] = (),
    samples: bool = False,
) -> list[Batch]:
    """Networks, and in each so many faults (`amounts`) and a clean run first.

    The styles come in turn. In a style, all kinds with all their amounts come once before one comes again,
    in an order that is drawn.
    """
    count, together = amounts
    chosen = [STYLES[name] for name in FAULT_STYLES if not styles or name in styles]
    draws = {style.name: random.Random(f"faults {style.name} {seed}") for style in chosen}
    decks = {style.name: _deck(style, draws[style.name]) for style in chosen}
    batches = []
    for style in itertools.islice(itertools.cycle(chosen), count if chosen else 0):
        draw = draws[style.name]
        fitting = [
            name
            for name in NETWORKS
            if style.fits(ARCHITECTURES[name]) and (not networks or name in networks)
        ]
        if not fitting:
            continue
        sizes = draw.choice(LAYERS), draw.choice(HIDDEN), draw.choice(TOKENS)
        architecture = ARCHITECTURES[draw.choice(fitting)]
        setting = drawn(architecture, style, sizes, draw.choice(FLOAT_DTYPES), draw)
        faults = itertools.islice(decks[style.name], together)
        batches.append(Batch(setting, (None, *faults), ways, samples))
    return batches


def _deck(style: Style, draw: random.Random) -> Iterator[Spoiling]:
    """Faults of a style without end."""
    variants: list[tuple[str, float | None]] = []
    for kind, fault in FAULTS.items():
        if not fault.styles or style.name in fault.styles:
            variants += [(kind, amount) for amount in fault.amounts or (0.0,)]
            variants += [(kind, None)] * (SIZED if fault.amounts else 0)
    while True:
        draw.shuffle(variants)
        for kind, amount in variants:
            place = draw.randrange(1_000_000)
            if amount is None:
                yield Spoiling(kind, place, size=2.0 ** draw.uniform(0.0, DOUBLINGS))
            else:
                yield Spoiling(kind, place, amount)


def deep(amounts: tuple[int, int], seed: int, ways: tuple[str, ...], samples: bool = False) -> list[Batch]:
    """The same of networks of 32 layers in bfloat16; a result of one module is scaled by 1.01."""
    count, together = amounts
    draw = random.Random(f"deep {seed}")
    batches = []
    for _ in range(count):
        terms = Terms("bfloat16", implementation="sdpa")
        seed = draw.randrange(1_000_000)
        setting = Setting("llama", terms, layers=DEEP, tokens=12, seed=seed)
        faults = [Spoiling("scaled", draw.randrange(1_000_000), DEEP_AMOUNT) for _ in range(together)]
        batches.append(Batch(setting, (None, *faults), ways, samples))
    return batches
