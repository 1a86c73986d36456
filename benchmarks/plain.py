"""The straightforward way: tensors whole, one torch expression per metric. Others are measured against it.

    python benchmarks/plain.py GOLDEN MINE

computes the seven metrics of the files of two directories that have one name (`.npy`), on one thread.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

EPSILON = 2.0**-23
Metrics = dict[str, float]


def straightforward(golden: torch.Tensor, mine: torch.Tensor) -> Metrics:
    """Seven metrics of two tensors, one expression each over float32 vectors (the cosine in float64)."""
    g, m = golden.reshape(-1).to(torch.float32), mine.reshape(-1).to(torch.float32)
    zero = torch.zeros((), dtype=torch.float32)
    g64, m64 = g.to(torch.float64), m.to(torch.float64)
    cosine = torch.dot(g64, m64) / (torch.linalg.vector_norm(g64) * torch.linalg.vector_norm(m64))
    return {
        "cosine_similarity": cosine.item(),
        "max_relative_error": torch.where(g.abs() > EPSILON, (m / g - 1).abs(), zero).max().item(),
        "mean_relative_error": torch.where(g.abs() > EPSILON, (m / g - 1).abs(), zero).mean().item(),
        "max_absolute_error": (m - g).abs().max().item(),
        "mean_absolute_error": (m - g).abs().mean().item(),
        "kl_divergence": torch.nn.functional.kl_div(
            torch.log_softmax(m, 0), torch.log_softmax(g, 0), reduction="sum", log_target=True
        ).item(),
        "relative_euclidean_distance": ((m - g).square().sum() / g.square().sum()).sqrt().item(),
    }


def main() -> None:
    golden, mine = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    for file in sorted(golden.iterdir()):
        straightforward(*(torch.from_numpy(np.load(side / file.name)) for side in (golden, mine)))


if __name__ == "__main__":
    main()
