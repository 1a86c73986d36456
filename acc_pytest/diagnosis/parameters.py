"""Parameters of an operator that the same operator of the other layers does not have.

The layers of a network are alike, so a mistake that a port makes in one of them shows beside the others:
an epsilon, an activation, a scale. The operator computes faithfully with it; no tensor tells.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..json_text import parsed
from ..opcheck.source_directory import PARAM_FILE
from ..reporting.printable import shortened
from ..tensors.stores.place import names_at, on_disk
from .operator_directories import number_of

OTHERS = 3
"""Layers looked at, the nearest."""
_LARGEST = 1 << 20
"""Bytes of a file of parameters that is read."""
_WIDTH = 60


def unlike_others(directory: str, depth: int) -> str:
    """`its epsilon is 1.0, that of layer 3_Prefill_layer is 1e-05`; or empty.

    `directory` is that of the operator, `depth` the number of its last components that are its path in the
    tree. A parameter counts where the other layers agree on another value. Empty also where there is no
    other layer of that kind, or no file of parameters that can be read.
    """
    try:
        return _difference(directory, depth)
    except RecursionError:  # parameters nested as nobody nests them
        return ""


def _difference(directory: str, depth: int) -> str:
    parts = directory.split(os.sep)
    base, path = os.sep.join(parts[:-depth]), parts[-depth:]
    own = _parameters(directory)
    if own is None or len(path) < 2:
        return ""
    others: dict[str, Mapping[str, Any]] = {}
    for layer in _layers_like(base, path[0]):
        parameters = _parameters(os.sep.join([base, layer, *path[1:]]))
        if parameters is not None:
            others[layer] = parameters
        if len(others) == OTHERS:
            break
    for key, value in own.items():
        theirs = [other.get(key, _NOTHING) for other in others.values()]
        if theirs and value not in theirs and all(their == theirs[0] for their in theirs):
            return f"its {_shown(key)} is {_value(value)}, that of layer {_shown(next(iter(others)))} is " + (
                _value(theirs[0]) if theirs[0] is not _NOTHING else "not set"
            )
    return ""


_NOTHING = object()


def _layers_like(base: str, layer: str) -> Iterator[str]:
    """The other graphs of the first level with the name of `layer`, those next to it first."""
    number, _, kind = layer.partition("_")
    if not number.isdecimal():
        return
    try:
        names = [name for name in names_at(base) if name != layer and name.partition("_")[2] == kind]
    except OSError:
        return
    yield from sorted(names, key=lambda name: (abs(number_of(name) - int(number)), name))


def _parameters(directory: str) -> Mapping[str, Any] | None:
    """What the operator was given; `None` where that cannot be read."""
    path = os.path.join(directory, PARAM_FILE)
    try:
        with open(on_disk(path), encoding="utf-8") as file:
            content = parsed(file.read(_LARGEST))
    except (OSError, ValueError):
        return None
    return dict(_leaves(content)) if type(content) is dict else None


def _leaves(param: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each parameter with the names around it: `normParam.epsilon`."""
    for key, value in param.items():
        if type(value) is dict:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield above + key, value


def _shown(name: str) -> str:
    return shortened(name, _WIDTH)


def _value(value: object) -> str:
    return _shown(json.dumps(value))
