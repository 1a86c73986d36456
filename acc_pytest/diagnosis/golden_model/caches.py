"""The cache that a step of mine began with, made again from what the step before left.

It is one of transformers' that can be filled with what is in a dump: keys and values, states of recurrences.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union

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
    """The cache of one layer of attention."""

    key: TensorRef
    value: TensorRef


class States(NamedTuple):
    """The cache of one recurrent layer: the last inputs of its convolution and its own state."""

    convolution: TensorRef
    recurrence: TensorRef


Cast = Callable[[torch.Tensor], torch.Tensor]
Held = Mapping[str, Union[KeyValue, States]]
"""What a step left in its cache, by the path of the module that attends, or is recurrent."""
_OF_STATES = ("conv_states", 0), ("recurrent_states", 0)


def left_by(calls: Mapping[str, ModuleCall]) -> dict[str, Union[KeyValue, States]]:
    """The caches that the modules of a step left, as far as it is keys and values, or the states of a
    recurrence that has one of each."""
    left: dict[str, Union[KeyValue, States]] = {}
    for path, call in calls.items():
        tensors = {
            key[1:]: ref
            for key, ref in call.outputs.items()
            if len(key) > 1 and any(word in str(key[0]) for word in CACHES)
        }
        if {("key",), ("value",)} <= tensors.keys():
            left[path] = KeyValue(tensors["key",], tensors["value",])
        elif set(_OF_STATES) == tensors.keys():
            left[path] = States(*(tensors[name] for name in _OF_STATES))
    return left


def continues(before: Held, after: Held) -> bool:
    """Whether a step that left `after` began with what `before` says: its cache is longer, or where all
    layers are recurrent, the inputs of its convolutions have moved on."""
    if _tokens(before) or _tokens(after):
        return bool(before) and _tokens(after) > _tokens(before)
    return bool(before) and all(
        isinstance(old, States) and isinstance(new := after.get(path), States) and _advances(old, new)
        for path, old in before.items()
    )


def _advances(before: States, after: States) -> bool:
    """Whether all inputs of a convolution but the last are those that it had."""
    old, new = before.convolution.open(), after.convolution.open()
    return old.shape == new.shape and old.shape[-1] > 1 and torch.equal(old[..., 1:], new[..., :-1])


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
    cache_names = (name for name in names if any(word in name for word in CACHES))
    return next((name for name in cache_names if name not in ("use_cache", "cache_position")), "")


def filled_cache(
    module: nn.Module,
    before: Held,
    modules: Mapping[str, nn.Module],
    cast: Cast,
) -> Any | None:
    """A cache that holds what `before` says; `None` where none can be made that does."""
    kind: Any = getattr(sys.modules.get("transformers"), "DynamicCache", None)
    numbers = {path: getattr(modules.get(path), "layer_idx", None) for path in before}
    layers = {number: before[path] for path, number in numbers.items() if isinstance(number, int)}
    if kind is None or len(layers) < len(before):
        return None
    config = getattr(module, "config", None)
    cache = kind(config=config) if "config" in inspect.signature(kind).parameters else kind()
    if not hasattr(cache, "layers"):
        return None  # of transformers before 4.54, whose layers cannot be given to their modules one by one
    if len(cache.layers) > len(layers):
        return None  # others keep states that no dump has
    for number in sorted(layers):
        if not _fill(cache, number, layers[number], cast):
            return None
    for layer in cache.layers:
        if hasattr(layer, "cumulative_length"):  # of a window, which forgets tokens that it has seen
            layer.cumulative_length = _tokens(before)
    return cache


def _fill(cache: Any, number: int, entry: KeyValue | States, cast: Cast) -> bool:
    """Put what is known into one layer; whether it can have that."""
    first, second = (cast(ref.open()) for ref in entry)
    if isinstance(entry, KeyValue):
        cache.update(first, second, number)
        return True
    layer: Any = cache.layers[number] if number < len(cache.layers) else None
    if not (hasattr(layer, "update_conv_state") and hasattr(layer, "update_recurrent_state")):
        return False
    layer.update_conv_state(first)
    layer.update_recurrent_state(second)
    return True


def cache_for(module: nn.Module, cache: Any, cast: Cast) -> Any:
    """The cache that a module is given: of the layer that is its own a copy, its tensors cast, for modules
    write to caches. Modules that only hand it on are given it as it is.
    """
    if any(map(is_cache, vars(cache).values())):
        composite = copy.copy(cache)
        for name, value in vars(cache).items():
            setattr(composite, name, cache_for(module, value, cast) if is_cache(value) else copy.copy(value))
        return composite
    layers = getattr(cache, "layers", None)
    number = getattr(module, "layer_idx", None)
    if isinstance(layers, list) and isinstance(number, int):
        shared = {id(layer): layer for place, layer in enumerate(layers) if place != number}
        copied = copy.deepcopy(cache, shared)
        if number < len(copied.layers):
            copied.layers[number] = _changed_content(copied.layers[number], cast)
        return copied
    if any(isinstance(getattr(submodule, "layer_idx", None), int) for submodule in module.modules()):
        return cache
    copied = copy.deepcopy(cache)
    for name, value in vars(copied).items():
        setattr(copied, name, _changed_content(value, cast))
    return copied


def cached(
    call: ModuleCall, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[NodeSlot, torch.Tensor]:
    """The tensors of a module in its own layer of a cache, by the slots that dumps have for them."""
    slots = {key[1:]: key for key in call.outputs if len(key) > 1 and isinstance(key[0], str)}
    return {
        NodeSlot(call.path, Slot("output", slots[name])): tensor
        for _, cache in in_arguments(args, kwargs).caches
        for number, name, tensor in in_cache(cache)
        if number == getattr(module, "layer_idx", None) and name in slots
    }


def _changed_content(content: Any, cast: Cast) -> Any:
    """The content of a cache, cast in place: tensors, layers, and lists or dictionaries of either."""
    if isinstance(content, torch.Tensor):
        return cast(content)
    if isinstance(content, (list, tuple)):
        return type(content)(_changed_content(item, cast) for item in content)
    if isinstance(content, dict):
        return {name: _changed_content(item, cast) for name, item in content.items()}
    if hasattr(content, "__dict__") and not isinstance(content, type):
        for name, value in vars(content).items():
            if isinstance(value, (torch.Tensor, list, tuple, dict)):
                setattr(content, name, _changed_content(value, cast))
    return content


def _tokens(layers: Held) -> int:
    """The tokens in the longest layer."""
    attending = (layer for layer in layers.values() if isinstance(layer, KeyValue))
    return max((layer.key.header().shape[_TOKENS] for layer in attending), default=0)
