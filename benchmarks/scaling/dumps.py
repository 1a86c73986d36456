"""Two dumps of plain `.npy` files of one size, golden and mine, a rounding apart."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

DIFFERENT = 16
"""Files of different content on each side; the others are links to them, so that 2 GB need not be written."""


def make_dumps(home: Path, pairs: int, nbytes: int, seed: int) -> tuple[Path, Path]:
    """Directories with `pairs` tensors of `nbytes` each (float32); returns golden and mine."""
    draw = np.random.default_rng(seed)
    sides = home / "golden", home / "mine"
    for side in sides:
        side.mkdir(parents=True)
    for number in range(min(DIFFERENT, pairs)):
        values = draw.standard_normal(max(1, nbytes // 4)).astype(np.float32)
        off = values * (1 + draw.standard_normal(values.shape) * 2.0**-24)
        for side, content in zip(sides, (values, off.astype(np.float32))):
            np.save(side / f"t{number}.npy", content)
    for number in range(DIFFERENT, pairs):
        for side in sides:
            os.link(side / f"t{number % DIFFERENT}.npy", side / f"t{number}.npy")
    return sides
