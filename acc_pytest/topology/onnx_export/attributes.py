"""From the parameters of an operation, a JSON object, to ONNX attributes, which are flat and typed.

Nested objects become dotted names, lists of one kind lists, any other list one attribute per item,
numbered: `{"a": {"b": 0}, "c": [{"d": 1}]}` gives `a.b` and `c.0.d`. Nothing is left out: what ONNX has
no value for (null, an empty object, numbers beyond its 64 or 32 bits, endless nesting) is kept as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..atb_json import MAX_DEPTH
from .proto import Value

_WHOLE = range(-(2**63), 2**63)
_LARGEST_FLOAT = float(2**128 - 2**103)
"""At and above this, rounding to float32 gives infinity."""


def attributes_of(param: Mapping[str, Any]) -> tuple[tuple[str, Value], ...]:
    """Names and values, in the order of the parameters; a name that appears again gets `:1`, `:2`, ..."""
    attributes: dict[str, Value] = {}
    for name, value in _flat("", param):
        free, count = name or "param", 0
        while free in attributes:
            count += 1
            free = f"{name}:{count}"
        attributes[free] = value
    return tuple(attributes.items())


def _flat(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Value]]:
    prefix = f"{name}." if depth else ""
    if depth > MAX_DEPTH:
        yield name, json.dumps(value)
    elif isinstance(value, Mapping) and (value or not depth):
        for key, inner in value.items():
            yield from _flat(f"{prefix}{key}", inner, depth + 1)
    elif isinstance(value, list):
        plain = _plain_list(value)
        if plain is not None:
            yield name, plain
        else:
            for index, inner in enumerate(value):
                yield from _flat(f"{prefix}{index}", inner, depth + 1)
    else:
        yield name, _scalar(value)


def _scalar(value: Any) -> int | float | str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and value in _WHOLE:
        return int(value)  # a truth value is 0 or 1
    if isinstance(value, float) and _fits(value):
        return value
    return json.dumps(value)


def _plain_list(items: list[Any]) -> Value | None:
    """The list as one attribute, `None` where its items are of several kinds."""
    if all(isinstance(item, str) for item in items):
        return tuple(str(item) for item in items)
    if not all(isinstance(item, (int, float)) for item in items):
        return None
    values = [_scalar(item) for item in items]
    if any(isinstance(value, str) for value in values):  # one does not fit: all as texts
        return tuple(json.dumps(item) for item in items)
    if any(isinstance(value, float) for value in values):
        return tuple(float(value) for value in values)
    return tuple(int(value) for value in values)


def _fits(number: float) -> bool:
    return not math.isfinite(number) or abs(number) < _LARGEST_FLOAT
