"""Arguments and results as a trace writes them (`dumps.torch_traces`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

_LONGEST = 4096
"""Items of a list that are written down."""
_PLAIN = (bool, int, str, type(None))


class Untraceable(Exception):
    """Why a call cannot be written down."""


def written_value(value: Any, of_tensor: Callable[[torch.Tensor], Any], *, strict: bool) -> Any:
    """A value in words that JSON has. `strict`: every part of it counts; else a part that has no words
    (a cache, an object) is left out, which the code of modules inside has been looked at with.

    Raises `Untraceable`.
    """
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, (tuple, list)):
        return _sequence(value, of_tensor, strict=strict)
    for kind, convert in _FORMS.items():
        if isinstance(value, kind):
            return convert(value)
    if isinstance(value, slice):
        ends = (value.start, value.stop, value.step)
        return {"slice": [written_value(element, of_tensor, strict=strict) for element in ends]}
    items = _items(value)
    if items is not None:
        return {
            "dict": [
                [key, written_value(element, of_tensor, strict=strict)] for key, element in items.items()
            ]
        }
    if strict:
        raise Untraceable(f"it hands a {type(value).__name__} to a function")
    return None


def _sequence(value: Any, of_tensor: Callable[[torch.Tensor], Any], *, strict: bool) -> Any:
    if len(value) > _LONGEST:
        raise Untraceable(f"it hands a list of {len(value)} items to a function")
    items = [written_value(element, of_tensor, strict=strict) for element in value]
    return {"list": items} if isinstance(value, list) else items


def _items(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a mapping or dataclass by key or field."""
    if isinstance(value, Mapping):
        return value if all(isinstance(key, (str, int)) for key in value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def _short(value: object) -> str:
    return str(value).removeprefix("torch.")


_FORMS: dict[type, Callable[[Any], Any]] = {
    torch.dtype: lambda value: {"dtype": _short(value)},
    torch.device: lambda value: {"device": "cpu"},
    torch.memory_format: lambda value: {"memory_format": _short(value)},
    torch.layout: lambda value: {"layout": _short(value)},
    type(...): lambda value: {"dots": 0},
    complex: lambda value: {"complex": [value.real, value.imag]},
    int: int,
    str: str,
}
