"""Sampling with the numbers of C's `rand`, so that the device's choice can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import torch

from .param import Param, choice, integer, integers
from .registry import As, OperatorCall, Outputs, Tensors, operator

_MODULUS = 2**31 - 1


def rand(seed: int) -> Iterator[float]:
    """The numbers of glibc after `srand(seed)`, divided by RAND_MAX.

    Its generator adds two earlier numbers: r[i] = r[i - 3] + r[i - 31] mod 2^32, without the last bit;
    the first 31 come from multiplication by 16807 and the next 310 are thrown away. Seeds from 2^31 on
    count as negative.
    """
    state = [(seed + 2**31) % 2**32 - 2**31 or 1]
    for _ in range(30):
        state.append(16807 * state[-1] % _MODULUS)
    state += state[:3]
    for number in count(34):
        state.append((state[-3] + state[-31]) % 2**32)
        del state[:-31]
        if number >= 344:
            yield (state[-1] >> 1) / _MODULUS


@operator("MultinomialOperation", {"numSamples": integer(1), "randSeed": integer()}, ("probs",))
def multinomial(call: OperatorCall, t: Tensors) -> Outputs:
    """For each row the first place whose running sum exceeds a random number, `numSamples` times.

    The running sum is rounded to float16 at every step, as the kernel does. All rows see the same numbers.
    """
    call.need(t["probs"].ndim == 2 and t["probs"].shape[1] > 0, "probs is not [batch, n]")
    running = running_sums(t["probs"]).double()
    numbers = islice(rand(call.param["randSeed"]), call.param["numSamples"])
    chosen = [(running > number).int().argmax(1) for number in numbers]
    return [torch.stack(chosen, 1).int()]


def running_sums(probs: torch.Tensor) -> torch.Tensor:
    """Sums of `[batch, n]` along the rows, rounded to float16 at every step."""
    total, sums = torch.zeros(len(probs), dtype=torch.float16), []
    for column in probs.T:
        total = (total.float() + column.float()).half()
        sums.append(total)
    return torch.stack(sums, 1)


SINGLE, MULTINOMIAL, EXPONENTIAL, LOGPROBS_MULTINOMIAL, LOGPROBS_EXPONENTIAL = range(5)
TOPK_TOPP = {
    "topkToppSamplingType": choice(
        SINGLE,
        "one topk",
        "batch, multinomial",
        "batch, exponential",
        "batch, multinomial, logprobs",
        "batch, exponential, logprobs",
        start=0,
        extra={-1: "undefined"},
    ),
    "randSeeds": integers(),
    "randSeed": integer(),
    "topk": integer(100),
    "logProbsSize": integer(),
}


def _inputs(param: Param) -> list[str]:
    kind = param["topkToppSamplingType"]
    if kind == SINGLE:
        return ["probs", "topp"]
    noise = {LOGPROBS_MULTINOMIAL: ["rand"], EXPONENTIAL: ["exp"], LOGPROBS_EXPONENTIAL: ["exp"]}
    return ["probs", "topk", "topp", *noise.get(kind, [])]


@operator("TopkToppSamplingOperation", TOPK_TOPP, _inputs)
def topk_topp_sampling(call: OperatorCall, t: Tensors) -> Outputs:
    """One index of each row of `probs` among its `topk` likeliest whose running sum stays below `topp`.

    Outputs: the index, its probability, and with logprobs the logarithms of the first `logProbsSize`
    ranks over the sum of those kept, -9999 behind the last kept.
    """
    kind = call.param["topkToppSamplingType"]
    call.need(kind >= 0, "parameter topkToppSamplingType is missing")
    values, order = torch.sort(call.wide(t["probs"]), dim=-1, descending=True, stable=True)
    batch = len(values)
    topp = call.wide(t["topp"]).reshape(-1, 1)
    if kind == SINGLE:
        values = values[:, : call.param["topk"]]
        numbers = list(islice(rand(call.param["randSeed"]), batch))
    else:
        last = t["topk"].reshape(-1, 1).long().clamp(0, values.shape[1] - 1)
        values = values.masked_fill(values < values.gather(1, last), 0.0)
        numbers = _numbers(call, t, kind, batch)
    running = values.cumsum(-1)
    last_rank = ((running < topp).sum(-1, keepdim=True) - 1).clamp(min=0)
    if kind in (EXPONENTIAL, LOGPROBS_EXPONENTIAL):
        rank = (values.masked_fill(running > topp, 0.0) / call.wide(t["exp"])).argmax(-1, keepdim=True)
    else:
        threshold = running.gather(1, last_rank) * call.wide(torch.tensor(numbers)).reshape(-1, 1)
        passed = running <= threshold if kind == SINGLE else running < threshold
        rank = passed.sum(-1, keepdim=True).clamp(max=values.shape[1] - 1)
    index = order.gather(1, rank)
    outputs = [index.int(), t["probs"].gather(1, index)]
    if kind in (LOGPROBS_MULTINOMIAL, LOGPROBS_EXPONENTIAL):
        size = call.param["logProbsSize"]
        logs = torch.log(values[:, :size] / running.gather(1, last_rank))
        logs = logs.masked_fill(torch.arange(size) > last_rank, -9999.0)
        return [*outputs, As(logs, torch.float32)]
    return outputs


def _numbers(call: OperatorCall, t: Tensors, kind: int, batch: int) -> list[float]:
    """The random number of each row: from its seed, or given."""
    if kind == LOGPROBS_MULTINOMIAL:
        return [float(n) for n in t["rand"].flatten().tolist()]
    if kind != MULTINOMIAL:
        return []
    seeds = call.param["randSeeds"]
    call.need(len(seeds) == batch, f"parameter randSeeds has {len(seeds)} entries for {batch} rows")
    return [next(rand(seed)) for seed in seeds]
