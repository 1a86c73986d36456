"""What the digest of a weight costs, and how well it tells distances.

    python benchmarks/weight_digest.py [--elements 16777216] [--repeat 5]

Per dtype: nanoseconds of processor time per element on one thread, the best of `--repeat`, and what that is
for a model of 1 GB. Then, over many pairs of tensors, the estimated distance over the true one: mean of the
squares (1 is right) and standard deviation (`sketch.STANDARD_ERROR` is promised).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from acc_pytest.tensors.digest import STANDARD_ERROR, digest

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8)
_PAIRS = 300


def seconds(tensor: torch.Tensor, repeat: int) -> float:
    """Processor time of one digest, the best of several."""
    best = math.inf
    for _ in range(repeat):
        begin = time.process_time()
        digest(tensor)
        best = min(best, time.process_time() - begin)
    return best


def ratios() -> list[float]:
    """Estimated over true distance of a weight and the same with noise."""
    found = []
    for seed in range(_PAIRS):
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(48, 1024, generator=generator)
        other = weight + 1e-3 * torch.randn(48, 1024, generator=generator)
        true = float((weight.double() - other.double()).norm() / weight.double().norm())
        found.append(digest(weight).distance(digest(other)) / true)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {options.elements} elements, one thread")
    print("dtype          | ns per element | s per GB")
    for dtype in DTYPES:
        tensor = (torch.randn(options.elements) * 20).to(dtype)
        each = seconds(tensor, options.repeat) / options.elements * 1e9
        name = str(dtype).removeprefix("torch.")
        print(f"{name:14s} | {each:14.2f} | {each / dtype.itemsize:8.2f}", flush=True)
    found = ratios()
    print(
        f"estimated over true distance, {_PAIRS} pairs: mean square "
        f"{statistics.fmean(ratio**2 for ratio in found):.3f}, standard deviation "
        f"{statistics.stdev(found):.3f} (promised {STANDARD_ERROR:.3f})"
    )


if __name__ == "__main__":
    main()
