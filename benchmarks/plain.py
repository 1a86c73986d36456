"""The straightforward way: tensors whole, one torch expression per metric. Others are measured against it.

    python benchmarks/plain.py LIST

computes the seven metrics of the pairs of a list (that of `floor.cpp`), on one thread.
"""

from __future__ import annotations

import sys

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


def tensor(path: str, offset: str, dtype: str, count: int) -> torch.Tensor:
    """The first `count` elements of a tensor in a file."""
    kind = getattr(torch, dtype)
    content = np.fromfile(path, np.uint8, count * kind.itemsize, offset=int(offset))
    return torch.from_numpy(content).view(kind)


def main() -> None:
    torch.set_num_threads(1)
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in lines:
            golden, at, dtype, mine, mine_at, mine_dtype, count = line.split("\t")
            straightforward(
                tensor(golden, at, dtype, int(count)), tensor(mine, mine_at, mine_dtype, int(count))
            )


if __name__ == "__main__":
    main()
