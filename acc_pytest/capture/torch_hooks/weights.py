"""The weights of a model in a dump without their values: a digest of each parameter and buffer.

A digest reads every byte of a weight once, 4 to 7 ns an element. Weights are read by a few threads at a time;
each holds one piece of a weight, 16 MB of float32, at most.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ...dumps.torch_weights import WEIGHTS_FORMAT
from ...tensors.digest import digest
from ...tensors.sketch import NAME
from .memory import Storages, is_wrapper
from .names import NamedModule, fit

_MOST_THREADS = 8


def weight_digests(root: NamedModule, storages: Storages) -> dict[str, Any]:
    """The content of `weights.json`: all parameters and buffers of a model as they are now, by full name.

    What is registered at several places is listed once, with the other names as `aliases`. A tensor that has
    no digest is listed with the reason. Never raises for what a model holds.
    """
    tensors: dict[int, tuple[torch.Tensor, dict[str, Any]]] = {}
    named: dict[str, dict[str, Any]] = {}
    for kind, name, tensor in _weights(root):
        if id(tensor) in tensors:
            tensors[id(tensor)][1]["aliases"].append(name)
        else:
            named[name] = {"kind": kind, "aliases": []}
            tensors[id(tensor)] = tensor, named[name]
    _wait_for({tensor.device.type for tensor, _ in tensors.values()})
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        described = threads.map(_described, (tensor for tensor, _ in tensors.values()))
        for (tensor, entry), fields in zip(tensors.values(), described):
            entry |= fields | storages.memory_of(tensor)
    return {"format": WEIGHTS_FORMAT, "schema": 1, "sketch": NAME, "weights": named}


def _weights(root: NamedModule) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Kind, full name and tensor of every parameter and buffer, under every name."""
    for place in root.walk():
        # Scripted modules are not looked into, and have no place for their children.
        recurse = isinstance(place.module, torch.jit.ScriptModule)
        for name, parameter in place.module.named_parameters(recurse=recurse, remove_duplicate=False):
            yield "parameter", f"{place.name}.{fit(name)}", parameter
        for name, buffer in place.module.named_buffers(recurse=recurse, remove_duplicate=False):
            yield "buffer", f"{place.name}.{fit(name)}", buffer


def _wait_for(devices: set[str]) -> None:
    """Other threads have streams of their own: what is under way on this one's must have ended."""
    for device in devices - {"cpu", "meta"}:
        synchronize = getattr(getattr(torch, device, None), "synchronize", None)
        if synchronize is not None:
            synchronize()


def _described(tensor: torch.Tensor) -> dict[str, Any]:
    try:
        if hasattr(tensor, "to_local"):  # a DTensor: this rank's part
            tensor = tensor.to_local()
        if is_wrapper(tensor):
            raise TypeError(f"a {type(tensor).__name__} has no digest")
        return dataclasses.asdict(digest(tensor))
    except Exception as error:  # noqa: BLE001 - a weight that does not let itself be read must not end the run
        return {"reason": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
