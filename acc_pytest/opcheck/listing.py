"""The names in a directory of a dump, remembered: many cases look into the same directories."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping

from ..tensors.kept_index import names_in
from ..tensors.ref import TensorRef
from ..tensors.stores.place import is_directory, names_at

_TENSOR = re.compile(r"^(in|out)tensor(\d{1,4})(_.*)?\.bin$", re.ASCII | re.DOTALL)
"""Tensors of an operator are numbered without gaps, so that no number is large."""
_NODE = re.compile(r"^(\d+)_(.+)$")


def directories_by_id(path: str) -> Mapping[str, tuple[str, ...]]:
    """The directories `{id}_{name}` in `path` by their id; empty where there is no such directory."""
    return _by_id(path, _changed(path))


def tensors_in(path: str, root: str) -> tuple[dict[int, TensorRef], dict[int, TensorRef]]:
    """Input and output files in `path` by number; `root` is the execution's directory."""
    sides: tuple[dict[int, TensorRef], dict[int, TensorRef]] = ({}, {})
    for name in sorted(_names(path, _changed(path))):
        tensor = _TENSOR.match(name)
        if tensor is not None:
            side = sides[0] if tensor.group(1) == "in" else sides[1]
            side.setdefault(int(tensor.group(2)), TensorRef(os.path.join(path, name), root=root))
    return sides


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return 0


@functools.lru_cache(maxsize=4096)
def _names(path: str, _version: int) -> tuple[str, ...]:
    try:
        return (*names_at(path), *names_in(path))
    except (OSError, ValueError):
        return ()


@functools.lru_cache(maxsize=4096)
def _by_id(path: str, version: int) -> Mapping[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for name in sorted(_names(path, version)):
        node = _NODE.match(name)
        if node is not None and is_directory(os.path.join(path, name)):
            names[node.group(1)] = (*names.get(node.group(1), ()), name)
    return names
