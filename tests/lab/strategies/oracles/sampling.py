"""Draws by C's generator as its source has it, and by lists of Python's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from .expected import Expected, U, same
from .table import Inputs, Param, oracle


def _numbers(seed: int) -> Iterator[float]:
    """`srandom_r` and `random_r`: 31 words, two places that move through them, signed 32-bit arithmetic."""
    word = seed % 2**32
    word = (word - 2**32 if word >= 2**31 else word) or 1
    table = [word]
    for _ in range(30):
        high = int(math.copysign(abs(word) // 127773, word))
        word = 16807 * (word - 127773 * high) - 2836 * high
        if word < 0:
            word += 2147483647
        table.append(word)
    front, rear, drawn = 3, 0, 0
    while True:
        table[front] = (table[front] + table[rear]) & 0xFFFFFFFF
        if drawn >= 310:
            yield (table[front] >> 1) / 2147483647
        front, rear, drawn = (front + 1) % 31, (rear + 1) % 31, drawn + 1


@oracle("MultinomialOperation")
def multinomial(p: Param, t: Inputs) -> Sequence[Expected]:
    """Walk each row until the sum passes the number; without such a place it is the first."""
    numbers = _numbers(p["randSeed"])
    draws = [next(numbers) for _ in range(p["numSamples"])]
    rows = []
    for row in t["probs"].double().numpy():
        total, sums = np.float16(0), []
        for one in row:
            total = np.float16(np.float32(total) + np.float32(one))
            sums.append(float(total))
        rows.append([next((i for i, s in enumerate(sums) if s > number), 0) for number in draws])
    return [same(torch.tensor(rows, dtype=torch.int32))]


@oracle("TopkToppSamplingOperation")
def topk_topp_sampling(p: Param, t: Inputs) -> Sequence[Expected]:
    """Row by row over a sorted list."""
    kind, chosen, logs = p["topkToppSamplingType"], [], []
    numbers = _numbers(p["randSeed"])
    for b, row in enumerate(t["probs"].double().tolist()):
        ranked = sorted(range(len(row)), key=lambda i: (-row[i], i))
        values = [row[i] for i in ranked]
        if kind == 0:
            values = values[: p["topk"]]
        else:
            least = values[min(int(t["topk"][b]), len(values) - 1)]
            values = [value if value >= least else 0.0 for value in values]
        sums = [math.fsum(values[: i + 1]) for i in range(len(values))]
        topp = float(t["topp"][b])
        last = max(len([s for s in sums if s < topp]) - 1, 0)
        if kind in (2, 4):
            noise = t["exp"][b].tolist()
            weights = [0.0 if s > topp else value / e for s, value, e in zip(sums, values, noise)]
            rank = weights.index(max(weights))
        else:
            number = (
                float(t["rand"][b])
                if kind == 3
                else next(numbers if kind == 0 else _numbers(p["randSeeds"][b]))
            )
            limit = sums[last] * number
            rank = len([s for s in sums if (s <= limit if kind == 0 else s < limit)])
            rank = min(rank, len(values) - 1)
        chosen.append(ranked[rank])
        shares = [value / sums[last] if sums[last] else math.nan for value in values[: p["logProbsSize"]]]
        logs.append([-9999.0 if i > last else math.log(s) if s else -math.inf for i, s in enumerate(shares)])
    index = torch.tensor(chosen, dtype=torch.int32)[:, None]
    found = [same(index), same(t["probs"].gather(1, index.long()))]
    if kind in (3, 4):
        value = torch.tensor(logs, dtype=torch.float64)
        # the share is rounded, which moves its logarithm by as much, and the logarithm is
        found.append(Expected(value, torch.float32, 4 * U + 2 * U * value.abs()))
    return found
