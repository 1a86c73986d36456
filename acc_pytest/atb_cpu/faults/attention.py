"""Faults of rotation, mask, scale, heads and cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..graph import Operation, Tensors, Wrong
from .fault import FaultKind, Leaf, is_a, on_inputs, on_result

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
