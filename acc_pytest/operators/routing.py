"""Sorting, counting and reducing: what routes tokens to experts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import torch

from .registry import As, OperatorCall, Outputs, Param, Tensors, choice, flag, integer, integers, operator


@operator("SortOperation", {"num": integers()}, ("x",))
def sort(call: OperatorCall, t: Tensors) -> Outputs:
    """The `num[0]` largest of the last dimension, descending, and their int32 positions."""
    x, num = t["x"], call.param["num"]
    call.need(
        len(num) == 1 and 0 < num[0] <= x.shape[-1],
        f"parameter num is {list(num)}; one number from 1 to {x.shape[-1]} is needed",
    )
    values, indices = torch.sort(x, dim=-1, descending=True, stable=True)
    return [values[..., : num[0]], indices[..., : num[0]].int()]


@operator("OnehotOperation", {"axis": integer(), "depth": integer()}, ("x", "one", "zero"))
def onehot(call: OperatorCall, t: Tensors) -> Outputs:
    """A new dimension of size `depth` at `axis`: `one` at the index that `x` holds, `zero` elsewhere."""
    x, depth = t["x"], call.param["depth"]
    axis = call.param["axis"]
    call.need(-x.ndim - 1 <= axis <= x.ndim, f"parameter axis is {axis}, x has {x.ndim} dimensions")
    axis = axis % (x.ndim + 1)
    shape = [1] * (x.ndim + 1)
    shape[axis] = depth
    places = torch.arange(depth, dtype=x.dtype).reshape(shape)
    hit = x.unsqueeze(axis) == places
    return [torch.where(hit, t["one"].flatten()[0], t["zero"].flatten()[0]).to(x.dtype)]


MAX, MIN, SUM = 1, 2, 3
REDUCE = {"reduceType": choice(0, "max", "min", "sum", start=1, extra={0: "undefined"}), "axis": integers()}


@operator("ReduceOperation", REDUCE, ("x",))
def reduce(call: OperatorCall, t: Tensors) -> Outputs:
    """Largest, smallest or sum over all of `axis`, which disappear."""
    x, kind, axes = t["x"], call.param["reduceType"], call.param["axis"]
    call.need(kind != 0, "parameter reduceType is missing")
    call.need(
        bool(axes) and all(-x.ndim <= a < x.ndim for a in axes),
        f"parameter axis is {list(axes)}, x has {x.ndim} dimensions",
    )
    if kind == SUM:
        return [As(call.wide(x).sum(axes), x.dtype) if x.is_floating_point() else x.sum(axes, dtype=x.dtype)]
    return [x.amax(axes) if kind == MAX else x.amin(axes)]


@operator("CumsumOperation", {"axes": integers(), "exclusive": flag(), "reverse": flag()}, ("x",))
def cumsum(call: OperatorCall, t: Tensors) -> Outputs:
    """Running sum along `axes[0]`; `exclusive` leaves the element itself out, `reverse` runs backwards."""
    x, p = t["x"], call.param
    call.need(
        len(p["axes"]) >= 1 and -x.ndim <= p["axes"][0] < x.ndim,
        f"parameter axes is {list(p['axes'])}, x has {x.ndim} dimensions",
    )
    axis, wide = p["axes"][0], call.wide(x)
    n = x.shape[axis]
    if p["reverse"]:
        wide = wide.flip(axis)
    total = wide.cumsum(axis)
    if p["exclusive"] and n:
        # one place on; taking the element off again would lose what it outweighs
        total = torch.cat((torch.zeros_like(wide.narrow(axis, 0, 1)), total.narrow(axis, 0, n - 1)), axis)
    return [As(total.flip(axis) if p["reverse"] else total, x.dtype)]


@operator("WhereOperation", {}, ("cond", "x", "y"))
def where(call: OperatorCall, t: Tensors) -> Outputs:
    """`x` where `cond` is not 0, else `y`, all broadcast."""
    return [torch.where(t["cond"] != 0, t["x"], t["y"])]


@operator("NonzeroOperation", {}, ("x",))
def nonzero(call: OperatorCall, t: Tensors) -> Outputs:
    """Coordinates of the nonzero elements, a column each, zero padded `[ndim, numel]`; how many `[1]`."""
    x = t["x"]
    coordinates = x.nonzero().T
    places = torch.zeros(x.ndim, x.numel(), dtype=torch.int64)
    places[:, : coordinates.shape[1]] = coordinates
    return [places, torch.tensor([coordinates.shape[1]])]


ADD, ADD_VALID = 1, 2
INDEX_ADD = {
    "indexType": choice(0, "add", "add the valid ones", start=1, extra={0: "undefined"}),
    "axis": integer(),
}


def _index_inputs(param: Param) -> tuple[str, ...]:
    last = "validIndicesNum" if param["indexType"] == ADD_VALID else "alpha"
    return "var", "indices", "updates", last


@operator("IndexAddOperation", INDEX_ADD, _index_inputs, aliases={0: "var"})
def index_add(call: OperatorCall, t: Tensors) -> Outputs:
    """var + updates * alpha at `indices` of `axis`; type 2 adds only the first `validIndicesNum` rows."""
    call.need(call.param["indexType"] != 0, "parameter indexType is missing")
    var, updates, indices = t["var"], call.wide(t["updates"]), t["indices"].flatten().long()
    axis = call.param["axis"]
    call.need(-var.ndim <= axis < var.ndim, f"parameter axis is {axis}, var has {var.ndim} dimensions")
    if "validIndicesNum" in t:
        valid, axis = int(t["validIndicesNum"].flatten()[0]), 0
        indices, updates = indices[:valid], updates[:valid]
    else:
        updates = updates * call.wide(t["alpha"]).flatten()[0]
    call.need(
        not indices.numel() or (int(indices.min()) >= 0 and int(indices.max()) < var.shape[axis]),
        f"indices reach outside 0..{var.shape[axis] - 1}",
    )
    return [As(call.wide(var).index_add(axis, indices, updates), var.dtype)]


GATING = {
    "topkExpertNum": integer(1),
    "cumSumNum": integer(),
    "cumSumInt64": flag(),
    "deviceExpert": integers(),
}


@operator("GatingOperation", GATING, ("topk", "idxArr"))
def gating(call: OperatorCall, t: Tensors) -> Outputs:
    """Sort (token, expert) pairs by expert: token of each, running count of the experts, place before.

    With `deviceExpert` only the pairs of these experts, in ascending order, are kept, packed to the front;
    their number is the fourth output.
    """
    p = call.param
    topk, arrangement = t["topk"].flatten(), t["idxArr"].flatten()
    call.need(topk.shape == arrangement.shape, "topk and idxArr have different lengths")
    call.need(p["topkExpertNum"] > 0, f"parameter topkExpertNum is {p['topkExpertNum']}, not above 0")
    experts, order = torch.sort(topk, stable=True)
    original = arrangement[order]
    count_type = torch.int64 if p["cumSumInt64"] else torch.int32
    if not p["cumSumNum"]:
        return [torch.zeros_like(topk), torch.zeros(1, dtype=count_type), original]
    counts = torch.bincount(topk.long(), minlength=p["cumSumNum"])
    if not p["deviceExpert"]:
        running = counts[: p["cumSumNum"]].cumsum(0).to(count_type)
        return [original // p["topkExpertNum"], running, original]
    local = torch.tensor(sorted(p["deviceExpert"]))
    local_pairs = original[torch.isin(experts, local.to(experts.dtype))]
    packed = torch.zeros_like(original)
    packed[: len(local_pairs)] = local_pairs
    tokens = packed // p["topkExpertNum"]
    running = counts[local].cumsum(0).to(count_type)
    return [tokens, running, packed, torch.tensor([len(local_pairs)], dtype=torch.int32)]


SCATTER = {"axis": integer(-1), "reduction": choice(0, "none", "add")}


@operator("ScatterElementsV2Operation", SCATTER, ("input", "indices", "updates"), writes=("input",))
def scatter_elements(call: OperatorCall, t: Tensors) -> Outputs:
    """Write (or add) `updates` at `indices` along `axis` of `input`. No output."""
    x, indices, updates = t["input"], t["indices"].long(), t["updates"]
    axis = call.param["axis"]
    call.need(
        -x.ndim <= axis < x.ndim and indices.shape == updates.shape and indices.ndim == x.ndim,
        f"input {list(x.shape)}, indices {list(indices.shape)}, updates {list(updates.shape)}, axis {axis}: "
        "these do not fit",
    )
    indices = torch.where(indices < 0, indices + x.shape[axis], indices)
    call.need(
        not indices.numel() or (int(indices.min()) >= 0 and int(indices.max()) < x.shape[axis]),
        f"indices reach outside dimension {axis} of input {list(x.shape)}",
    )
    if call.param["reduction"] == 0:
        return [x.scatter(axis, indices, updates)]
    if x.is_floating_point():
        return [As(call.wide(x).scatter_add(axis, indices, call.wide(updates)), x.dtype)]
    return [x.scatter_add(axis, indices, updates)]


# Sampling with the numbers of C's `rand`, so that the device's choice can be repeated.


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
_SAMPLINGS = (
    "one topk", "batch, multinomial", "batch, exponential", "batch, multinomial, logprobs",
    "batch, exponential, logprobs",
)  # fmt: skip
TOPK_TOPP = {
    "topkToppSamplingType": choice(SINGLE, *_SAMPLINGS, extra={-1: "undefined"}),
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
