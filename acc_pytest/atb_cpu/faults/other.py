"""Faults of residuals, norms, activations, splits and collectives, and those that any operator can have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...operators import operator_of
from ..graph import Operation, Tensors, Wrong
from ..models.leaves import ADD, single
from .fault import FaultKind, Leaf, is_a, is_linear, on_inputs, on_result, sized_result

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
        "scale",
        "the result is 30 % too large",
        _anything,
        sized_result(_scaled),
        is_linear,
        size=WRONG_SCALE,
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
