"""The cache of keys and values that a step of mine began with, made again from what the step before left.

Only its keys and values are in a dump, so the cache is one of transformers' that can be filled with these.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ...capture.torch_hooks.values import in_arguments, in_cache, is_cache
from ...dumps.base import Slot
from ...dumps.calls import NodeSlot
from ...mapping.module_flow import CACHES
from ...tensors.ref import TensorRef, readable
from .module_calls import ModuleCall

_TOKENS = -2
"""The dimension of tokens in keys and values."""
_MOST_POSITIONS = 1 << 24


class KeyValue(NamedTuple):
    """What one layer has cached."""

    key: TensorRef
    value: TensorRef


Cast = Callable[[torch.Tensor], torch.Tensor]
Held = Mapping[str, KeyValue]
"""What a step left in its cache, by the path of the module that attends."""


def left_by(calls: Mapping[str, ModuleCall]) -> dict[str, KeyValue]:
    """What the modules of a step left in their cache, as far as it is keys and values."""
    left = {}
    for path, call in calls.items():
        parts = {
            key[-1]: ref
            for key, ref in call.outputs.items()
            if len(key) == 2 and any(word in str(key[0]) for word in CACHES)
        }
        if {"key", "value"} <= parts.keys():
            left[path] = KeyValue(parts["key"], parts["value"])
    return left


def continues(before: Held, after: Held) -> bool:
    """Whether a step that left `after` began with what `before` says: its cache is longer."""
    return bool(before) and _tokens(after) > _tokens(before)


def starts_anew(before: Held, after: Held) -> bool:
    """Whether it surely did not: its cache is shorter."""
    return bool(after) and _tokens(after) < _tokens(before)


def starts_at_zero(calls: Mapping[str, ModuleCall]) -> bool:
    """Whether the positions that modules were given say that nothing came before."""
    for call in calls.values():
        for key, ref in call.inputs.items():
            header = readable(ref) if "position" in str(key[0]) else None
            if header is not None and header.dtype.kind == "int" and header.numel <= _MOST_POSITIONS:
                return int(ref.open().min()) == 0 if header.numel else False
    return False


def cache_argument(module: nn.Module) -> str:
    """The name of the argument by which a model is given a cache; empty where there is none."""
    names = inspect.signature(module.forward).parameters
    known = (name for name in names if any(word in name for word in CACHES))
    return next((name for name in known if name not in ("use_cache", "cache_position")), "")


def filled_cache(
    module: nn.Module,
    before: Held,
    modules: Mapping[str, nn.Module],
    cast: Cast,
) -> Any | None:
    """A cache that holds what `before` says; `None` where none can be made that does."""
    made: Any = getattr(sys.modules.get("transformers"), "DynamicCache", None)
    numbers = {path: getattr(modules.get(path), "layer_idx", None) for path in before}
    layers = {number: before[path] for path, number in numbers.items() if isinstance(number, int)}
    if made is None or len(layers) < len(before):
        return None
    config = getattr(module, "config", None)
    cache = made(config=config) if "config" in inspect.signature(made).parameters else made()
    if not hasattr(cache, "layers"):
        return None  # of transformers before 4.54, whose layers cannot be given to their modules one by one
    if len(cache.layers) > len(layers):
        return None  # others keep states that no dump has
    for number in sorted(layers):
        held = layers[number]
        cache.update(cast(held.key.open()), cast(held.value.open()), number)
    for layer in cache.layers:
        if hasattr(layer, "cumulative_length"):  # of a window, which forgets tokens that it has seen
            layer.cumulative_length = _tokens(before)
    return cache


def cache_for(module: nn.Module, cache: Any, own: Cast) -> Any:
    """The cache that a module is given: of the layer that is its own a copy, its tensors cast, for modules
    write to caches. Modules that only hand it on are given it as it is.
    """
    if any(map(is_cache, vars(cache).values())):
        both = copy.copy(cache)
        for name, value in vars(cache).items():
            setattr(both, name, cache_for(module, value, own) if is_cache(value) else copy.copy(value))
        return both
    layers = getattr(cache, "layers", None)
    number = getattr(module, "layer_idx", None)
    if isinstance(layers, list) and isinstance(number, int):
        others = {id(layer): layer for place, layer in enumerate(layers) if place != number}
        copied = copy.deepcopy(cache, others)
        if number < len(copied.layers):
            copied.layers[number] = _changed_part(copied.layers[number], own)
        return copied
    if any(isinstance(getattr(one, "layer_idx", None), int) for one in module.modules()):
        return cache
    copied = copy.deepcopy(cache)
    for name, value in vars(copied).items():
        setattr(copied, name, _changed_part(value, own))
    return copied


def written(
    call: ModuleCall, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[NodeSlot, torch.Tensor]:
    """What a module has put into its own layer of a cache, by the slots that dumps have for it."""
    slots = {key[1:]: key for key in call.outputs if len(key) > 1 and isinstance(key[0], str)}
    return {
        NodeSlot(call.path, Slot("output", slots[part])): tensor
        for _, cache in in_arguments(args, kwargs).caches
        for number, part, tensor in in_cache(cache)
        if number == getattr(module, "layer_idx", None) and part in slots
    }


def _changed_part(part: Any, own: Cast) -> Any:
    """What a cache holds: tensors, layers, and lists or dictionaries of either. Changed in place."""
    if isinstance(part, torch.Tensor):
        return own(part)
    if isinstance(part, (list, tuple)):
        return type(part)(_changed_part(item, own) for item in part)
    if isinstance(part, dict):
        return {name: _changed_part(item, own) for name, item in part.items()}
    if hasattr(part, "__dict__") and not isinstance(part, type):
        for name, value in vars(part).items():
            if isinstance(value, (torch.Tensor, list, tuple, dict)):
                setattr(part, name, _changed_part(value, own))
    return part


def _tokens(held: Held) -> int:
    """The tokens in the longest layer."""
    return max((each.key.header().shape[_TOKENS] for each in held.values()), default=0)
