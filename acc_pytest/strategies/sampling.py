"""Shape rules of operators that draw: MultinomialOperation, TopkToppSamplingOperation.

Probabilities are whole numbers of 1024ths, whose sums are exact in every dtype they come in: no place is
kept or left because of a rounding.
"""

from __future__ import annotations

from typing import Any

import torch

from .table import rule
from .values import Draw, Drawn, generator, integer, integers, one_of, uniform

_PARTS = 1024


def _probabilities(draw: Draw, batch: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that add up to 1; some probabilities are 0, some alike."""
    cuts = torch.randint(0, _PARTS + 1, (batch, width - 1), generator=generator(draw)).sort(-1).values
    ends = torch.nn.functional.pad(cuts, (1, 0)), torch.nn.functional.pad(cuts, (0, 1), value=_PARTS)
    return ((ends[1] - ends[0]).double() / _PARTS).to(dtype)


def _seed(draw: Draw) -> int:
    return (
        one_of(draw, 0, 1, 2**31 - 1, 2**31, 2**32 - 1)
        if integer(draw, 0, 3) == 3
        else integer(draw, 0, 2**32 - 1)
    )


@rule("MultinomialOperation")
def multinomial(draw: Draw) -> Drawn:
    """Some draws of each row, which all see the same numbers."""
    batch, width = integer(draw, 1, 4), integer(draw, 1, 12)
    dtype = one_of(draw, torch.float16, torch.float32)
    param = {"numSamples": integer(draw, 1, 6), "randSeed": _seed(draw)}
    return param, [_probabilities(draw, batch, width, dtype)]


@rule("TopkToppSamplingOperation")
def topk_topp_sampling(draw: Draw) -> Drawn:
    """All kinds: one topk and topp, or those of each row; numbers from seeds, or given."""
    kind, batch, width = integer(draw, 0, 4), integer(draw, 1, 4), integer(draw, 1, 12)
    dtype = one_of(draw, torch.float16, torch.float32 if kind == 0 else torch.bfloat16)
    # 1/8ths are exact in bfloat16 as well
    probs = _probabilities(draw, batch, width, torch.float16)
    if dtype == torch.bfloat16:
        probs = (probs * 8).round() / 8
    topp = (integers(draw, [batch, 1], 0, 8, torch.float16) / 8).to(dtype)
    param: dict[str, Any] = {"topkToppSamplingType": kind}
    if kind == 0:
        return {**param, "topk": integer(draw, 1, width), "randSeed": _seed(draw)}, [probs.to(dtype), topp]
    inputs = [probs.to(dtype), integers(draw, [batch, 1], 0, width, torch.int32), topp]
    if kind == 1:
        param["randSeeds"] = [_seed(draw) for _ in range(batch)]
    elif kind == 3:
        inputs.append(uniform(draw, [batch, 1], 0.0, 1.0))
    else:
        inputs.append(uniform(draw, [batch, width], 0.1, 3.0))
    if kind in (3, 4):
        param["logProbsSize"] = integer(draw, 1, width)
    return param, inputs
