"""A fault, and the operators that can have one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ....operators import operator_of
from ..graph import Call, Operation, Tensors, Wrong
from ..models.leaves import ADD, single
from ..models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake in mine.

    `kind` is one of `FAULTS`, `layer` the layer that has it. `operator` is the operator's path below its
    layer, or the end of it (`3_ElewiseOperation`, `4_LinearNoQuant/0_LinearOperation`) or an operation type,
    whose first operator is meant; empty takes the operator where the mistake usually happens. `step` is
    the step that has it (0 = prefill), `None` every one. `size` is how large the mistake is, for kinds that
    have a size (`FaultKind.size`, which `None` takes).
    """

    kind: str
    layer: int = 0
    operator: str = ""
    step: int | None = None
    size: float | None = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf operator where a fault may go: below which path of its layer, called how, on which rank.

    `size` is that of the fault, 0 for a kind without one.
    """

    numbers: tuple[int, ...]
    path: str
    call: Call
    spec: ModelSpec
    rank: int = 0
    size: float = 0.0

    @property
    def operation(self) -> Operation:
        return self.call.operation

    @property
    def kind(self) -> str:
        return self.operation.kind


@dataclass(frozen=True, slots=True)
class FaultyOperator:
    """The operator that has the fault: `call` of the model, then the index in every graph below it."""

    call: int
    numbers: tuple[int, ...]
    kind: str

    def name(self, top: int) -> str:
        """Full name when its top-level operation has the id `top`: `RopeOperation_2_0_1_0`."""
        return "_".join((self.kind, *map(str, (top, *self.numbers))))


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A named mistake: what it is, which leaves can have it, where it usually is, and what it computes.

    `make` gives the wrong computation of a leaf, or the leaf with other parameters. With several usual
    leaves the first is taken, with `last` the last. `size` is the usual size of a mistake that can be
    larger or smaller, and `right` the size at which nothing is wrong.
    """

    name: str
    what: str
    fits: Callable[[Leaf], bool]
    make: Callable[[Leaf], Wrong | Operation]
    usual: Callable[[Leaf], bool] | None = None
    last: bool = False
    size: float | None = None
    right: float = 1.0

    def is_usual(self, leaf: Leaf) -> bool:
        """Whether this mistake is put here when the user names no operator."""
        return self.fits(leaf) and (self.usual is None or self.usual(leaf))


def is_a(*kinds: str) -> Callable[[Leaf], bool]:
    """Whether a leaf is an operation of one of these types."""
    return lambda leaf: leaf.kind in kinds


is_linear = is_a("LinearOperation")


def sized_result(change: Callable[[Tensors, float], Tensors]) -> Callable[[Leaf], Wrong]:
    """A mistake of some size that spoils right results."""
    return lambda leaf: lambda right, inputs: change(right(*inputs), leaf.size)


def sized_inputs(change: Callable[[Tensors, float], Tensors]) -> Callable[[Leaf], Wrong]:
    """A right computation of inputs that are wrong by some size."""
    return lambda leaf: lambda right, inputs: right(*change(inputs, leaf.size))


def on_result(change: Callable[[Tensors], Tensors]) -> Callable[[Leaf], Wrong]:
    """A mistake that spoils right results."""
    return lambda _: lambda right, inputs: change(right(*inputs))


def on_inputs(change: Callable[[Tensors], Tensors]) -> Callable[[Leaf], Wrong]:
    """A right computation of wrong inputs."""
    return lambda _: lambda right, inputs: right(*change(inputs))


# Faults of linears: bias, weight layout, accumulation, dequantisation.


WRONG_CHANNEL_SCALE = 8.0
"""A power of two, as a wrong shift would make it; beyond the noise of int8 in all channels together."""


def _is_quantised(leaf: Leaf) -> bool:
    return is_linear(leaf) and leaf.operation.leaf_param.get("outDataType", -1) != -1


def _is_float(leaf: Leaf) -> bool:
    return is_linear(leaf) and not _is_quantised(leaf)


def _has_bias(leaf: Leaf) -> bool:
    return _is_float(leaf) and bool(leaf.operation.leaf_param.get("hasBias"))


def _without_bias(leaf: Leaf) -> Wrong:
    param = {**leaf.operation.leaf_param, "hasBias": False}
    return lambda right, inputs: right(*inputs[:2], param=param)


def _misread_weight(inputs: Tensors) -> Tensors:
    """A weight that lies transposed in memory is read as if it did not."""
    weight = inputs[1]
    return inputs[0], weight.t().reshape(weight.shape), *inputs[2:]


def _narrow(leaf: Leaf) -> Wrong:
    """Partial sums keep half of the mantissa bits of the dtype (float16: 5 of 10, bfloat16: 3 of 7)."""

    def wrong(right: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        output = right(*inputs)[0]
        x, weight = inputs[0].float(), inputs[1].float()
        columns = weight if leaf.operation.leaf_param.get("transposeB", True) else weight.t()
        bits = 5 if output.dtype == torch.float16 else 3
        total = torch.zeros((*x.shape[:-1], columns.shape[0]))
        for k in range(x.shape[-1]):
            mantissa, exponent = torch.frexp(total + x[..., k : k + 1] * columns[:, k])
            total = torch.ldexp((mantissa * 2 ** (bits + 1)).round(), exponent - bits - 1)
        if leaf.operation.leaf_param.get("hasBias"):
            total = total + inputs[2].float()
        return (total.reshape(output.shape).to(output.dtype),)

    return wrong


def _wrong_channel(inputs: Tensors, factor: float) -> Tensors:
    """The scale of the first output channel is `factor` times too large.

    910B passes the float32 bits of scales as int64.
    """
    *operands, scale = inputs
    changed = scale.clone()
    if changed.dtype == torch.int64:
        changed[..., 0] = (changed[..., 0].to(torch.int32).view(torch.float32) * factor).view(torch.int32)
    else:
        changed[..., 0] *= factor
    return *operands, changed


LINEAR_KINDS = (
    FaultKind("bias", "the bias of a linear is dropped", _has_bias, _without_bias),
    FaultKind("weight", "a weight is read transposed", _is_float, on_inputs(_misread_weight)),
    FaultKind("low_precision", "a matmul accumulates with half of the mantissa", _is_float, _narrow),
    FaultKind(
        "int8_scale",
        "one channel's int8 scale is 8 times too large",
        _is_quantised,
        sized_inputs(_wrong_channel),
        size=WRONG_CHANNEL_SCALE,
    ),
)


# Faults of rotation, mask, scale, heads and cache.


WRONG_BASE_RATIO = 100.0
WRONG_SCORES = 4.0
"""The factor of scores that are not scaled at all, for heads of 16 numbers."""


_is_rope = is_a("RopeOperation")
_is_attention = is_a("SelfAttentionOperation", "PagedAttentionOperation")


def _is_flash(leaf: Leaf) -> bool:
    """Self attention that keeps the cache itself (query, key, value, caches, mask, offset, length, layer)."""
    return leaf.kind == "SelfAttentionOperation" and len(leaf.call.inputs) == 9


def _stores(leaf: Leaf) -> bool:
    return leaf.kind == "ReshapeAndCacheOperation" or _is_flash(leaf)


def _negative_sine(inputs: Tensors) -> Tensors:
    q, k, cos, sin, length = inputs
    return q, k, cos, -sin, length


def _other_base(leaf: Leaf) -> Wrong:
    """cos and sin of a base that is `leaf.size` times too large.

    The position of a row is read off its slowest pair, whose angle stays below pi in any model.
    """
    size, base = leaf.spec.rotary_size, leaf.spec.rope_base
    exponent = torch.arange(0, size, 2).float() / size
    slowest = base ** -float(exponent[-1])

    def wrong(right: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        q, k, cos, sin, length = inputs
        last = size // 2 - 1 if leaf.operation.leaf_param["rotaryCoeff"] == 2 else size - 1
        position = (torch.atan2(sin[:, last].float(), cos[:, last].float()) / slowest).round()
        angle = torch.outer(position, (base * leaf.size) ** -exponent)
        angles = angle.repeat(1, 2) if last < size - 1 else angle.repeat_interleave(2, 1)
        return right(q, k, angles.cos().to(cos.dtype), angles.sin().to(sin.dtype), length)

    return wrong


def _shifted_mask(leaf: Leaf) -> Wrong:
    """The mask is off by one column: a token does not see itself but the one after it (paged: not itself)."""
    paged, place = leaf.kind == "PagedAttentionOperation", 5 if _is_flash(leaf) else 3

    def wrong(right: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        changed = list(inputs)
        if paged:
            changed[4] = (inputs[4] - 1).clamp(min=1)
        else:
            mask = inputs[place]
            shifted = torch.cat((mask[..., 1:], mask[..., -1:]), -1)
            changed[place] = shifted
        return right(*changed)

    return wrong


def _other_scale(leaf: Leaf) -> Operation:
    """Scores are `leaf.size` times too large before their softmax."""
    param = dict(leaf.operation.leaf_param)
    param["qScale" if _is_flash(leaf) else "qkScale"] *= leaf.size
    return replace(leaf.operation, param=param)


def _turned_heads(leaf: Leaf) -> Wrong:
    """The results of the heads are in reverse order."""
    heads = leaf.operation.leaf_param["headNum"]

    def change(outputs: Tensors) -> Tensors:
        apart = outputs[0].reshape(-1, heads, outputs[0].numel() // outputs[0].shape[0] // heads)
        if _is_flash(leaf):
            apart = outputs[0].reshape(*outputs[0].shape[:2], heads, -1).flip(2)
            return apart.reshape(outputs[0].shape), *outputs[1:]
        return apart.flip(1).reshape(outputs[0].shape), *outputs[1:]

    return on_result(change)(leaf)


def _stale(leaf: Leaf) -> Wrong:
    """The newest token is not stored: its slot keeps what it held."""
    if _is_flash(leaf):
        return _stale_flash

    def wrong(right: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        slot = int(inputs[4][-1])
        caches = []
        for new, old in zip(right(*inputs), inputs[2:4]):
            cache = new.clone()
            cache.flatten(0, 1)[slot] = old.flatten(0, 1)[slot]
            caches.append(cache)
        return tuple(caches)

    return wrong


def _stale_flash(right: Callable[..., Tensors], inputs: Tensors) -> Tensors:
    changed: list[Any] = list(inputs)
    stop, layer = int(inputs[6]), int(inputs[8])
    for place, cache in ((1, inputs[3]), (2, inputs[4])):
        rows = inputs[place].clone()
        rows[0, -1] = cache[layer, 0, stop - 1].view(rows.shape[2:])
        changed[place] = rows
    return right(*changed)


ATTENTION_KINDS = (
    FaultKind("rope_sign", "the sine of the rotation is negated", _is_rope, on_inputs(_negative_sine)),
    FaultKind(
        "rope_base",
        "the base of the rotation is 100 times too large",
        _is_rope,
        _other_base,
        size=WRONG_BASE_RATIO,
    ),
    FaultKind("mask", "the causal mask is off by one", _is_attention, _shifted_mask),
    FaultKind(
        "softmax_scale", "scores are 4 times too large", _is_attention, _other_scale, size=WRONG_SCORES
    ),
    FaultKind("head_mapping", "heads are in reverse order", _is_attention, _turned_heads),
    FaultKind("stale_kv", "the newest token is not stored in the key/value cache", _stores, _stale),
)


# Faults of residuals, norms, activations, splits and collectives, and those that any operator can have.


RESIDUALS = ("hidden", "attended")
"""Names of the tensor that goes around attention and feed-forward, in the layers of all families."""
WRONG_EPSILON = 1.0
"""Large beside the mean square of any layer's input, so that every layer shows it."""
WRONG_SCALE = 1.3
"""Beyond the bound of a few numbers in bfloat16, whose error scatters by 10 %."""
GELU, SWISH = 2, 4


_is_norm = is_a("RmsNormOperation", "LayerNormOperation")


def _is_collective(leaf: Leaf) -> bool:
    return operator_of(leaf.kind).collective


def _anything(leaf: Leaf) -> bool:
    return True


def _is_residual(leaf: Leaf) -> bool:
    adds = leaf.kind == "ElewiseOperation" and leaf.operation.leaf_param["elewiseType"] == ADD
    return adds and any(name in RESIDUALS for name in leaf.call.inputs)


def _without_residual(leaf: Leaf) -> Wrong:
    position = 1 if leaf.call.inputs[0] in RESIDUALS else 0
    return lambda _, inputs: (inputs[position].clone(),)


def _with_epsilon(leaf: Leaf) -> Operation:
    param = dict(leaf.operation.leaf_param)
    param["normParam"] = {**param["normParam"], "epsilon": single(leaf.size)}
    return replace(leaf.operation, param=param)


def _other_activation(leaf: Leaf) -> Operation:
    param = dict(leaf.operation.leaf_param)
    param["activationType"] = SWISH if param["activationType"] == GELU else GELU
    return replace(leaf.operation, param=param)


def _no_weight(inputs: Tensors) -> Tensors:
    return inputs[0], torch.ones_like(inputs[1]), *inputs[2:]


def _is_split_of(count: int) -> Any:
    return lambda leaf: leaf.kind == "SplitOperation" and len(leaf.call.outputs) == count


def _swapped(outputs: Tensors) -> Tensors:
    """The last two parts change places; they are of the same size."""
    return *outputs[:-2], outputs[-1], outputs[-2]


def _scaled(outputs: Tensors, factor: float) -> Tensors:
    return (outputs[0].float() * factor).to(outputs[0].dtype), *outputs[1:]


def _nan(outputs: Tensors) -> Tensors:
    spoilt = outputs[0].clone()
    spoilt.view(-1)[spoilt.numel() // 2] = float("nan")
    return spoilt, *outputs[1:]


def _last_row(factor: float) -> Callable[[Tensors], Tensors]:
    def change(outputs: Tensors) -> Tensors:
        spoilt = outputs[0].clone()
        spoilt.view(-1, spoilt.shape[-1])[-1] *= factor
        return spoilt, *outputs[1:]

    return change


def _on_rank_1(leaf: Leaf) -> Wrong:
    if leaf.rank != 1:
        return lambda right, inputs: right(*inputs)
    return sized_result(_scaled)(leaf)


def _unsummed(leaf: Leaf) -> Wrong:
    """The sum of the ranks is missing: every rank goes on with its own part."""
    return lambda _, inputs: (inputs[0].clone(),)


LAYER_KINDS = (
    FaultKind("residual", "the residual is not added", _is_residual, _without_residual, last=True),
    FaultKind(
        "norm_eps",
        f"the norm's epsilon is {WRONG_EPSILON:g}",
        _is_norm,
        _with_epsilon,
        size=WRONG_EPSILON,
        right=0.0,
    ),
    FaultKind("norm_weight", "the norm's weight is not applied", _is_norm, on_inputs(_no_weight)),
    FaultKind("activation", "gelu and swish are mixed up", is_a("ActivationOperation"), _other_activation),
    FaultKind("gate_up", "gate and up are swapped", _is_split_of(2), on_result(_swapped)),
    FaultKind("key_value", "key and value are swapped", _is_split_of(3), on_result(_swapped)),
    FaultKind(
        "scale", "the result is 30 % too large", _anything, sized_result(_scaled), is_linear, size=WRONG_SCALE
    ),
    FaultKind("nan", "one element of the result is NaN", _anything, on_result(_nan), is_linear),
    FaultKind(
        "nan_row", "one row of the result is NaN", _anything, on_result(_last_row(math.nan)), is_linear
    ),
    FaultKind(
        "row", "one row of the result has the wrong sign", _anything, on_result(_last_row(-1)), is_linear
    ),
    FaultKind(
        "replica",
        "rank 1 gets a result of its own (30 % larger)",
        _is_collective,
        _on_rank_1,
        size=WRONG_SCALE,
    ),
    FaultKind("all_reduce", "the ranks are not summed", is_a("AllReduceOperation"), _unsummed),
)
