"""A few numbers of a matrix from which products with it are checked without it (R. Freivalds, 1977).

Of a weight W that maps rows x of K features to rows y of N (y = x W^T), the projection is

    P = W^T S        [K, 32],   S[j, t] = -1 where bit t of splitmix64(j) is set, else +1     [N, 32]

Then y S = x P for every x. An error e of y shows as e S: its entries are sums of the elements of e with
random signs, so that the mean of their squares is |e|^2 in expectation. With 32 of them a row the relative
standard error of |e| is 1 / sqrt(64) for one row, as a decode step has, and 1 / sqrt(64 n) for n rows with
errors of one size. Projections of fewer columns, which older dumps have, are of the first columns of S.

The signs may never change: `dumps.torch_outline.SIGNS` goes with every stored projection.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

WIDTH = 32
"""Numbers that a row becomes."""
MOST_WIDTH = 64
"""Limit of a width: the number of bits."""
_PIECE = 1 << 20
"""Elements of a weight that are looked at together: 8 MiB in float64."""


def signs(count: int, width: int = WIDTH) -> torch.Tensor:
    """The first rows of S, [count, width] of +1 and -1 in float64; `width` is at most 64."""
    return _signs(1 << max(count - 1, 0).bit_length(), width)[:count]


@functools.lru_cache(maxsize=4)
def _signs(count: int, width: int) -> torch.Tensor:
    with np.errstate(over="ignore"):
        mixed = np.arange(count, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    bits = (mixed[:, None] >> np.arange(width, dtype=np.uint64)) & np.uint64(1)
    return torch.from_numpy(1.0 - 2.0 * bits.astype(np.float64))


def projection(weight: torch.Tensor) -> torch.Tensor:
    """P of a weight [N, K]: [K, 32] in float32 on the CPU. Sums are in float64, a piece at a time."""
    count, features = weight.shape
    total = torch.zeros(features, WIDTH, dtype=torch.float64)
    rows = max(1, _PIECE // max(features, 1))
    drawn = signs(count)
    for start in range(0, count, rows):
        piece = weight[start : start + rows].detach().to("cpu", torch.float64)
        total += piece.T @ drawn[start : start + rows]
    return total.float()
