"""Arguments and results of modules taken apart and put together: tensors by the keys of dumps.

A key is the path to a tensor as `capture.torch_hooks.values` makes it: the place or name of an argument,
then the item, name or field below. Caches of keys and values are no structure: they are copied whole.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...capture.torch_hooks.values import Key, is_cache

Change = Callable[[Key, torch.Tensor], torch.Tensor]


def changed(value: Any, change: Change, key: Key = ()) -> Any:
    """The same structure with every tensor as `change` makes it of its key and itself."""
    if isinstance(value, torch.Tensor):
        return change(key, value)
    if is_cache(value):
        return changed_cache(value, change, key)
    if isinstance(value, (tuple, list)):
        items = [changed(item, change, (*key, place)) for place, item in enumerate(value)]
        return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    if isinstance(value, Mapping):
        return _changed_mapping(value, change, key)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        other = copy.copy(value)
        for field in dataclasses.fields(value):
            inner = changed(getattr(value, field.name, None), change, (*key, field.name))
            object.__setattr__(other, field.name, inner)
        return other
    return value


def _changed_mapping(value: Mapping[Any, Any], change: Change, key: Key) -> Any:
    names = {name: (*key, name if isinstance(name, int) else str(name)) for name in value}
    items = {name: changed(value[name], change, inner) for name, inner in names.items()}
    if type(value) is dict:
        return items
    other: Any = copy.copy(value)
    for name, item in items.items():
        other[name] = item
    return other


def changed_cache(cache: Any, change: Change, key: Key = ()) -> Any:
    """A copy of a cache of keys and values, its tensors as `change` makes them of the key of the cache."""
    other = copy.copy(cache)
    for name, value in vars(cache).items():
        if isinstance(value, torch.Tensor):
            setattr(other, name, change(key, value))
        elif is_cache(value):
            setattr(other, name, changed_cache(value, change, key))
        elif isinstance(value, list):
            setattr(other, name, [_changed_part(item, change, key) for item in value])
    return other


def _changed_part(part: Any, change: Change, key: Key) -> Any:
    """A layer of a cache, or the tensor that old ones have for it."""
    if isinstance(part, torch.Tensor):
        return change(key, part)
    if not hasattr(part, "__dict__"):
        return part
    other = copy.copy(part)
    for name, value in vars(part).items():
        if isinstance(value, torch.Tensor):
            setattr(other, name, change(key, value))
    return other


def call_values(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], change: Change
) -> tuple[tuple[Any, ...], Any]:
    """Arguments of a call with every tensor changed."""
    return (
        tuple(changed(value, change, (place,)) for place, value in enumerate(args)),
        {name: changed(value, change, (name,)) for name, value in kwargs.items()},
    )
