"""Arguments and results of modules taken apart and put together: tensors by the keys of dumps.

A key is the path to a tensor as `capture.torch_hooks.values` makes it: the place or name of an argument,
then the item, name or field below. Caches of keys and values are no structure, and left to others.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ...capture.torch_hooks.values import Key, is_cache

Change = Callable[[Key, torch.Tensor], torch.Tensor]
OfCache = Callable[[Any, Key], Any]


def changed(value: Any, change: Change, of_cache: OfCache, key: Key = ()) -> Any:
    """A copy of the structure with every tensor as `change` makes it of its key and itself, and every cache
    as `of_cache` does.
    """
    if isinstance(value, torch.Tensor):
        return change(key, value)
    if is_cache(value):
        return of_cache(value, key)
    if isinstance(value, (tuple, list)):
        items = [changed(item, change, of_cache, (*key, place)) for place, item in enumerate(value)]
        return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)
    if isinstance(value, Mapping):
        return _changed_mapping(value, change, of_cache, key)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for field in dataclasses.fields(value):
            inner = changed(getattr(value, field.name, None), change, of_cache, (*key, field.name))
            object.__setattr__(copied, field.name, inner)
        return copied
    return value


def _changed_mapping(value: Mapping[Any, Any], change: Change, of_cache: OfCache, key: Key) -> Any:
    names = {name: (*key, name if isinstance(name, int) else str(name)) for name in value}
    items = {name: changed(value[name], change, of_cache, inner) for name, inner in names.items()}
    if type(value) is dict:
        return items
    copied: Any = copy.copy(value)
    for name, item in items.items():
        copied[name] = item
    return copied


def call_values(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], change: Change, of_cache: OfCache
) -> tuple[tuple[Any, ...], Any]:
    """Arguments of a call with every tensor changed."""
    return (
        tuple(changed(value, change, of_cache, (place,)) for place, value in enumerate(args)),
        {name: changed(value, change, of_cache, (name,)) for name, value in kwargs.items()},
    )


def is_of_torch(module: nn.Module) -> bool:
    """Whether it is one of torch's own layers, which give one tensor where they give one."""
    return type(module).__module__.startswith("torch.nn.modules.")
